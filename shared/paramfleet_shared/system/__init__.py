"""The process and its machine: time, memory, files, child processes."""
