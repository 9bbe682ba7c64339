"""What a peer may have of a connection: memory, frames, time."""
