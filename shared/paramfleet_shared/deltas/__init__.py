"""Streams: the numbered changes of a model in a folder, and bases that readers begin at."""
