"""Redis: the connection, the scripts, and a server of our own."""
