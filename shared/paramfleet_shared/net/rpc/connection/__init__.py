"""One connection: how it begins, what it may hold, and what carries its bytes."""
