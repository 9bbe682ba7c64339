"""The whole state of a pserver's training as messages, and back."""
