"""Saving, loading and exporting, alone and by all servers and workers of a job."""
