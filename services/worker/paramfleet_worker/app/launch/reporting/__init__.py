"""What a launch says: what it starts, how far the job is, where its page is, and its end."""
