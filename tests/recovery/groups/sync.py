"""A group of a job in sync: whole steps, applied in the order of ranks."""

from collections.abc import Mapping
from typing import Self

from tests.recovery.groups.state import GroupState, Window
from tests.recovery.protocol import GROUPS, WORKERS, Command, Kind, Reply, mix
from typing_extensions import override

AHEAD = 4  # a push of a later step is too early


class SyncState(GroupState):
    """A value with its version, the parts of steps that aren't whole, and older values."""

    def __init__(self, group: int, *, kept: int, may_lose: bool) -> None:
        super().__init__(group)
        self.version = 0
        self.value = mix(group)
        self.reservoir: dict[int, dict[int, int]] = {}
        self.counted: dict[int, set[int]] = {}  # for the checks: whose parts are in a step
        self.known: dict[int, int] = {}  # how many parts of a worker all groups have
        self.ends: dict[int, int] = {}  # lost workers, and the first step without them
        self._may_lose = may_lose
        self._older: dict[int, int] = {}
        self._kept = kept

    @override
    def copied(self) -> Self:
        image = super().copied()
        image.reservoir = {step: dict(parts) for step, parts in self.reservoir.items()}
        image.counted = dict(self.counted)
        image.known = dict(self.known)
        image.ends = dict(self.ends)
        image._older = dict(self._older)
        return image

    @override
    def fresh(self, rank: int, sequence: int) -> bool:
        step = sequence - 1  # the name of a part is its rank and step, in every incarnation
        if step < self.version or rank in self.reservoir.get(step, {}):
            return False
        return super().fresh(rank, sequence)

    @override
    def name_of(self, rank: int, incarnation: int, sequence: int) -> tuple[int, int, int]:
        return rank, 0, sequence

    def next_step(self, rank: int) -> int:
        """Return the first step that the group lacks a worker's part of."""
        step = 0
        while not self.fresh(rank, step + 1):
            step += 1
        return step

    def too_early(self, sequence: int) -> bool:
        """Return whether a part is of a step that is too far ahead."""
        return sequence - 1 > self.version + AHEAD

    def value_at(self, version: int) -> int | None:
        """Return the value of a version, if it is there."""
        return self.value if version == self.version else self._older.get(version)

    @override
    def _join(self, rank: int, incarnation: int) -> None:
        seen = self.windows[rank].seen if rank in self.windows else set()
        self.windows[rank] = Window(incarnation, seen)

    @override
    def _execute(self, command: Command) -> Reply | None:
        if command.kind is Kind.KNOW:
            self.known[command.rank] = command.part.step
            self._apply_whole()
            return None
        if command.kind is Kind.END:
            self.ends[command.rank] = command.part.step
            self._apply_whole()
            return None
        assert command.sequence is not None
        parts = self.reservoir.setdefault(command.sequence - 1, {})
        parts[command.rank] = command.part.gradient
        self._apply_whole()
        return None

    def _apply_whole(self) -> None:
        while self._is_whole(self.reservoir.get(self.version, {})):
            self._older[self.version] = self.value
            self._older.pop(self.version - self._kept, None)
            parts = {
                rank: gradient
                for rank, gradient in sorted(self.reservoir.pop(self.version).items())
                if self._counts(rank)
            }
            self.counted[self.version] = set(parts)
            for gradient in parts.values():
                self.value = mix(self.value, gradient)
            self.version += 1

    def _is_whole(self, parts: Mapping[int, int]) -> bool:
        """Return whether all parts are there, and will be in all groups if a worker is lost."""
        members = [rank for rank in range(WORKERS) if self._counts(rank)]
        known = all(
            rank in self.ends or self.known.get(rank, 0) > self.version for rank in members
        )
        return parts.keys() >= set(members) and (known or not self._may_lose)

    def _counts(self, rank: int) -> bool:
        """Return whether a worker has a part in the next step."""
        return self.version < self.ends.get(rank, self.version + 1)


def sequential(steps: int) -> list[int]:
    """Return what the groups hold when all steps have run, one after the other."""
    values = [mix(group) for group in GROUPS]
    for step in range(steps):
        gradients = [
            [mix(rank, step, group, *values) for rank in range(WORKERS)] for group in GROUPS
        ]
        for group in GROUPS:
            for gradient in gradients[group]:
                values[group] = mix(values[group], gradient)
    return values
