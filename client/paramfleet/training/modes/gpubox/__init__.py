"""gpubox: passes over data with rows on a device, in a job with pservers."""
