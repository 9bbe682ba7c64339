"""What a process trains with: itself alone, parameter servers, or a collective group."""
