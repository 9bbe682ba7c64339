"""The server of a change stream: lookups of a model's rows and dense parameters, read-only."""
