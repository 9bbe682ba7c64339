"""What a worker measures: times of steps, examples, metrics, curves."""
