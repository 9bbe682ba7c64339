"""Checkpoints on disk, without a job: listed, verified, compared, found for a restart."""
