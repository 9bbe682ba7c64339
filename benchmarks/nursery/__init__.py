"""A process that has imported everything, and forks the processes of jobs in no time."""
