"""The systems that ``benchmarks/peers.py`` compares, behind one interface."""
