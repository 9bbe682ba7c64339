"""How a job trains and what a worker is: strategy, settings, roles."""
