"""What ``paramfleet doctor`` concludes from facts; gathering them is ``process.probes``."""
