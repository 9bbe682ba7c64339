"""One run: a random schedule of events and faults, then a quiet end in which all must drain."""

from collections.abc import Callable
from typing import assert_never

from tests.recovery.checks import check_end
from tests.recovery.cuts import Cuts
from tests.recovery.defects import Defect
from tests.recovery.faults import Faults
from tests.recovery.protocol import (
    GROUPS,
    WORKERS,
    Answer,
    Append,
    Appended,
    CutOrder,
    Durability,
    Fence,
    Fenced,
    Message,
    Mode,
    Propose,
    Request,
    Succeed,
    Written,
)
from tests.recovery.servers.coordinator import Coordinator
from tests.recovery.servers.copies import MemoryCopy
from tests.recovery.servers.durability import Establishing
from tests.recovery.servers.handover import Handovers
from tests.recovery.servers.logs import Logs
from tests.recovery.servers.ownership import Owners
from tests.recovery.servers.serving import Serving
from tests.recovery.workers.of_mode import new_worker
from tests.recovery.world import World, violated

EVENTS = 16_000  # a run that needs more doesn't end
FAULTY_EVENTS = 2_000
FEWEST_EVENTS = 200
MOST_MESSAGES = 24


class Run:
    """The same seed gives the same events."""

    def __init__(
        self, seed: int, mode: Mode, durability: Durability, defects: frozenset[Defect]
    ) -> None:
        self.world = World(seed, mode, durability, defects)
        self.world.workers += [new_worker(self.world, rank, 1) for rank in range(WORKERS)]
        self._cuts = Cuts(self.world)
        self._serving = Serving(self.world, self._cuts)
        self._logs = Logs(self.world)
        self._coordinator = Coordinator(self.world)
        self._handovers = Handovers(self.world)

    def play(self) -> None:
        """Run to the end, or to the first promise that is broken."""
        world = self.world
        events = self._events()
        chosen, usual = list(events), list(events.values())
        # Each run has some events often and others seldom: together they reach more states.
        weights = [weight * world.random.choice([0.1, 0.3, 1, 1, 3]) for weight in usual]
        for count in range(EVENTS):
            if count == FAULTY_EVENTS:
                world.quiet, weights = True, usual
            if len(world.messages) > MOST_MESSAGES:
                self._deliver()
                continue
            world.random.choices(chosen, weights)[0]()
            if count > FEWEST_EVENTS and self._has_ended():
                self._lose_undurable()
                check_end(world)
                world.counts["events"] = count
                return
        violated("stuck", self._state())

    def _events(self) -> dict[Callable[[], object], float]:
        """Return what may happen next, with its usual weight."""
        establishing, owners = Establishing(self.world), Owners(self.world)
        faults = Faults(self.world)
        return {
            self._deliver: 50,
            self._work: 26,
            self._logs.write: 5,
            self._logs.ship: 6,
            owners.learn: 3,
            establishing.step: 5,
            owners.recover: 3,
            faults.restart: 1.5,
            self._logs.snapshot: 1,
            faults.crash: 0.5,
            faults.fill_disk: 0.3,
            owners.take_over: 0.35,
            self._handovers.step: 2.5,
            self._handovers.go_on: 0.3,
            establishing.end_grace: 0.1,
            self._coordinator.save: 0.1,
            self._coordinator.restore: 0.1,
            self._coordinator.settle: 1,
            faults.kill_worker: 0.12,
            faults.kill_machine: 0.3,
            self._cuts.step: 1.5,
        }

    def _work(self) -> None:
        world = self.world
        old = [] if world.quiet else world.believed_dead
        worker = world.random.choice([*world.workers, *old])
        if not worker.done:
            worker.work()

    def _deliver(self) -> None:
        """Deliver a message; before the quiet end in any order, and some never or twice."""
        world = self.world
        if not world.messages:
            return
        at = 0 if world.quiet else world.random.randrange(len(world.messages))
        message = world.messages.pop(at)
        if not world.quiet:
            chance = world.random.random()
            if chance < 0.04:
                return
            if chance < 0.10:
                world.send(message)
        self._handle(message)

    def _handle(self, message: Message) -> None:
        match message:
            case Request():
                self._serving.requested(message)
            case Answer():
                for worker in (*self.world.workers, *self.world.believed_dead):
                    if worker.rank == message.request.rank:
                        worker.answered(message)
            case Append():
                self._logs.append(message)
            case Appended():
                self._logs.appended(message)
            case CutOrder():
                self._cuts.ordered(message)
            case _:
                self._handle_ownership(message)

    def _handle_ownership(self, message: Propose | Written | Fence | Fenced | Succeed) -> None:
        match message:
            case Propose():
                self._coordinator.proposed(message)
            case Written():
                self._coordinator.written(message)
            case Fence():
                self._handovers.asked(message)
            case Fenced():
                self._handovers.fenced(message)
            case Succeed():
                self._coordinator.asked(message)
            case _:
                assert_never(message)

    def _has_ended(self) -> bool:
        world = self.world
        if not all(worker.done for worker in world.workers):
            return False
        return all(world.owner(group) is not None for group in GROUPS)

    def _lose_undurable(self) -> None:
        """Once all workers have gone, lose what the disks don't hold."""
        world = self.world
        if world.durability is not Durability.DISK:
            return
        for group, entry in world.registry.items():
            pserver = world.pservers[entry.owner[0]]
            name = world.random.choice(sorted(entry.eligible))
            state = world.state_of(group, name)
            assert state is not None, "a disk is always there"
            world.check_holds(state, str(name))
            pserver.copies[group] = MemoryCopy(state, "owner", entry.term, name)

    def _state(self) -> str:
        world = self.world
        workers = [
            (worker.rank, worker.incarnation, worker.steps_left, len(worker.outbox))
            for worker in world.workers
        ]
        return f"{workers} {world.registry}"
