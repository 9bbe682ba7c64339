"""A handover: the owner stops, and the process that has all of it asks for the next term.

The owner goes on when the other one says that it won't ask, or under a term of its own: the
coordinator gives each term to one of them only, since both say which one they go on from.
"""

from tests.recovery.defects import Defect
from tests.recovery.protocol import GROUPS, Fence, Fenced, Succeed
from tests.recovery.servers.copies import Attempts, MemoryCopy
from tests.recovery.servers.durability import NEAR, follow
from tests.recovery.world import World


class Handovers:
    """Moves groups between living pservers."""

    def __init__(self, world: World) -> None:
        self._world = world

    def step(self) -> None:
        """Plan a move, or take its next step at the target."""
        world = self._world
        group = world.random.choice(GROUPS)
        entry, copy = world.registry[group], world.owner(group)
        if world.settling or copy is None:
            return
        if entry.target is None:
            self._plan(group, copy)
            return
        successor = world.copy_named(group, entry.target)
        follows = entry.target.pserver in copy.followers
        if successor is None or (not follows and copy.fenced_for is None):
            entry.target = None
        else:
            self._succeed(group, copy, successor)

    def _plan(self, group: int, copy: MemoryCopy) -> None:
        """Choose where a group moves, once copies of its owner's are registered."""
        world = self._world
        if copy.counting.inherited or world.random.random() < 0.8:
            return
        free = world.free_pservers(group)
        near = [each.name for each in copy.followers.values()]
        if not (free or near) or not world.spend_fault():
            return
        if near and (not free or world.random.random() < 0.5):
            name = world.random.choice(near)
        else:
            name = follow(world, group, copy, world.random.choice(free), is_replica=False)
        world.registry[group].target = name

    def _succeed(self, group: int, owner: MemoryCopy, copy: MemoryCopy) -> None:
        """Ask the owner to stop, wait for its last command, and ask for the term."""
        world, attempts = self._world, copy.attempts
        early = world.lacks(Defect.HANDOVER_WITHOUT_TAIL)
        has_all = attempts.fenced is not None and copy.state.position >= attempts.fenced
        if attempts.has_asked or has_all or (attempts.fenced is not None and early):
            attempts.has_asked = True
            process = copy.name[1:3]
            world.send(Succeed(group=group, process=process, succeeds=attempts.term))
        elif world.random.random() < 0.15 and not world.quiet:
            self._fence(group, owner, copy, undo=True)
            copy.attempts = Attempts(attempts.number + 1, was_fenced=attempts.was_fenced)
        elif owner.state.position - copy.state.position <= NEAR or early:
            self._fence(group, owner, copy, undo=False)

    def _fence(self, group: int, owner: MemoryCopy, copy: MemoryCopy, *, undo: bool) -> None:
        fence = Fence(
            group=group,
            to=self._world.registry[group].owner[0],
            origin=copy.name,
            term=copy.term,
            attempt=copy.attempts.number,
            undo=undo,
        )
        self._world.send(fence)

    def asked(self, message: Fence) -> None:
        """An owner stops, or goes on after the attempt for which it has stopped."""
        pserver = self._world.pservers[message.to]
        copy = pserver.copies.get(message.group)
        if not pserver.up or copy is None or copy.role != "owner":
            return
        if not copy.since <= message.term <= copy.term:
            return
        attempt = message.origin, message.attempt
        if message.undo:
            copy.undone[message.origin] = message.attempt
            late = self._world.lacks(Defect.LATE_UNDO_IS_TAKEN)
            if copy.fenced_for == attempt or (late and copy.fenced_for is not None):
                copy.reopen()
            return
        if copy.fenced_for is None and message.attempt > copy.undone.get(message.origin, 0):
            copy.fenced_for = attempt
        if copy.fenced_for == attempt:
            fenced = Fenced(
                group=message.group,
                to=message.origin,
                term=copy.term,
                attempt=message.attempt,
                position=copy.state.position,
            )
            self._world.send(fenced)
            if self._world.lacks(Defect.FENCED_GOES_ON):
                copy.reopen()

    def fenced(self, message: Fenced) -> None:
        """A successor learns where the owner has stopped."""
        copy = self._world.copy_named(message.group, message.to)
        if copy is None or copy.role != "follower" or copy.term != message.term:
            return
        if copy.attempts.number == message.attempt and not copy.attempts.has_asked:
            copy.attempts.fenced, copy.attempts.term = message.position, message.term
            copy.attempts.was_fenced = True

    def go_on(self) -> None:
        """An owner that has stopped, and learns no outcome, asks for a term of its own."""
        world = self._world
        pserver = world.random.choice(world.pservers)
        for group, copy in pserver.copies.items() if pserver.up else ():
            if copy.role != "owner" or copy.fenced_for is None:
                continue
            process = pserver.index, pserver.incarnation
            world.send(Succeed(group=group, process=process, succeeds=copy.term))
