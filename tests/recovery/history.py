"""What owners ever did, also in terms that were rolled back: only the checks read it."""

from tests.recovery.protocol import LEAD, SYNCHRONOUS, Kind, Request
from tests.recovery.workers.tables import AsyncWorker
from tests.recovery.world import World, violated


class History:
    """Checks what owners of registered terms execute and admit."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._newest: dict[tuple[int, int], int] = {}
        self._finished: dict[tuple[int, int, int], set[int]] = {}

    def joined(self, request: Request) -> None:
        """An incarnation has joined: older ones are fenced for ever."""
        place = request.group, request.rank
        self._newest[place] = max(request.incarnation, self._newest.get(place, 0))

    def executed(self, request: Request, *, acts: bool) -> None:
        """A change was executed; in sync, a part has the same name in every incarnation.

        An owner that was replaced executes, too, and its log may reach the next one.
        """
        newest = self._newest.get((request.group, request.rank), 0)
        if acts and request.incarnation < newest and self._world.mode not in SYNCHRONOUS:
            facts = f"{request.rank}:{request.incarnation} changed group {request.group}"
            violated("fenced", facts)
        if request.kind in {Kind.PUSH, Kind.VOID}:
            name = request.group, request.rank, request.incarnation
            self._finished.setdefault(name, set()).add(request.part.step)

    def admitted(self, request: Request) -> None:
        """A step may begin: no other worker is too far behind, as far as was ever executed."""
        for worker in self._world.workers:
            if not isinstance(worker, AsyncWorker) or worker.first_step is None:
                continue
            if worker.rank == request.rank or worker.has_left:
                continue
            name = request.group, worker.rank, worker.incarnation
            finished, steps = self._finished.get(name, set()), worker.first_step
            while steps in finished:
                steps += 1
            if request.step - steps > LEAD:
                facts = f"step {request.step} of {request.rank}, {worker.rank} is at {steps}"
                violated("gate", f"{facts}, in group {request.group}")
