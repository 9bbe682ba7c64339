"""What readers ask of ``paddle.distributed``: which worker this is, to share files."""

__all__ = ["get_rank", "get_world_size"]


def get_rank() -> int:
    """Return this worker's number; 0 without a job."""
    import paramfleet as fleet  # noqa: PLC0415 - a pipe's reader must not wait for it

    return fleet.worker_index()


def get_world_size() -> int:
    """Return how many workers there are; 1 without a job."""
    import paramfleet as fleet  # noqa: PLC0415 - a pipe's reader must not wait for it

    return fleet.worker_num()
