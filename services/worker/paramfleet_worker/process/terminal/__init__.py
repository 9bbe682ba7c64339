"""The launcher's own output: the line at its bottom, and how it is written."""
