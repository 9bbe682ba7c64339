"""Workers that are gone: lost, awaited, or gone on without."""
