"""How replies of GEO are numbered, where a pserver has gone on from an older state.

Numbers grow by one with each reply to a worker. A pserver that may have lost commands, by its
own death or that of the owner before, goes on far behind all numbers that were given: so an
acknowledgement of before is never taken for one of its own, and a worker sees that it has
begun anew. It then sends every row once more.
"""

__all__ = ["TERM_REPLIES", "has_begun_anew"]

TERM_REPLIES = 1 << 20
"""Replies that a server may have sent since the state that is on its disk: far more than the
commands that wait for a disk. Numbers go on behind so many."""


def has_begun_anew(before: int, now: int) -> bool:
    """Return whether a pserver went on from an older state between two replies to a worker.

    The number it went on from may be lower than ``before``, by the replies that it had sent
    since that state: by far less than a half of ``TERM_REPLIES``.

    Args:
        before: Number of the last reply that the worker has taken in.
        now: Of the next one.
    """
    return now - before >= TERM_REPLIES // 2
