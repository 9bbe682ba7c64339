"""Names for the integers and strings that identify things."""

from typing import NewType

__all__ = ["Incarnation", "Rank", "ShardIndex", "Step"]

Rank = NewType("Rank", int)
"""A worker's index in the job, from 0; stable across its restarts."""

Incarnation = NewType("Incarnation", int)
"""Counts the processes of one (role, index), from 1: a restart has a higher one."""

Step = NewType("Step", int)
"""Batches a worker has finished, counted from 0."""

ShardIndex = NewType("ShardIndex", int)
"""A fixed slice of a table, from 0 to ``num_shards - 1``."""
