"""The pages of a tier: how many there are, their files, lookups, and their replacement."""
