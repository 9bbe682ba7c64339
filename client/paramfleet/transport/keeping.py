"""Where this worker is, as its changes say: for a process that is started in its place.

The first pserver keeps it with the change. So a worker that comes back begins behind exactly
the changes that are there.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.net.wire.identity import PROGRESS
from paramfleet_shared.net.wire.message import Message

__all__ = ["Keeper", "State", "with_state"]

State = NDArray[np.uint8]


class Keeper:
    """Takes this worker's state where others may take its place; of the training thread."""

    def __init__(self) -> None:
        self._take: Callable[[], bytes] | None = None
        self.has_left = False
        """Whether the worker whose place this process has taken no more steps."""

    @property
    def is_on(self) -> bool:
        """Return whether changes say where this worker is."""
        return self._take is not None

    def begin(self, take: Callable[[], bytes]) -> None:
        """Say it with every change from now on.

        Args:
            take: Returns where this worker is at the end of the step that is being taken.
        """
        self._take = take

    def state(self) -> State | None:
        """Return where this worker is at the end of this step; None if nobody asks."""
        return None if self._take is None else np.frombuffer(self._take(), np.uint8)


def with_state(messages: list[Message], state: State | None) -> list[Message]:
    """Return a change that also says where its worker is; the first pserver is told."""
    if state is None:
        return messages
    first, *others = messages
    tensors = {**first.tensors, PROGRESS: state}
    return [Message(fields=first.fields, tensors=tensors), *others]
