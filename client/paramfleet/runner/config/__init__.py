"""The configuration of a model folder: its YAML, read into settings."""
