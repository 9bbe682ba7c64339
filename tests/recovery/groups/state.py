"""The state machine of a group: a function of its commands, and nothing else."""

import copy
from collections import Counter
from typing import Self

from tests.recovery.protocol import Command, Kind, Part, Reply


class Window:
    """The changes of one worker's incarnation that a group has taken."""

    def __init__(self, incarnation: int, seen: set[int]) -> None:
        self.incarnation = incarnation
        self.seen = seen

    def copied(self) -> "Window":
        """Return a copy."""
        return Window(self.incarnation, set(self.seen))


class GroupState:
    """What a snapshot holds. ``apply`` alone changes it.

    ``applied`` and ``parts`` are for the checks: no decision of the protocol reads them.
    """

    def __init__(self, group: int) -> None:
        self.group = group
        self.position = 0
        self.term = 0
        self.windows: dict[int, Window] = {}
        self.fences: dict[int, int] = {}  # rank to its oldest incarnation that isn't refused
        self.lost: dict[int, int] = {}  # workers that won't come back, and since which position
        self.applied: Counter[tuple[int, int, int]] = Counter()
        self.parts: dict[tuple[int, int, int], Part] = {}

    def copied(self) -> Self:
        """Return a copy that shares nothing which changes."""
        image = copy.copy(self)
        image.windows = {rank: window.copied() for rank, window in self.windows.items()}
        image.fences = dict(self.fences)
        image.lost = dict(self.lost)
        image.applied = self.applied.copy()
        image.parts = dict(self.parts)
        return image

    def forget_windows(self) -> None:
        """Break a rule: lose which changes were taken."""
        self.windows = {
            rank: Window(window.incarnation, set()) for rank, window in self.windows.items()
        }

    def fresh(self, rank: int, sequence: int) -> bool:
        """Return whether a change hasn't been taken yet."""
        return rank not in self.windows or sequence not in self.windows[rank].seen

    def incarnation(self, rank: int) -> int:
        """Return the incarnation that a group knows of a worker, or zero."""
        return self.windows[rank].incarnation if rank in self.windows else 0

    def incarnations(self) -> dict[int, int]:
        """Return the incarnations of all workers that have joined."""
        return {rank: window.incarnation for rank, window in self.windows.items()}

    def durable(self, rank: int, positions: dict[tuple[int, int], int], upto: int) -> int:
        """Return a worker's highest sequence with all before it at a position up to ``upto``.

        What has no position is in the snapshot that the copy began with.
        """
        seen = self.windows[rank].seen if rank in self.windows else set()
        sequence = 0
        while sequence + 1 in seen and positions.get((rank, sequence + 1), 0) <= upto:
            sequence += 1
        return sequence

    def apply(self, command: Command) -> Reply | None:
        """Execute a command."""
        self.position += 1
        if command.kind is Kind.TERM:
            self.term = command.term
            self._begin_term()
            return None
        if command.kind is Kind.FENCE:
            self.fences[command.rank] = command.incarnation
            return None
        if command.kind is Kind.LOSE:
            self.lost[command.rank] = self.position
            return None
        if command.kind is Kind.JOIN:
            window = self.windows.get(command.rank)
            if window is None or window.incarnation < command.incarnation:
                self._join(command.rank, command.incarnation)
            return None
        if command.sequence is not None:
            self.windows[command.rank].seen.add(command.sequence)
            change = self.name_of(command.rank, command.incarnation, command.sequence)
            self.applied[change] += 1
            self.parts[change] = command.part
        return self._execute(command)

    def name_of(self, rank: int, incarnation: int, sequence: int) -> tuple[int, int, int]:
        """Return what names a change."""
        return rank, incarnation, sequence

    def _begin_term(self) -> None:
        """Forget what was valid in the former term only."""

    def _join(self, rank: int, incarnation: int) -> None:
        self.windows[rank] = Window(incarnation, set())

    def _execute(self, command: Command) -> Reply | None:
        """Execute what a mode has beside terms and joins."""
        raise NotImplementedError
