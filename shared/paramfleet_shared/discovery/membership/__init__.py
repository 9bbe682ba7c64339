"""What a member knows of its job while that runs."""
