"""One stack a module: a server that answers bytes with bytes, and a client that asks it."""
