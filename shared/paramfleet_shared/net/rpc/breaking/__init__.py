"""What breaks calls: by a seed from the begin on, and as an operator asks for it."""
