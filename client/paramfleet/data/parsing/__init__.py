"""MultiSlot text to rows of slots: the parser, its kernels, and lines that are wrong."""
