"""A consistent cut: all groups hold changes for one exchange of messages.

Each owner says what it has seen of each worker. The greatest of these are the limits: every
group executes what it lacks up to them, takes its image, and releases. A cut that isn't
complete after a while is given up, and tried again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.recovery.defects import Defect
from tests.recovery.protocol import GROUPS, SYNCHRONOUS, CutOrder
from tests.recovery.servers.copies import Hold, MemoryCopy
from tests.recovery.world import World, violated

Change = tuple[int, int, int]


@dataclass
class Cut:
    """What the leader of a cut has heard so far."""

    number: int
    seen: dict[int, dict[int, int]] = field(default_factory=dict)
    incarnations: dict[int, dict[int, int]] = field(default_factory=dict)
    images: dict[int, frozenset[Change]] = field(default_factory=dict)
    limits: Mapping[int, int] | None = None


class Cuts:
    """The leader of cuts, and what owners do for it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cut: Cut | None = None
        self._number = 0

    def step(self) -> None:
        """Begin a cut, judge a complete one, or give one up."""
        world = self._world
        if self._cut is None:
            if world.mode in SYNCHRONOUS or world.quiet or world.random.random() < 0.9:
                return
            self._number += 1
            self._cut = Cut(self._number)
            self._order(None)
        elif len(self._cut.images) == len(GROUPS):
            self._judge(self._cut)
            self._cut = None
        elif world.quiet or world.random.random() < 0.05:
            self._give_up()

    def ordered(self, order: CutOrder) -> None:
        """An owner holds its changes, or learns up to where it lets them through."""
        pserver, cut = self._world.pservers[order.to], self._cut
        copy = pserver.copies.get(order.group)
        if cut is None or cut.number != order.number or not pserver.up or copy is None:
            return
        if copy.role != "owner" or copy.term != order.term:
            return
        if self._world.lacks(Defect.CUT_WITHOUT_HOLD):
            cut.images[order.group] = frozenset(copy.state.applied)
        elif order.limits is None:
            self._hold(order, copy, cut)
        elif copy.hold is not None and order.number == copy.last_cut:
            copy.hold.limits = order.limits
            self.try_image(order.group, copy)

    def try_image(self, group: int, copy: MemoryCopy) -> None:
        """Take the image of a group once it has executed all up to the limits."""
        assert copy.hold is not None
        limits, cut = copy.hold.limits, self._cut
        assert limits is not None
        expected = next(iter(cut.incarnations.values()), None) if cut is not None else None
        if cut is None or copy.state.incarnations() != expected or cut.limits is None:
            copy.hold = None
            return
        windows = copy.state.windows
        if all(_has_all(windows[rank].seen, limit) for rank, limit in limits.items()):
            cut.images[group] = frozenset(copy.state.applied)
            copy.hold = None

    def _hold(self, order: CutOrder, copy: MemoryCopy, cut: Cut) -> None:
        if order.number <= copy.last_cut:
            return  # a copy of the message: one hold for a cut
        copy.hold, copy.last_cut = Hold(), order.number
        windows = copy.state.windows
        seen = {rank: max(window.seen, default=0) for rank, window in windows.items()}
        cut.seen[order.group] = seen
        cut.incarnations[order.group] = copy.state.incarnations()
        if len(cut.seen) < len(GROUPS) or cut.limits is not None:
            return
        first, *others = cut.incarnations.values()
        if any(other != first for other in others):
            self._give_up()  # a worker joins just now
            return
        cut.limits = {rank: max(each[rank] for each in cut.seen.values()) for rank in first}
        self._order(cut.limits)

    def _order(self, limits: Mapping[int, int] | None) -> None:
        for group in GROUPS:
            entry = self._world.registry[group]
            order = CutOrder(
                group=group,
                to=entry.owner[0],
                term=entry.term,
                number=self._number,
                limits=limits,
            )
            self._world.send(order)

    def _give_up(self) -> None:
        self._cut = None
        for pserver in self._world.pservers:
            for copy in pserver.copies.values():
                copy.hold = None

    def _judge(self, cut: Cut) -> None:
        """Compare the images; what a worker died over may be in some groups only."""
        dead = {(worker.rank, worker.incarnation) for worker in self._world.dead}
        reported = self._world.reported
        first, second = (cut.images[group] for group in GROUPS)
        torn = [
            change
            for change in first ^ second
            if change[:2] not in dead or all((group, *change) in reported for group in GROUPS)
        ]
        if torn:
            violated("cut", f"{sorted(torn)} in one group only")
        self._world.counts["cuts"] += 1


def _has_all(seen: set[int], limit: int) -> bool:
    return all(sequence in seen for sequence in range(1, limit + 1))
