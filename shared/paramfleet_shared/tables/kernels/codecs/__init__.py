"""Numbers and ids in fewer bytes, and back."""
