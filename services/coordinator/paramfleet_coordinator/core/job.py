"""One run of a job: waiting, training, and how it ends.

::

    waiting  --all pservers and workers have joined--> training
    waiting, training  --every pserver has come and every worker ended-->  finished
    waiting, training  --a member died, left early or gave up-->  failed

In an elastic job a worker that died or gave up is lost, and the job goes on: it finishes
when every worker has ended and one of them well, and fails when all are lost for long.

The ends are final. ``observe`` and ``join`` take facts and return decisions for the
log; what the registry must hold is ``record``.

Where workers return, a worker that died or gave up is waited for, and another process goes on
in its place.

A durable pserver's part of the training is on a disk. When its process died or left, the job
waits for another one that has the data, gives it the place and publishes where it is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paramfleet_coordinator.core.absent.failing import Failing
from paramfleet_coordinator.core.absent.losses import Losses
from paramfleet_coordinator.core.absent.returning import Returning
from paramfleet_coordinator.core.absent.servers import DurableServers, require_data
from paramfleet_coordinator.core.absent.shrinking import end_of, shrinks
from paramfleet_coordinator.core.absent.silence import Silence
from paramfleet_coordinator.core.absent.words import death
from paramfleet_coordinator.core.barriers import Barriers
from paramfleet_coordinator.core.groups.hosting import Hosting
from paramfleet_coordinator.core.groups.planner import PlanEvent, PlanRules
from paramfleet_coordinator.core.membership import MAX_WORKERS, Membership
from paramfleet_coordinator.core.place import Place
from paramfleet_shared.discovery.errors import (
    JobFinishedError,
    OtherHostingError,
)
from paramfleet_shared.discovery.orders import Orders
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.discovery.plan import Plan
from paramfleet_shared.discovery.records import (
    PROCESS,
    Failure,
    JobRecord,
    JobSizes,
    Lost,
    Member,
    Snapshot,
    State,
)
from paramfleet_shared.errors import JobFailedError

__all__ = ["Decision", "Job", "JobRules"]


_MOST_LEASES = 3
"""For so many, pservers that are away may come back and say which workers they know."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Something the job decided, as a log event and its fields."""

    event: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRules:
    """Times a job goes by, in seconds."""

    lease_ttl_s: float
    lease_renew_s: float

    start_timeout_s: float
    """From the first member's joining to the last's; 0 waits without end."""

    worker_grace_s: float = 30.0
    """Silence after which an elastic job goes on without a worker, and any other fails although
    the worker's launcher sees it alive."""

    server_grace_s: float = 30.0
    """Silence after which the job fails although a pserver's launcher sees it alive."""

    replica_grace_s: float = 10.0
    """How long a group may be without a follower before it is named unprotected."""

    server_return_s: float = 60.0
    """How long the job waits for a process that takes the place of a durable pserver that died
    or left; 0 doesn't wait."""

    worker_return_s: float = 0.0
    """As long for one that takes the place of a worker, where these return."""


class Job:
    """Decides for one run.

    Args:
        sizes: What the job was started for.
        rules: Its times.
        barriers: Those of a former coordinator; None for a new run.
        launch: Launch that the run belongs to; empty for none.
        run_id: Tells the run from every other one of the name, whatever Redis has forgotten;
            0 where that is of no matter.
    """

    def __init__(
        self,
        sizes: JobSizes,
        *,
        rules: JobRules,
        barriers: Barriers | None = None,
        launch: str = "",
        run_id: int = 0,
    ) -> None:
        self.launch = launch
        self.run_id = run_id
        self._rules = rules
        self.sizes = sizes
        self.members = Membership(
            _limits_of(sizes),
            lease_ttl_s=rules.lease_ttl_s,
            lease_renew_s=rules.lease_renew_s,
            grace_s={
                "worker": rules.worker_grace_s,
                "pserver": rules.server_grace_s,
                PROCESS: rules.server_grace_s,
            },
            elastic=sizes.elastic,
            returning=sizes.returning,
        )
        self.returning = Returning(rules.worker_return_s if sizes.returning else 0.0)
        self.servers = DurableServers(self.members, return_s=rules.server_return_s)
        self.hosting: Hosting | None = None
        """The processes of the groups; None where each pserver is a process of its own."""
        if sizes.is_planned:
            plan_rules = PlanRules(
                start_processes=sizes.server_processes,
                replicas=sizes.replicas,
                replica_grace_s=rules.replica_grace_s,
            )
            self.hosting = Hosting(self.members, num_groups=sizes.server_num, rules=plan_rules)
        self._failing = Failing(
            self.members,
            returning=self.returning,
            servers=self.servers,
            hosting=self.hosting,
            patience_s=rules.start_timeout_s,
        )
        self._silence = Silence(self.members, is_named_elsewhere=self.servers.is_named)
        self.barriers = barriers or Barriers()
        self.losses = Losses()
        self.shrinks = False
        """Whether sync goes on without a worker that died and doesn't come back."""
        self._is_settling, self._settling_since = False, math.inf
        """Whether pservers may have more to say of workers, and since when."""
        self.state: State = "waiting"
        self.failure: Failure | None = None
        self.orders = Orders()
        """What an operator wants of the job."""

    @property
    def placement(self) -> Placement | None:
        """Return where the pservers are, once that is published."""
        return self.servers.placement

    @property
    def record(self) -> JobRecord:
        """Return what the registry must hold."""
        placement = self.placement.to_wire() if self.placement is not None else None
        return JobRecord(
            state=self.state,
            sizes=self.sizes,
            failure=self.failure,
            placement=placement,
            lost=self.losses.record,
            orders=self.orders,
            launch=self.launch,
            run_id=self.run_id,
            shrinks=self.shrinks,
            plan=self.hosting.planner.plan.to_wire() if self.hosting is not None else None,
        )

    @property
    def has_ended(self) -> bool:
        """Return whether nothing can change any more."""
        return self.state in {"finished", "failed"}

    @property
    def has_started(self) -> bool:
        """Return whether the training has begun."""
        return self.state != "waiting"

    def resize(self, sizes: JobSizes) -> None:
        """Set sizes that were open, which is 0; they never change afterwards."""
        self.sizes = sizes
        self.members.resize(_limits_of(sizes))

    def participants(self) -> set[int]:
        """Return the ranks that barriers wait for."""
        return self.members.participants(started=self.has_started)

    def join(
        self,
        newcomer: Member,
        *,
        index: int | None,
        asked_at: float,
        now: float,
        succeeds: int = 0,
    ) -> Member | None:
        """Give a newcomer a place; see ``Membership.join`` and ``join_elastic``.

        Before the training one may replace a member that became silent, a pserver only until
        the placement is published. Once it trains, the silent one's received values and barrier
        counts, or its rows, are lost with it: that is a death. The rows of a durable pserver
        aren't: who has locked its data folder gets its place at once. Where groups are planned,
        the plan says who gets which, and goes on from which term (``succeeds``).

        Raises:
            JobFailedError: if the job has failed.
            JobFinishedError: if an elastic one has finished.
            WrongDataFolderError: if a durable pserver's place is asked for without its data.
            NotPlannedError: if the plan doesn't give the group to the process.
            OtherHostingError: if a process hosts groups in another way than the job.
        """
        self.raise_failure()
        if newcomer.role != "worker" and (
            (self.hosting is not None) != (newcomer.role == PROCESS or bool(newcomer.process))
        ):
            raise OtherHostingError(planned=self.hosting is not None)
        if newcomer.role == PROCESS:
            return self.members.join_process(newcomer, index=index, asked_at=asked_at, now=now)
        if newcomer.process and self.hosting is not None:
            return self.hosting.join_group(newcomer, index, succeeds=succeeds, now=now)
        if newcomer.role == "worker" and self._may_go_on_without:
            return self._join_worker(newcomer, index, asked_at=asked_at, now=now)
        if newcomer.role == "pserver":
            durable = None if self.has_ended else self.servers.place_for(newcomer, index)
            if durable is not None:
                require_data(newcomer, durable.member, run_id=self.run_id)
                successor = replace(newcomer, index=durable.member.index)
                return self.members.take_over(successor, now=now)
            if self.servers.is_forgotten(newcomer, index):
                require_data(newcomer, None, run_id=self.run_id)
        replaceable = self.state == "waiting" and (
            newcomer.role == "worker" or self.placement is None
        )
        return self.members.join(
            newcomer, index=index, asked_at=asked_at, now=now, replaceable=replaceable
        )

    def _join_worker(
        self, newcomer: Member, index: int | None, *, asked_at: float, now: float
    ) -> Member | None:
        """Give a worker a place in a job that goes on without one that died, or waits for it.

        Raises:
            JobFinishedError: if an elastic one has finished.
        """
        if self.sizes.elastic and self.state == "finished":
            raise JobFinishedError(role=newcomer.role)
        if self._is_settling:
            return self.members.find(newcomer)
        if not self.sizes.elastic:
            return self.members.join_returning(
                newcomer, index=index, asked_at=asked_at, now=now
            )
        return self.members.join_elastic(
            newcomer, index=index, asked_at=asked_at, now=now, started=self.has_started
        )

    def succeed(self, newcomer: Member) -> list[Decision]:
        """Count who held a newcomer's place before as lost, unless that has ended.

        To be called, and written to the registry, before the newcomer is admitted.

        Returns:
            What was decided.
        """
        place = self.members.places[newcomer.key]
        former = place.former
        replaces = newcomer.role == "worker" and former is not None and former.may_die
        if not self.sizes.elastic or not replaces or former is None:
            return []
        why = f"silent when process {newcomer.pid} on {newcomer.host} came for its place"
        return [self._lose(former, why)]

    def note_return(self, member: Member, *, now: float) -> list[Decision]:
        """Publish where a pserver is that has taken the place of a former process.

        To be called when its incarnation is confirmed. ``record`` must be written then.

        Returns:
            What was decided; nothing for a member that the placement knows already.
        """
        planned = [] if self.hosting is None else _decisions(self.hosting.note_member(member))
        placement = self.placement
        stays = member.durable or bool(member.process)
        if member.role != "pserver" or not stays or placement is None:
            return planned
        if self.has_ended or member.incarnation <= placement.term_of(member.index):
            return []
        self.servers.placement = placement.with_server(
            member.index, endpoint=member.endpoint, term=member.incarnation
        )
        event, facts = self.servers.note_return(member, now=now)
        return planned or [Decision(event=event, facts=facts)]

    def failure_error(self) -> JobFailedError | None:
        """Return the job's failure as what members raise; None if it has none."""
        failure = self.failure
        if failure is None:
            return None
        return JobFailedError(role=failure.role, index=failure.index, reason=failure.reason)

    def raise_failure(self) -> None:
        """Raise the job's failure if it has one.

        Raises:
            JobFailedError: if it has.
        """
        error = self.failure_error()
        if error is not None:
            raise error

    def adopt(self, written: JobRecord) -> None:
        """Take over a failure that a member wrote a moment before our own decision."""
        if written.state == "failed" and written.failure is not None:
            self.state, self.failure = "failed", written.failure

    def observe(self, snapshot: Snapshot, *, now: float) -> list[Decision]:
        """Take in what the registry holds, and decide.

        Args:
            snapshot: All of it, read at one moment.
            now: The time.

        Returns:
            What changed.
        """
        begun = self._begin()  # with whom the last look has left: one may have died since
        self.members.observe(snapshot, now=now)
        self.losses.look(snapshot)
        for passed in snapshot.passed:
            self.barriers.learn(passed)
        recorded = snapshot.job or snapshot.known
        if recorded is not None:
            self.resume(recorded)
        if self.has_ended:
            return []
        if recorded is not None and recorded.state == "finished":
            return self._finish()
        have_all_said = self._have_all_said(snapshot)
        if self._may_go_on_without and self.state == "training":
            self.members.learn(_named_workers(snapshot), is_all=have_all_said, now=now)
        self._note_settled(now, have_all_said=have_all_said)
        losses = begun + [
            decision
            for place in self.members.of_role("pserver")
            for decision in self.note_return(place.member, now=now)
        ]  # a former coordinator may have admitted it
        if self.hosting is not None:
            losses += _decisions(self.hosting.decide(now=now))
        losses += _named(self._silence.look(now=now))
        losses += _named(self.servers.look(now=now))
        losses += self._find_lost(now) if self.sizes.elastic else []
        losses += self._find_away(now)
        losses += self._shrink(snapshot, now)
        failure = recorded.failure if recorded is not None else None
        if failure is None:
            if self._all_workers_ended() and not self._is_settling:
                return losses + self._finish()
            failure = self._failing.find(
                snapshot, self.sizes, self.state, shrinks=self.shrinks, now=now
            )
        if failure is not None:
            return losses + self._fail(failure)
        return losses + self._start()

    @property
    def _may_go_on_without(self) -> bool:
        """Return whether a worker may die without an end to the job."""
        return self.sizes.elastic or self.sizes.returning

    def _note_settled(self, now: float, *, have_all_said: bool) -> None:
        if self._is_settling:
            began = self._settling_since = min(now, self._settling_since)
            leases = 1 if have_all_said else _MOST_LEASES
            self._is_settling = now - began < leases * self._rules.lease_ttl_s

    def _have_all_said(self, snapshot: Snapshot) -> bool:
        """Return whether each pserver of a training serves: then it has said what it knows.

        One may have died, too, and come back only after a lease.
        """
        served = range(self.sizes.server_num if self.state == "training" else 0)
        return all("mode" in snapshot.facts.get(("pserver", index), {}) for index in served)

    def settle(self) -> None:
        """Decide about groups and workers when members have had a lease to say what they know.

        To be called by a coordinator that was started again: the registry may be an older one,
        or empty. Then only pservers know a worker that is dead, and how often it has lived.
        """
        self._is_settling = self._may_go_on_without
        if self.hosting is not None:
            self.hosting.settle(lease_s=self._rules.lease_ttl_s)

    def resume(self, recorded: JobRecord) -> None:
        """Go on from where a former coordinator was."""
        if self.placement is None and recorded.placement:
            self.servers.placement = Placement.from_wire(dict(recorded.placement))
        if self.state == "waiting" and recorded.state == "training":
            self.state = "training"
        self.launch = self.launch or recorded.launch
        self.run_id = recorded.run_id or self.run_id
        self.shrinks = recorded.shrinks or self.shrinks
        if self.hosting is not None and recorded.plan is not None:
            self.hosting.planner.resume(Plan.from_wire(dict(recorded.plan)))
        self.losses.resume(recorded.lost)
        self.take_orders(recorded.orders)

    def take_orders(self, stored: Orders) -> None:
        """Apply the orders that the registry holds, unless newer ones are known."""
        if stored.version > self.orders.version:
            self.orders = stored

    def _start(self) -> list[Decision]:
        """Publish the placement when the pservers are complete, and go when all are."""
        if not self.sizes.server_num:
            return []
        decisions = []
        pservers = self.members.of_role("pserver")
        if self.placement is None and len(pservers) == self.sizes.server_num:
            endpoints = tuple(place.member.endpoint for place in pservers)
            terms = tuple(place.member.incarnation for place in pservers)
            self.servers.placement = Placement(
                endpoints=endpoints,
                num_shards=self.sizes.num_shards,
                terms=terms,
                moves=self.hosting is not None,
            )
            decisions.append(Decision(event="job.placed", facts={"endpoints": endpoints}))
        return decisions + self._begin()

    def _begin(self) -> list[Decision]:
        """Begin the training if all are there; workers don't wait for it to be said."""
        complete = self.placement is not None and not self.members.missing("worker")
        if self.state != "waiting" or not complete or not self.sizes.worker_num:
            return []
        self.state = "training"
        facts = {"workers": self.sizes.worker_num, "pservers": self.sizes.server_num}
        return [Decision(event="job.training", facts=facts)]

    def _finish(self) -> list[Decision]:
        self.state = "finished"
        return [Decision(event="job.finished", facts={"workers": self.sizes.worker_num})]

    def _fail(self, failure: Failure) -> list[Decision]:
        self.state = "failed"
        self.failure = failure
        facts = {"role": failure.role, "index": failure.index, "reason": failure.reason}
        return [Decision(event="job.failed", facts=facts)]

    def _find_away(self, now: float) -> list[Decision]:
        """Name workers that are waited for, and those that are back."""
        if not self.sizes.returning:
            return []
        return _named(self.returning.look(self.members.of_role("worker"), now=now))

    def _shrink(self, snapshot: Snapshot, now: float) -> list[Decision]:
        """Go on in sync without workers that nobody takes the place of, if that was said."""
        self.shrinks = self.shrinks or shrinks(snapshot.facts)
        if not self.shrinks or self.sizes.elastic:
            return []
        given_up = {lost.index: lost.incarnation for lost in self.losses.record}
        decisions = []
        for place in self.members.of_role("worker"):
            if given_up.get(place.member.index, 0) >= place.member.incarnation:
                place.is_given_up = True  # by a former coordinator
            elif self.members.is_gone(place) and not self.is_waited_for(place):
                place.is_given_up = True
                why = (place.why or death(place, now)) + self.returning.in_vain()
                decisions.append(self._lose(place, why))
        for lost in self.losses.record:
            step = end_of(lost, snapshot.facts, server_num=self.sizes.server_num)
            if lost.step is None and step is not None:
                self.losses.agree(lost, step)
                facts = {"index": lost.index, "step": step}
                decisions.append(Decision(event="job.shrunk", facts=facts))
        return decisions

    def is_waited_for(self, place: Place) -> bool:
        """Return whether a place has no process, and one may come that goes on in it.

        A pserver's must have its data; any does for a worker.
        """
        return self.waits_s(place) is not None

    def waits_s(self, place: Place) -> float | None:
        """Return for how long a place without a process is waited for; None if it isn't."""
        if self.has_ended:
            return None
        is_worker = place.member.role == "worker"
        return self.returning.left_s(place) if is_worker else self.servers.left_s(place)

    def least_incarnation(self, role: str, index: int) -> int:
        """Return an incarnation that a newcomer's must be above, whatever Redis knows."""
        placed = self.servers.least_term(index) if role == "pserver" else 0
        return max(placed, self.members.places[role, index].incarnation)

    def _find_lost(self, now: float) -> list[Decision]:
        """Count workers as lost that fell silent for long, or said that they give up."""
        known = {lost.index: lost.incarnation for lost in self.losses.record}
        gave_up = [
            place
            for place in self.members.of_role("worker")
            if place.end == "lost"
            and known.get(place.member.index, 0) < place.member.incarnation
        ]
        silent = self.members.silent_workers(grace_s=self._rules.worker_grace_s)
        return [self._lose(place, place.why) for place in gave_up] + [
            self._lose(place, death(place, now)) for place in silent
        ]

    def _lose(self, place: Place, why: str) -> Decision:
        member = place.member
        self.members.lose(place, why=why)
        self.barriers.withdraw(member.index)
        self.losses.note(Lost(index=member.index, incarnation=member.incarnation, reason=why))
        facts = {"index": member.index, "incarnation": member.incarnation, "reason": why}
        return Decision(event="worker.lost", facts=facts)

    def _all_workers_ended(self) -> bool:
        workers = self.members.of_role("worker")
        missing = self.members.missing("worker") or self.members.missing("pserver")
        complete = self.state == "training" or not missing
        well = any(place.end != "lost" for place in workers)
        if self.sizes.returning and self.members.returning():
            return False
        return complete and well and all(place.end for place in workers)


def _named_workers(snapshot: Snapshot) -> dict[int, int]:
    """Return the workers that pservers wait for: the greatest incarnation of each rank."""
    found = dict[int, int]()
    for (role, _), facts in snapshot.facts.items():
        lives = facts.get("lives") if role == "pserver" else None
        for each in lives if isinstance(lives, list) else ():
            match each:
                case [int(rank), int(life)] if 0 <= rank < MAX_WORKERS and life > 0:
                    found[rank] = max(life, found.get(rank, 0))
    return found


def _limits_of(sizes: JobSizes) -> dict[str, int]:
    """Return how many places each role has; of processes as many as there are groups."""
    limits = {"pserver": sizes.server_num, "worker": sizes.worker_num}
    return {**limits, PROCESS: sizes.server_num} if sizes.is_planned else limits


def _named(events: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Decision]:
    return [Decision(event=event, facts=facts) for event, facts in events]


def _decisions(events: Sequence[PlanEvent]) -> list[Decision]:
    return [Decision(event=each.event, facts=each.facts) for each in events]
