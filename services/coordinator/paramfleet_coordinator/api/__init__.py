"""The coordinator's admin API: what people and programs read of a job, and do to it."""
