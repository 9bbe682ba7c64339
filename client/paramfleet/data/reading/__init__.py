"""How the bytes of files come: files, pipe commands, and the threads that read."""
