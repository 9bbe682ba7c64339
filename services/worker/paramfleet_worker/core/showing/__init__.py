"""What of a job a terminal shows: which lines, and how far its training is."""
