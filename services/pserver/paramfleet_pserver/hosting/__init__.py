"""The groups that a process hosts."""
