"""A worker: the outbox of its changes, and what it knows of the owners."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.recovery.defects import Defect
from tests.recovery.protocol import (
    EMPTY,
    GROUPS,
    NOTHING_ACKED,
    Acked,
    Answer,
    Kind,
    Part,
    Request,
)
from tests.recovery.world import World, violated


@dataclass
class Entry:
    """A change that is kept until every group has it durable.

    ``acknowledged`` names the groups that have answered it in the term that is known now.
    """

    kind: Kind
    sequence: int
    parts: Mapping[int, Part]
    first_acked: Mapping[int, Acked]
    acknowledged: set[int] = field(default_factory=set)
    durable: set[int] = field(default_factory=set)
    ever_acknowledged: set[int] = field(default_factory=set)

    def answered(self, group: int) -> bool:
        """Return whether a group needn't be sent the change again."""
        return group in self.acknowledged or group in self.durable


class Worker:
    """What workers of all modes do; ``entries`` is all that it made, for the checks."""

    def __init__(self, world: World, rank: int, incarnation: int, steps: int) -> None:
        self.world = world
        self.rank = rank
        self.incarnation = incarnation
        self.steps_left = steps
        self.known = dict.fromkeys(GROUPS, (0, 0))  # term and owner
        self.joined: set[int] = set()
        self.outbox: dict[int, Entry] = {}
        self.entries: list[Entry] = []
        self.sequence = 0
        self.done = False
        self.may_die = True
        self.acked = dict.fromkeys(GROUPS, NOTHING_ACKED)

    def work(self) -> None:
        """Read the placement now and then, ask the owners, and train."""
        chance = self.world.random.random
        if chance() < 0.15 or any(term == 0 for term, _ in self.known.values()):
            self.read_placement()
        for group in GROUPS:
            if chance() < 0.7:
                self._ask(group)
        if len(self.joined) == len(GROUPS):
            self._train()

    def read_placement(self) -> None:
        """On a new term join again, and send again what isn't durable."""
        for group in GROUPS:
            entry = self.world.registry[group]
            if entry.term <= self.known[group][0]:
                continue
            self.known[group] = (entry.term, entry.owner[0])
            self.joined.discard(group)
            for each in self.outbox.values():
                each.acknowledged.discard(group)
            self._term_changed(group)

    def answered(self, answer: Answer) -> None:
        """Take an answer of a known term to this incarnation."""
        request = answer.request
        group, error = request.group, answer.outcome.error
        if self.incarnation != request.incarnation or self.done:
            return
        if error == "moved":
            self.read_placement()
        elif error == "unknown":
            if answer.term == self.known[group][0]:
                self.joined.discard(group)
        elif error == "refused":
            if answer.term == self.known[group][0] and request.sequence in self.outbox:
                self._refused(self.outbox[request.sequence], group)
        elif error:
            pass  # it asks again
        elif answer.term == self.known[group][0] or self.world.lacks(Defect.NO_TERM_CHECK):
            self._take(answer)

    def settled(self) -> bool:
        """Return whether everything was answered by the owners that are known."""
        return all(each.answered(group) for each in self.outbox.values() for group in GROUPS)

    def make(self, kind: Kind, parts: Mapping[int, Part]) -> None:
        """Put a new change into the outbox."""
        self.sequence += 1
        entry = Entry(kind, self.sequence, parts, dict(self.acked))
        self.outbox[self.sequence] = entry
        self.entries.append(entry)

    def may_start(self) -> bool:
        """Return whether the start's barrier is open: the first values are durable."""
        first = self.world.workers[0]
        if first is self and not first.entries:
            self.make(Kind.ASSIGN, dict.fromkeys(GROUPS, EMPTY))
        if not first.entries:
            return False
        assigned = first.entries[0]
        if len(assigned.durable) == len(GROUPS):
            return True
        early = self.world.lacks(Defect.START_BEFORE_DURABLE)
        return early and len(assigned.acknowledged) == len(GROUPS)

    def _train(self) -> None:
        """Make the next change, if it is time for one."""

    def _next_to_send(self, unanswered: list[Entry]) -> Entry:
        return unanswered[0]

    def _acked_with(self, entry: Entry, group: int) -> Acked:
        return self.acked[group]

    def _term_changed(self, group: int) -> None:
        """React to a group's new term, in which nothing was asked yet."""

    def _refused(self, entry: Entry, group: int) -> None:
        """React to a refusal: the change is sent again, corrected, or it is voided."""

    def _join_answered(self, answer: Answer) -> None:
        """Learn from a group what it has of this worker."""

    def _pull_answered(self, answer: Answer) -> None:
        """Take values that were read."""

    def _reply_answered(self, answer: Answer, entry: Entry) -> None:
        """Take what comes with the answer to a change."""

    def _progress_answered(self, answer: Answer) -> None:
        """Take how far a group is durable."""

    def _ask(self, group: int) -> None:
        if group not in self.joined:
            self.world.send(self._request(group, Kind.JOIN))
            return
        unanswered = [each for each in self.outbox.values() if not each.answered(group)]
        if unanswered:
            entry = self._next_to_send(unanswered)
            self._send(entry, group, self._acked_with(entry, group))
        elif any(group not in each.durable for each in self.outbox.values()):
            # Asks how far it is durable.
            self._send(self.outbox[max(self.outbox)], group, self.acked[group])
        self._pull(group)

    def _pull(self, group: int) -> None:
        """Ask for values."""

    def _send(self, entry: Entry, group: int, acked: Acked) -> None:
        request = self._request(
            group, entry.kind, sequence=entry.sequence, part=entry.parts[group], acked=acked
        )
        self.world.send(request)

    def _request(
        self,
        group: int,
        kind: Kind,
        *,
        sequence: int | None = None,
        step: int = 0,
        expected: frozenset[int] = frozenset(),
        part: Part = EMPTY,
        acked: Acked = NOTHING_ACKED,
    ) -> Request:
        term, owner = self.known[group]
        return Request(
            group=group,
            to=owner,
            term=term,
            rank=self.rank,
            incarnation=self.incarnation,
            kind=kind,
            sequence=sequence,
            step=step,
            expected=expected,
            part=part,
            acked=acked,
        )

    def _take(self, answer: Answer) -> None:
        request = answer.request
        if request.kind is Kind.JOIN:
            self.joined.add(request.group)
            self.world.counts["joins"] += 1
            self._join_answered(answer)
        elif request.kind is Kind.PULL:
            self._pull_answered(answer)
        else:
            self._change_answered(answer)

    def _change_answered(self, answer: Answer) -> None:
        request = answer.request
        assert request.sequence is not None
        entry = self.outbox.get(request.sequence)
        if entry is not None:
            if request.group not in entry.acknowledged:
                self._reply_answered(answer, entry)
            entry.acknowledged.add(request.group)
            entry.ever_acknowledged.add(request.group)
        self._forget_durable(request.group, answer.progress.durable)
        self._progress_answered(answer)

    def _forget_durable(self, group: int, durable: int) -> None:
        early = self.world.lacks(Defect.ACKNOWLEDGED_IS_FORGOTTEN)
        upto = self.sequence if early else durable
        for sequence, entry in list(self.outbox.items()):
            due = sequence <= upto and group not in entry.durable
            if due and (not early or group in entry.acknowledged):
                entry.durable.add(group)
                if not early:
                    self.world.reported.add((group, self.rank, self.incarnation, sequence))
                    self._check_claim(group, sequence)
            if len(entry.durable) == len(GROUPS):
                del self.outbox[sequence]

    def _check_claim(self, group: int, sequence: int) -> None:
        """Every copy that may become the owner holds what was reported durable."""
        if self.world.settling:
            return  # the registry is an old one, and nobody acts by it
        for name in self.world.registry[group].eligible:
            state = self.world.state_of(group, name)
            if state is None:
                continue
            if state.name_of(self.rank, self.incarnation, sequence) not in state.applied:
                facts = f"{name} lacks {self.rank}:{sequence} of group {group}"
                violated("claim", facts)
