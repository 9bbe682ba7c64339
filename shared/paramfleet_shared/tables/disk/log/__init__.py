"""The log of a tier: its segments, and which keys are in them."""
