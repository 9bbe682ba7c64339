"""A tier on disk for the cold rows of a sparse table: pages by hash, a log before them.

See ADR 60 for why it is built as it is. ``tier.DiskTier`` is what others use.
"""
