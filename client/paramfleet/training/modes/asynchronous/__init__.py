"""async: pushes leave in the background, and pservers apply them as they come."""
