"""Format and decisions of the log: bytes in, bytes out; no file, no thread, no clock."""
