"""What belongs to a step beside its mode: sums over the workers, and guards."""
