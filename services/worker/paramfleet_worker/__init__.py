"""The worker's side of a job: command line, launcher, script runner."""
