"""How the processes of a job find each other: the registry in Redis and a member's session."""
