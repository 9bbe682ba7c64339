"""What readers of a ``pipe_command`` import of Paddle: its parent."""
