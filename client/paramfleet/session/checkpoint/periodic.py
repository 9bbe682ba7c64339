"""Checkpoints by time, as ``strategy.checkpoint_configs`` asks for them.

Worker 0 has them written, between two of its steps, in gpubox between two passes. Each has a
folder of its own, ``<number>-step-<step>``, which is complete or absent; numbers continue over
restarts, so the newest is the one with the highest, and ``latest`` is a link to it. Older ones
than ``keep`` are removed when a newer one is complete. A failure is reported and ends nothing:
the next is tried at its time.
"""

import logging
import os
import re
import secrets
import shutil
from pathlib import Path

from paramfleet.config.checkpoint_plan import CheckpointPlan
from paramfleet.session.checkpoint.background import saved
from paramfleet.session.checkpoint.replaceable import check_makes_way
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.checkpoint.whole_folders import temporary_beside
from paramfleet.session.session import Session
from paramfleet_shared.checkpoint.manifest import CheckpointWriteError
from paramfleet_shared.files.folders import FolderNameError
from paramfleet_shared.system.clock import Clock

__all__ = ["PeriodicCheckpoints"]

LATEST = "latest"

_NAME = re.compile(r"(\d{6,})-step-\d+")
_LEFT = re.compile(r"\.\d{6,}-step-\d+\.[0-9a-f]{8}\.partial")

log = logging.getLogger(__name__)


class PeriodicCheckpoints:
    """Writes checkpoints when it is time. The training thread owns it.

    Args:
        session: Whose worker trains.
        saving: Writes them.
        clock: For when.
    """

    def __init__(self, session: Session, saving: Saving, clock: Clock) -> None:
        self._session = session
        self._saving = saving
        self._clock = clock
        self._plan: CheckpointPlan | None = None
        self._due = 0.0

    def look(self) -> None:
        """Write a checkpoint if it is time; called between two steps, costs little else.

        During a pass of gpubox none can be written: the next call behind it does.

        Raises:
            FleetError: if the job failed meanwhile.
        """
        optimizer = self._session.optimizer
        plan = None if optimizer is None else optimizer.mode.checkpoints
        if plan is None or optimizer is None:
            return
        now = self._clock.monotonic()
        if plan is not self._plan:
            self._plan, self._due = plan, now + plan.every_s
            if self._session.is_first_worker():
                _clear(Path(plan.dirname))
        if now < self._due or not self._session.is_first_worker() or optimizer.is_in_pass:
            return
        self._write(plan, step=optimizer.num_steps)
        self._due = self._clock.monotonic() + plan.every_s

    def _write(self, plan: CheckpointPlan, *, step: int) -> None:
        folder = Path(plan.dirname).absolute()
        number = max(_numbered(folder), default=0) + 1
        name = f"{number:06d}-step-{step}"
        done = saved(self._saving, folder / name, clock=self._clock)
        self._session.raise_if_failed()
        if not done["error"]:
            _tidy(folder, name, keep=plan.keep)
        self._session.progress.note(periodic_checkpoint=done)


def _tidy(folder: Path, name: str, *, keep: int) -> None:
    """Point to a new checkpoint, and remove old ones; failures are logged.

    None is removed that ``latest`` might still point to.
    """
    try:
        pointer = folder / f".{LATEST}.{secrets.token_hex(4)}"
        pointer.symlink_to(name, target_is_directory=True)
        try:
            pointer.replace(folder / LATEST)
        finally:
            pointer.unlink(missing_ok=True)
    except OSError as error:
        facts = {"folder": str(folder), "reason": str(error)}
        log.warning("worker.checkpoint_pointer_failed", extra=facts)
        return
    numbered = _numbered(folder)
    for number in sorted(numbered)[:-keep]:
        _remove(numbered[number])


def _remove(folder: Path) -> None:
    """Remove a checkpoint; from the beginning on it has no checkpoint's name any more.

    One that holds anything else stays.
    """
    former = temporary_beside(folder)
    try:
        check_makes_way(folder)
        folder.rename(former)
        shutil.rmtree(former)
    except (FolderNameError, CheckpointWriteError, OSError) as error:
        facts = {"folder": str(folder), "reason": str(error)}
        log.warning("worker.checkpoint_not_removed", extra=facts)


def _clear(folder: Path) -> None:
    """Remove what a former run left half written or half removed."""
    for path in _listed(folder):
        if _LEFT.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _numbered(folder: Path) -> dict[int, Path]:
    """Return the checkpoints in a folder by their numbers."""
    found = {}
    for path in _listed(folder):
        name = _NAME.fullmatch(path.name)
        if name is not None:
            found[int(name[1])] = path
    return found


def _listed(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing if it isn't there, or can't be read."""
    try:
        return [folder / name for name in os.listdir(folder)]  # noqa: PTH208 - raises at once
    except OSError:
        return []
