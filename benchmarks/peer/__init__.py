"""The systems that the benchmarks run beside each other, behind one interface."""
