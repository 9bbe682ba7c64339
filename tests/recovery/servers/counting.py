"""Which copies an owner waits for before it reports something durable.

A copy is counted before it is proposed, and until no set that names it can be in the registry:
that is the one that was written last, and all that were proposed since.
"""

from tests.recovery.protocol import CopyName


class Counting:
    """What one owner knows of its copies in a term, or in several that follow each other.

    ``inherited`` are copies of the owner before, which the registry still names: nothing is
    reported until others were written in their place. ``floor`` is what a copy must hold before
    it is proposed.
    """

    def __init__(self, inherited: frozenset[CopyName], *, floor: int) -> None:
        self.inherited = inherited
        self.registered: frozenset[CopyName] = frozenset()
        self.positions: dict[CopyName, int] = {}  # of the followers that are counted
        self.grace_is_over = False  # nobody follows, and none will for a while
        self.number = 0
        self.written_number = 0  # of the newest proposal that is known to be written
        self.floor = floor
        self.reported = -1
        self._dropped: set[CopyName] = set()
        self._open: dict[int, frozenset[CopyName]] = {}  # proposals that may be written yet
        self._older: frozenset[CopyName] = frozenset()

    @property
    def is_settled(self) -> bool:
        """Return whether the registry names what it is known to, and nothing else."""
        return not self._open and not self._older and not self.inherited

    def may_name(self, name: CopyName) -> bool:
        """Return whether the registry may name a copy."""
        sets = [self.registered, self._older, *self._open.values()]
        return any(name in each for each in sets)

    def begin_term(self) -> None:
        """Number proposals anew; those of before can't be written any more, but may be."""
        self._older = self._older.union(*self._open.values())
        self._open, self.number, self.written_number = {}, 0, 0

    def count(self, name: CopyName, position: int) -> None:
        """Count a follower, or learn how far it is."""
        self.positions[name] = max(position, self.positions.get(name, -1))

    def drop(self, name: CopyName, *, forgets: bool) -> None:
        """Don't want a follower any more."""
        if name not in self.positions:
            return
        if forgets or not self.may_name(name):
            del self.positions[name]
        else:
            self._dropped.add(name)

    def wanted(self) -> set[CopyName]:
        """Return the followers that are counted, and weren't dropped."""
        return set(self.positions) - self._dropped

    def propose(self, names: frozenset[CopyName]) -> int:
        """Return the number of a proposal; it is repeated until it is written."""
        if self._open.get(self.number) != names:
            self.number += 1
            self._open[self.number] = names
        return self.number

    def written(self, number: int) -> None:
        """Take note of what the registry names; what was proposed before it never will be."""
        if number not in self._open:
            return
        had_any, self.registered = bool(self.registered), self._open[number]
        self.written_number = number
        self._open = {each: names for each, names in self._open.items() if each > number}
        self._older = self.inherited = frozenset()
        if had_any and not self.registered:
            self.grace_is_over = False
        for name in [each for each in self._dropped if not self.may_name(each)]:
            self._dropped.discard(name)
            self.positions.pop(name, None)
