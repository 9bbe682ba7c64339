"""``paramfleet doctor``: facts of a machine and a job, and what follows from them."""
