"""``paramfleet plan``: what a table will need, before there is a job."""
