"""What one optimizer step means in each mode; ``base.Mode`` is the plan they share."""
