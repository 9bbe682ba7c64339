"""``paramfleet launch``: the processes of a job, planned, prepared and started."""
