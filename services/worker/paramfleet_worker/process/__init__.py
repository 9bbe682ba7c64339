"""Real processes, sockets and terminals, for the launcher."""
