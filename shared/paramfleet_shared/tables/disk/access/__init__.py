"""How a tier reaches its files: the calls of the system, and many transfers at once."""
