"""A process that has imported what jobs need; its forks begin within milliseconds."""
