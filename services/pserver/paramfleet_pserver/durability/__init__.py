"""What a pserver keeps on its disk, and how its state is recovered from that."""
