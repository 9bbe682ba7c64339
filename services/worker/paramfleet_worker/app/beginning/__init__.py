"""What a new user runs first: the demo, and a project to begin with."""
