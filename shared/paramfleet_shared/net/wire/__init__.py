"""What a message looks like in bytes; knows nothing of connections."""
