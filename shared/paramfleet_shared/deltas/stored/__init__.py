"""The files of a stream."""
