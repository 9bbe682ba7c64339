"""What is served: mapped bases, changed rows over them, and versions."""
