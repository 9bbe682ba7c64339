"""A process's life in a job: joining, waiting for others, saving and resuming, leaving."""
