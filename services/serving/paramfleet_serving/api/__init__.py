"""The HTTP requests that are answered."""
