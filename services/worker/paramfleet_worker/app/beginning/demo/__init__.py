"""What ``paramfleet demo`` runs: an example that comes with the package."""
