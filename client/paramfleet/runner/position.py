"""A worker's place in its training data: the epoch, and the batches of it that were used.

A checkpoint has it of each worker, and a training that begins with the same epoch goes on
behind the last batch that was used. Text that is read by slots goes on where each file was; of
any other reader so many batches are read and left out.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Protocol

from typing_extensions import runtime_checkable

from paramfleet.config.errors import NotYetError
from paramfleet.data.progress import OtherDataError
from paramfleet.runner.batches import Batch, train_batches
from paramfleet.runner.config.settings import RunnerSettings
from paramfleet.runner.models.model import Feeds, Model
from paramfleet.session.all_or_none import NOT_FITTING
from paramfleet_shared.files.documents import whole

__all__ = ["TrainData"]

log = logging.getLogger(__name__)

_VERSION = 1


@runtime_checkable
class _Resumable(Protocol):
    """Batches that know where they are, and go on from there."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, *, inside: bool) -> None: ...
    def reshard(self, states: Sequence[Any], rank: int, size: int) -> Any | None: ...


class TrainData:
    """This worker's training batches, as the network takes them; read anew each epoch.

    Args:
        model: Makes feeds of batches.
        batches: Those of its files.
        files: Which these are.
    """

    def __init__(
        self, model: Model[Any], batches: Iterable[Batch], files: Sequence[str]
    ) -> None:
        self._model = model
        self._batches = batches
        runner = model.config.runner
        skips = runner.split_batches and not runner.shares_steps  # every n-th is its own
        self._resumable = batches if isinstance(batches, _Resumable) and not skips else None
        self._key = _key(runner, files)
        self._epoch = 0
        self._used = 0
        self._saved: Mapping[str, Any] | None = None
        """A loaded position, until an epoch begins."""
        self.loaded_epoch: int | None = None
        """The epoch of a checkpoint, though this worker may not go on inside it; None if none
        was loaded."""

    def begin(self, epoch: int) -> int:
        """Say which epoch comes next; return how many of its batches were used before.

        A loaded position in another epoch, in other files or of another reader is left out,
        and the log says so: a model may begin with parameters trained on other data.
        """
        saved, self._saved = self._saved, None
        self._epoch, self._used = epoch, 0
        if saved is None:
            return 0
        reason = ""
        if saved["key"] != self._key:
            reason = "it is of other files, or of another reader, batch size or seed"
        elif saved["epoch"] != epoch:
            reason = f"it is of epoch {saved['epoch']}, and the next one is {epoch}"
        elif self._resumable is None:
            self._used = saved["batches"]
        elif saved["data"] is None:
            reason = "it says nothing of where its reader was"
        else:
            try:
                self._resumable.load_state_dict(saved["data"], inside=saved["batches"] > 0)
                self._used = saved["batches"]
            except OtherDataError as error:
                reason = str(error)
            except NOT_FITTING as error:
                reason = f"it is malformed ({error!r})"
        if reason and saved["batches"]:
            _warn(reason)
        return self._used

    def __iter__(self) -> Iterator[Feeds]:
        """Yield the batches of the epoch that has begun, without those used before.

        If it has fewer than were used, it begins anew, and the log says so.
        """
        for batch in self._left():
            self._used += 1
            yield self._model.create_feeds(batch)
        self._epoch, self._used = self._epoch + 1, 0

    def _left(self) -> Iterator[Batch]:
        batches = iter(train_batches(self._model.config, self._batches))
        if self._resumable is None:
            found = sum(1 for _ in islice(batches, self._used))
            if found < self._used:
                _warn(f"it is after batch {self._used}, but the epoch has {found}")
                self._used = 0
                return iter(train_batches(self._model.config, self._batches))
        return batches

    def state_dict(self) -> dict[str, Any]:
        """Return where this worker is, behind the batch that was yielded last."""
        if self._saved is not None:
            return dict(self._saved)
        data = None
        if self._resumable is not None:
            with suppress(NotYetError):  # nothing is in memory
                data = self._resumable.state_dict()
        return self._state(self._epoch, self._used, data)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, if the next epoch is its own.

        Raises:
            ValueError: if it is no such state.
        """
        if state["version"] != _VERSION or type(state["key"]) is not str:
            rule = f"is no position of version {_VERSION}"
            raise ValueError(rule)
        self.loaded_epoch = whole(state["epoch"], "epoch")
        whole(state["batches"], "batches")
        self._saved = {name: state[name] for name in self._state(0, 0, None)}

    def reshard(
        self, states: Sequence[Mapping[str, Any]], rank: int, size: int
    ) -> dict[str, Any] | None:
        """Return where this worker goes on after workers of another number.

        None where that doesn't follow from their states, as of data in memory, or of another
        reader: then the epoch begins anew.
        """
        epoch = self.loaded_epoch = min(int(state["epoch"]) for state in states)
        if self._resumable is None or any(state["data"] is None for state in states):
            return None
        data = None
        with suppress(OtherDataError):  # of another reader
            data = self._resumable.reshard([state["data"] for state in states], rank, size)
        if data is None:
            return None
        inside = any(state["batches"] or state["epoch"] != epoch for state in states)
        return self._state(epoch, int(inside), data)

    def _state(self, epoch: int, used: int, data: Any) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "key": self._key,
            "epoch": epoch,
            "batches": used,
            "data": data,
        }


def _warn(reason: str) -> None:
    facts = {"reason": reason, "remedy": "the epoch starts from its beginning"}
    log.warning("worker.position_not_taken", extra=facts)


def _key(runner: RunnerSettings, files: Sequence[str]) -> str:
    """Return what two trainings must have alike to read the same batches, as SHA-256."""
    parts = [
        runner.reader_type,
        runner.train_reader_path,
        runner.pipe_command,
        runner.train_batch_size,
        runner.seed,
        runner.num_workers,
        runner.split_batches,
        runner.split_file_list,
        *files,
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()
