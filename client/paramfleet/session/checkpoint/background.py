"""Checkpoints without a caller that waits: the result is reported, a failure ends nothing."""

import logging
from pathlib import Path
from typing import Any

from paramfleet.session.checkpoint.saving import Saving
from paramfleet_shared.errors import FleetError
from paramfleet_shared.system.clock import Clock

__all__ = ["saved"]

log = logging.getLogger(__name__)


def saved(saving: Saving, folder: str | Path, *, clock: Clock) -> dict[str, Any]:
    """Write a checkpoint while the training goes on.

    Args:
        saving: Writes it.
        folder: Where to.
        clock: For how long that took.

    Returns:
        ``dirname``, ``seconds``, ``error`` (empty if it is written), ``consistent`` (None if it
        isn't written), ``reason`` (why it isn't a consistent cut) and ``paused_s``.
    """
    began, error, cut = clock.monotonic(), "", None
    try:
        cut = saving.save_persistables(folder)
    except FleetError as failure:
        error = str(failure)
        log.warning("worker.checkpoint_failed", extra={"folder": str(folder), "reason": error})
    return {
        "dirname": str(folder),
        "seconds": round(clock.monotonic() - began, 3),
        "error": error,
        "consistent": None if cut is None else cut.consistent,
        "reason": "" if cut is None else cut.reason,
        "paused_s": 0.0 if cut is None else cut.paused_s,
    }
