"""Passes over data: batches whose rows are on a device while they are trained."""
