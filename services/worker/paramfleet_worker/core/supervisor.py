"""What a launcher does when its processes end, as plain decisions.

A supervisor receives events with their times, and returns what to do now. It owns no
process, reads no clock and prints nothing.

The life of a launch::

    RUNNING -- workers ended with 0 --> SETTLING -- all did --> PARTING --> ENDING --> ENDED
       |                                    |  30 s at most      |  30 s       ^
       +------------------------------------+--------------------+             |
       +-- a process failed --> BLAMING -- cause known, 0.5 s at most ---------+
       +-- interrupt ----------------------------------------------------------+

SETTLING is for a job that runs here as a whole: its servers and its coordinator end
by themselves once the workers are done, and if they don't, that is a failure too. Not so
where the coordinator was started again: with Redis it may have lost that the job has
finished, and nobody is left who could say so. Then what still runs is stopped.

An interrupt passes through BLAMING too where other machines must be notified of it.

Where a pserver's training is on a disk, a pserver, coordinator or registry that died is started
again, after a look at whether the job has ended, and the phase stays; only what dies again and
again is a failure. So is a worker where workers are restarted; an elastic job continues without
one that dies again and again.

BLAMING exists because the first process to exit is not always the one to blame:
when a member elsewhere dies, or one here hangs, the others end *because* of it. The
job's failure record in the registry then names the cause, and so the supervisor
asks for it once before it reports.
"""

import signal
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from enum import Enum, auto

from paramfleet_worker.core.events import (
    Action,
    Consult,
    Dismiss,
    Event,
    Excuse,
    Exited,
    FailureRecord,
    Finish,
    Interrupted,
    Lose,
    MembersLeft,
    ProcessName,
    RecordRead,
    Report,
    Restart,
    Review,
    Reviewed,
    Signal,
    Start,
    Tick,
    Wanted,
    WatchMembers,
    describe_exit,
)
from paramfleet_worker.core.restarts import ROLES, Restarts

__all__ = ["Phase", "Supervisor"]

KILL_AFTER_S = 2.0
"""From the first failure or the interrupt to SIGKILL."""

BLAME_WITHIN_S = 0.5
"""How long the search for the cause may hold back the stop."""

REGISTRY_KILL_AFTER_S = 2.6
"""The registry goes last, so that other machines can read why the job ended."""

SETTLE_WITHIN_S = 30.0
"""How long servers and coordinator may run after the last worker has ended."""

REMEMBER_WITHIN_S = 15.0
"""As long where the coordinator was started again: members have told it all they know by then,
which takes it a lease."""

LAST_WITHIN_S = 2.0
"""As long for the coordinator alone, if it was started again: it waits for nobody."""

LOSE_WITHIN_S = 60.0
"""How much longer in an elastic job, whose coordinator waits for a worker that was killed where
no launcher saw it."""

PART_WITHIN_S = 30.0
"""How long the registry of a finished job waits for the members of other machines."""


REGISTRY = ProcessName("redis", 0)
"""What a registry is called that no launcher started."""


class Phase(Enum):
    """Where a launch stands."""

    RUNNING = auto()
    SETTLING = auto()
    """The workers are done; the others still have to end by themselves."""
    PARTING = auto()
    """The own processes are done; the registry stays for other machines."""
    BLAMING = auto()
    ENDING = auto()
    ENDED = auto()


_GOES_ON = (Phase.RUNNING, Phase.SETTLING)


class Supervisor:
    """Decides for the processes of one launcher. One task owns it.

    Args:
        names: Every process that was started.
        registry: The one among them that is the job's Redis, if it is ours.
        alone: Whether the whole job runs under this launcher.
        elastic: Whether the job goes on without a worker that failed.
        restarts: How often in a row a process is started again.
        restarted: The roles that are.
        groups: Of pservers, where processes are started for them as they are wanted; no more
            than that.
    """

    def __init__(  # noqa: PLR0913 (all but the first by keyword)
        self,
        names: Iterable[ProcessName],
        *,
        registry: ProcessName | None,
        alone: bool,
        elastic: bool = False,
        restarts: int = 0,
        restarted: AbstractSet[str] = ROLES,
        groups: int = 0,
    ) -> None:
        self._groups = groups
        self._restarts = Restarts(restarts, restarted)
        self._elastic = elastic
        self._may_forget = False
        """Whether the coordinator was started again."""
        self._alive = set(names)
        self._registry = registry
        self._alone = alone
        self._members_left = alone
        self._linger = False
        self._exits: dict[ProcessName, int] = {}
        self._phase = Phase.RUNNING
        self._since = 0.0
        self._terminated: set[ProcessName] = set()
        self._killed: set[ProcessName] = set()
        self._suspected: tuple[ProcessName, str] | None = None
        self._record: FailureRecord | None = None
        self._code = 0

    @property
    def phase(self) -> Phase:
        """Return where the launch stands."""
        return self._phase

    @property
    def alive(self) -> frozenset[ProcessName]:
        """Return the processes that have not ended."""
        return frozenset(self._alive)

    def next_tick(self) -> float | None:
        """Return when ``Tick`` is due at the latest; None if only events matter."""
        match self._phase:
            case Phase.RUNNING | Phase.ENDED:
                return self._restarts.next_due() if self._phase is Phase.RUNNING else None
            case Phase.SETTLING:
                due, end = self._restarts.next_due(), self._since + self._settle_s()
                return end if due is None else min(due, end)
            case Phase.PARTING:
                return self._since + PART_WITHIN_S
            case Phase.BLAMING:
                return self._since + BLAME_WITHIN_S
            case Phase.ENDING:
                if self._alive <= self._killed:
                    return None
                lingers = not self._others() and self._registry not in self._terminated
                early = lingers or not self._others() <= self._killed
                return self._since + (KILL_AFTER_S if early else REGISTRY_KILL_AFTER_S)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event and return what to do, in order.

        Args:
            event: What happened. One that no longer matters changes nothing.
            now: Seconds of a clock that never goes back.
        """
        actions: list[Action] = []
        match event:
            case Exited(name, code):
                actions += self._exited(name, code, now)
            case RecordRead(record, silent_s):
                actions += self._read(record, silent_s)
            case Reviewed(name, record, finished, shrinks):
                actions += self._reviewed(name, record, now, finished=finished, shrinks=shrinks)
            case MembersLeft():
                self._members_left = True
            case Wanted(processes):
                actions += self._add(processes)
            case Interrupted(number):
                actions += self._interrupted(number, now)
            case Tick():
                actions += self._late(now)
        return actions + self._proceed(now)

    # -- what each event means

    def _exited(self, name: ProcessName, code: int, now: float) -> list[Action]:
        self._alive.discard(name)
        self._exits.setdefault(name, code)
        match self._phase:
            case Phase.RUNNING | Phase.SETTLING | Phase.PARTING:
                if self._may_restart(name, code):
                    return self._review(name, code, now)
                if code != 0 and self._may_lose(name):
                    return self._lose(name, now)
                if code != 0 or name == self._registry:
                    return self._suspect(name, describe_exit(code), now)
                return self._ended_well(now)
            case Phase.BLAMING:
                awaited = self._record is not None and self._record.name == name
                return self._blame() if awaited else []
            case Phase.ENDING | Phase.ENDED:
                return []

    def _add(self, processes: int) -> list[Action]:
        """Start the processes for pservers that are wanted and aren't there."""
        if self._phase is not Phase.RUNNING:
            return []
        wanted = [
            ProcessName("pserver", index) for index in range(min(processes, self._groups))
        ]
        new = [n for n in wanted if n not in self._alive and n not in self._restarts.down]
        self._alive.update(new)
        for name in new:
            self._exits.pop(name, None)
        return [Start(name) for name in new]

    def _may_restart(self, name: ProcessName, code: int) -> bool:
        """Return whether the job may go on with another process in the place of one."""
        if self._phase is Phase.PARTING or not self._restarts.concern(name):
            return False
        return code != 0 or name == self._registry

    def _review(self, name: ProcessName, code: int, now: float) -> list[Action]:
        """Ask whether the job has ended: then its members end because of it."""
        self._restarts.note_death(name, now, was_killed=code < 0)
        if name != self._registry:
            return [Review(name)]
        return self._reviewed(name, None, now, finished=False)  # nobody else could be asked

    def _reviewed(
        self,
        name: ProcessName,
        record: FailureRecord | None,
        now: float,
        *,
        finished: bool,
        shrinks: bool = False,
    ) -> list[Action]:
        if name not in self._restarts.down or self._phase not in _GOES_ON:
            return []
        if finished:
            return self._after_the_job(name, now)
        if record is None and self._restarts.grant(name, now):
            return []
        self._restarts.forget([name])
        if record is None and self._may_lose(name, shrinks=shrinks):
            return self._lose(name, now)
        return self._suspect(name, describe_exit(self._exits[name]), now)

    def _after_the_job(self, name: ProcessName, now: float) -> list[Action]:
        """Judge the end of a process whose job has finished.

        A worker's script that hasn't come to its end has failed, unless it was started again:
        it may have come too late for the job. An elastic job did without it.
        """
        self._restarts.forget([name])
        how, failed = describe_exit(self._exits[name]), self._exits[name] != 0
        excused: list[Action] = []
        if failed and name.role == "worker":
            if not self._restarts.began_again(name):
                is_lost = self._may_lose(name)
                return self._lose(name, now) if is_lost else self._suspect(name, how, now)
            excused = [Excuse(name, how)]
        self._exits[name] = 0
        return [*excused, *self._ended_well(now)]

    def _others_work(self) -> bool:
        """Return whether a worker works or ended well here, or may on another machine."""
        workers = {each for each in self._alive | self._restarts.down if each.role == "worker"}
        did = any(other.role == "worker" and not code for other, code in self._exits.items())
        return bool(workers) or did or not self._alone

    def _may_lose(self, name: ProcessName, *, shrinks: bool = False) -> bool:
        """Return whether the job goes on without a process: another worker works or did."""
        return (self._elastic or shrinks) and name.role == "worker" and self._others_work()

    def _lose(self, name: ProcessName, now: float) -> list[Action]:
        return [Lose(name, describe_exit(self._exits[name])), *self._ended_well(now)]

    def _ended_well(self, now: float) -> list[Action]:
        if not self._others() and not self._restarts.down:
            self._enter(Phase.PARTING, now)
            wait = self._registry in self._alive and not self._members_left
            return [WatchMembers()] if wait else []
        left = self._others() | self._restarts.down
        if self._phase is Phase.SETTLING and self._may_forget:
            if all(each.role == "coordinator" for each in left):
                self._enter(Phase.SETTLING, now + LAST_WITHIN_S - self._settle_s())
            return []
        if (
            self._phase is Phase.RUNNING
            and self._alone
            and all(name.role != "worker" for name in self._alive | self._restarts.down)
        ):
            self._enter(Phase.SETTLING, now)
        return []

    def _suspect(self, name: ProcessName, how: str, now: float) -> list[Action]:
        self._suspected = (name, how)
        self._enter(Phase.BLAMING, now)
        if name == self._registry:  # the failure record can't be read
            return self._blame()
        return [Consult(name, how)]

    def _read(self, record: FailureRecord | None, silent_s: float) -> list[Action]:
        if self._phase is not Phase.BLAMING:
            return []
        if record is None and silent_s and self._suspected is not None:
            record = self._silent_registry(*self._suspected, silent_s)
        self._record = record
        if self._suspected is not None and record is not None and record.name in self._alive:
            return []  # its last output may still come
        return self._blame()

    def _silent_registry(
        self, name: ProcessName, how: str, silent_s: float
    ) -> FailureRecord | None:
        """Return that the registry is to blame: it doesn't answer, and so the others gave up.

        Not for a process that a signal killed: it did not end by itself.
        """
        if self._exits.get(name, 0) < 0:
            return None
        reason = f"hasn't answered for {silent_s:.0f} s; {name.label} {how}"
        return FailureRecord(self._registry or REGISTRY, reason)

    def _interrupted(self, number: signal.Signals, now: float) -> list[Action]:
        match self._phase:
            case Phase.RUNNING | Phase.SETTLING | Phase.PARTING:
                self._code = 128 + number
                if self._alone:
                    self._enter(Phase.ENDING, now)
                    return []
                self._enter(Phase.BLAMING, now)  # with no suspect: the others must be notified
                known = min(self._alive | self._exits.keys(), key=_by_interest)
                return [Consult(known, f"its launcher was stopped by {number.name}")]
            case Phase.BLAMING:
                return self._blame()
            case Phase.ENDING:  # asked twice: now
                doomed = self._alive - self._killed
                self._killed |= doomed
                return _signal(doomed, signal.SIGKILL)
            case Phase.ENDED:
                return []

    def _late(self, now: float) -> list[Action]:
        if self._phase is Phase.BLAMING and now >= self._since + BLAME_WITHIN_S:
            return self._blame()
        if self._phase is Phase.SETTLING and now >= self._since + self._settle_s():
            if self._may_forget:
                return self._dismiss(now)
            how = (
                f"was still running {self._settle_s():.0f} s after the last worker ended: does "
                "the script call fleet.init(), in pservers run_server(), and in workers "
                "init_worker() and stop_worker()?"
            )
            late = self._others() | self._restarts.down
            self._suspected = (min(late, key=_by_interest), how)
            self._enter(Phase.BLAMING, now)
            return self._blame()
        return []

    def _settle_s(self) -> float:
        """Return how long servers and coordinator may run after the last worker has ended."""
        settle_s = REMEMBER_WITHIN_S if self._may_forget else SETTLE_WITHIN_S
        return settle_s + (LOSE_WITHIN_S if self._elastic else 0.0)

    def _dismiss(self, now: float) -> list[Action]:
        """Stop what still runs of a job whose workers have all ended well."""
        left = tuple(sorted(self._others() | self._restarts.down, key=_by_interest))
        self._restarts.forget(self._restarts.down)
        self._enter(Phase.ENDING, now)
        return [Dismiss(left)]

    # -- from the suspect to the cause

    def _blame(self) -> list[Action]:
        """Name the cause and begin to stop; time counts from the first failure."""
        self._linger = not self._alone
        self._enter(Phase.ENDING, self._since)
        if self._suspected is None:  # an interrupt needs no report
            return []
        name, how = self._suspected
        reason = ""
        if self._record is not None:
            if self._record.name != name:
                name, how = self._record.name, f"({self._record.reason})"
                how = describe_exit(self._exits[name]) if self._exits.get(name) else how
            if self._exits.get(name, 0) > 0 and self._record.reason != how:
                reason = self._record.reason
        self._code = _exit_code(self._exits.get(name))
        local = name in self._exits or name in self._alive
        return [Report(name, how, local=local, reason=reason)]

    # -- what the time and the survivors ask for

    def _proceed(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if self._phase in _GOES_ON:
            actions += self._start_due(now)
        if self._phase is Phase.PARTING and (
            self._members_left
            or self._registry not in self._alive
            or now >= self._since + PART_WITHIN_S
        ):
            self._enter(Phase.ENDING, now)
        if self._phase is Phase.ENDING:
            actions += self._stop(now)
            if not self._alive:
                self._phase = Phase.ENDED
                actions.append(Finish(self._code))
        return actions

    def _start_due(self, now: float) -> list[Action]:
        """Start again whose time has come."""
        actions: list[Action] = []
        for name, number in self._restarts.take_due(now):
            how = describe_exit(self._exits.pop(name))
            self._alive.add(name)
            self._may_forget = self._may_forget or name.role == "coordinator"
            actions.append(Restart(name, how, number, self._restarts.most))
        return actions

    def _stop(self, now: float) -> list[Action]:
        """Ask everyone to end, then make them; the registry last."""
        others = self._others()
        late = now >= self._since + KILL_AFTER_S
        due = set(others)
        if self._registry in self._alive and not others and (late or not self._linger):
            due.add(self._registry)
        doomed = set(others) if late else set()
        if now >= self._since + REGISTRY_KILL_AFTER_S:
            doomed = set(self._alive)
        doomed -= self._killed
        asked = due - self._terminated - self._killed - doomed
        self._terminated |= asked
        self._killed |= doomed
        return _signal(asked, signal.SIGTERM) + _signal(doomed, signal.SIGKILL)

    def _others(self) -> set[ProcessName]:
        return self._alive - {self._registry} if self._registry else set(self._alive)

    def _enter(self, phase: Phase, since: float) -> None:
        self._phase = phase
        self._since = since


def _by_interest(name: ProcessName) -> tuple[int, int]:
    """Order names so that the one a person knows best comes first."""
    known = ("worker", "pserver", "coordinator")
    return (known.index(name.role) if name.role in known else len(known), name.index)


def _signal(names: set[ProcessName], number: signal.Signals) -> list[Action]:
    return [Signal(tuple(sorted(names)), number)] if names else []


def _exit_code(code: int | None) -> int:
    """Return the launcher's code for the code of the process to blame."""
    if not code:  # elsewhere, still alive, or a 0 that came too early
        return 1
    return code if code > 0 else 128 - code
