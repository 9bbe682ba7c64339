"""What a person wants to know of a stream on the disk."""
