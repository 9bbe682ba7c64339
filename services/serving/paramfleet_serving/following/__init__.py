"""Where versions come from: sources of changes, and the task that applies them."""
