"""A pserver's answers to the requests of workers."""

from tests.recovery.cuts import Cuts
from tests.recovery.defects import Defect
from tests.recovery.groups.geo import GeoState
from tests.recovery.groups.localsgd import LocalSgdState
from tests.recovery.groups.sync import SyncState
from tests.recovery.groups.tables import TableState
from tests.recovery.history import History
from tests.recovery.protocol import (
    EMPTY,
    Answer,
    Command,
    Error,
    Kind,
    Outcome,
    Progress,
    Reply,
    Request,
)
from tests.recovery.servers.copies import MemoryCopy
from tests.recovery.servers.durability import durable_position
from tests.recovery.world import World

REFUSED = 0.1  # of the pushes, as when a table has no room


class Serving:
    """Executes requests whose term is the owner's."""

    def __init__(self, world: World, cuts: Cuts) -> None:
        self._world = world
        self._history = History(world)
        self._cuts = cuts

    def requested(self, request: Request) -> None:
        """Execute a request and answer it; what is parked isn't answered: it comes again."""
        pserver = self._world.pservers[request.to]
        copy = pserver.copies.get(request.group)
        if not pserver.up:
            return
        checked = not self._world.lacks(Defect.NO_TERM_CHECK)
        if copy is None or copy.role == "follower" or (checked and _another(copy, request)):
            self._answer(request, copy, Outcome(error="moved"))
        elif copy.fenced_for is None or not checked:
            self._serve(request, copy)

    def _serve(self, request: Request, copy: MemoryCopy) -> None:
        known = copy.state.incarnation(request.rank)
        if request.incarnation < max(known, copy.state.fences.get(request.rank, 0)):
            return  # an older incarnation: nobody waits for the error
        if request.rank in copy.state.lost and not self._world.lacks(Defect.LOST_IS_TAKEN):
            return
        if request.kind is Kind.JOIN:
            self._join(request, copy, known)
        elif request.incarnation > known:
            self._answer(request, copy, Outcome(error="unknown"))
        elif request.kind is Kind.PULL:
            self._pull(request, copy)
        elif not self._held(request, copy):
            self._change(request, copy)

    def _join(self, request: Request, copy: MemoryCopy, known: int) -> None:
        state = copy.state
        if known < request.incarnation:
            copy.execute(Command(Kind.JOIN, request.rank, request.incarnation))
            if self._world.owner(request.group) is copy:
                self._history.joined(request)
        step = 0
        if isinstance(state, SyncState):
            step = state.next_step(request.rank)
        elif isinstance(state, TableState):
            step = state.gate.next_step(request.rank)
        self._answer(request, copy, Outcome(next_step=step, begun=state.term))

    def _pull(self, request: Request, copy: MemoryCopy) -> None:
        """Answer a pull, or park it until its step may begin."""
        state = copy.state
        if isinstance(state, SyncState):
            if request.part.step > state.known.get(request.rank, 0):
                copy.execute(Command(Kind.KNOW, request.rank, part=request.part))
            value = state.value_at(request.step)
            if value is not None:
                self._answer(request, copy, Outcome(value=value))
        elif isinstance(state, TableState) and state.gate.admits(request.rank, request.step):
            if self._world.owner(request.group) is copy:
                self._history.admitted(request)
            seen = state.windows[request.rank].seen
            self._answer(request, copy, Outcome(unseen=request.expected - seen))

    def _held(self, request: Request, copy: MemoryCopy) -> bool:
        if copy.hold is None or request.sequence is None:
            return False
        limits = copy.hold.limits
        return limits is None or request.sequence > limits.get(request.rank, 0)

    def _change(self, request: Request, copy: MemoryCopy) -> None:
        state, sequence = copy.state, request.sequence
        assert sequence is not None
        reply: Reply | None = None
        if state.fresh(request.rank, sequence):
            if error := self._refusal(request, copy):
                self._answer(request, copy, Outcome(error=error))
                return
            if isinstance(state, SyncState) and state.too_early(sequence):
                return
            reply = copy.execute(_command(request))
            self._history.executed(request, acts=self._world.owner(request.group) is copy)
        elif isinstance(state, LocalSgdState):
            reply = state.whole()
        elif isinstance(state, GeoState):
            listen = Command(
                Kind.LISTEN, request.rank, request.incarnation, acked=request.acked
            )
            reply = copy.execute(listen)
        if copy.hold is not None and copy.hold.limits is not None:
            self._cuts.try_image(request.group, copy)
        self._answer(request, copy, Outcome(reply=reply))

    def _refusal(self, request: Request, copy: MemoryCopy) -> Error:
        """Return why a change isn't executed; it has no effect then, on the window neither."""
        world = self._world
        if world.pservers[request.to].disk_full:
            return "disk full"
        if request.kind is not Kind.PUSH or world.quiet or world.random.random() >= REFUSED:
            return ""
        if world.lacks(Defect.REFUSAL_TAKES_SEQUENCE):
            copy.execute(_command(request)._replace(kind=Kind.VOID, part=EMPTY))
        world.counts["refusals"] += 1
        return "refused"

    def _answer(self, request: Request, copy: MemoryCopy | None, outcome: Outcome) -> None:
        term, progress = request.term, Progress()
        if copy is not None and copy.role != "follower" and not outcome.error:
            upto = durable_position(self._world, copy)
            durable = copy.state.durable(request.rank, copy.positions, upto)
            term, progress = copy.term, Progress(copy.state.position, upto, durable)
        self._world.send(Answer(request, term, outcome, progress))


def _another(copy: MemoryCopy, request: Request) -> bool:
    return copy.role != "owner" or copy.term != request.term


def _command(request: Request) -> Command:
    return Command(
        request.kind,
        request.rank,
        request.incarnation,
        request.sequence,
        request.part,
        request.acked,
    )
