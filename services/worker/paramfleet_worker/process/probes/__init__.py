"""What a machine, its network, the registry and the files of a job answer."""
