"""How replies of GEO are numbered, where a pserver has gone on from an older state.

Numbers grow by one with each reply to a worker. A pserver that may have lost commands, by its
own death or that of the owner before, begins a term, and its numbers go on from one that the
term decides: so an acknowledgement of before is never taken for one of its own, and a worker
sees that it has begun anew. It then sends every row once more.

The number before doesn't decide it. The state that is gone on from may lack the beginning of a
term whose replies workers have.
"""

__all__ = ["TERM_REPLIES", "first_of", "has_begun_anew"]

TERM_REPLIES = 1 << 36
"""Far more than a server counts replies to a worker, which it does in 32 bits."""


def first_of(term: int) -> int:
    """Return a number that no reply of a term before has reached: the term's come behind it."""
    return term * TERM_REPLIES


def has_begun_anew(before: int, now: int) -> bool:
    """Return whether a pserver went on from an older state between two replies to a worker.

    Args:
        before: Number of the last reply that the worker has taken in.
        now: Of the next one.
    """
    return now - before >= TERM_REPLIES // 2
