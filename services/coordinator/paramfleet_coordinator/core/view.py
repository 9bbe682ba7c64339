"""What a person sees of a job: curves of the last quarter of an hour, events, the straggler.

``observe`` takes in what the registry held at one moment, again and again; the rest answers
from that. All of it is bounded: samples, events, and frames, which are what changed from one
second to the next, for readers who follow live.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paramfleet_coordinator.core.readings import History, number
from paramfleet_coordinator.core.stragglers import Watch, find_straggler, lag_reason
from paramfleet_shared.discovery.records import MemberKey, Snapshot

__all__ = ["JobView", "disk_fault_of", "restoring_of"]

MAX_EVENTS = 1000
MAX_FRAMES = 300
FRAME_S = 1.0
MAX_SERVER_SAMPLES = 1000
MAX_GROWING = 8
"""Tables whose growth is drawn: as many as there are colours."""

_MAX_WORDS = 500
"""Characters of what a worker says in an event."""

_WORKER_PULLS = ("pull", "push", "exchange")


@dataclass(slots=True)
class _Server:
    """One pserver's sums, and the rates made of them."""

    before: tuple[float, Mapping[str, Any]] | None = None
    disk_fault: str = ""
    """What its disk refuses with."""
    samples: deque[dict[str, Any]] = field(
        default_factory=lambda: deque(maxlen=MAX_SERVER_SAMPLES)
    )
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=4))
    """Requests that wait for no other worker, and their seconds, in the last samples."""


class JobView:
    """Watches one run of a job. One task owns it."""

    def __init__(self) -> None:
        self._workers: dict[int, History] = {}
        self._servers: dict[int, _Server] = {}
        self._known: dict[MemberKey, tuple[int, str]] = {}
        self._lives: dict[int, int] = {}
        self._saved: dict[str, Mapping[str, Any]] = {}
        self._waits_for: dict[int, str] = {}
        self._outside: dict[int, int] = {}
        """Steps of each worker that a guard found out of range."""
        self._watch = Watch()
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._num_events = 0
        self._frames: deque[dict[str, Any]] = deque(maxlen=MAX_FRAMES)
        self._num_frames = 0
        self._framed_at = float("-inf")
        self._framed_events = 0
        self._changes: dict[str, dict[str, Any]] = {"workers": {}, "servers": {}}
        self._rows: deque[dict[str, Any]] = deque(maxlen=MAX_SERVER_SAMPLES)
        """Of the largest tables over all pservers, each second."""

    def note(self, kind: str, words: str, *, now: float, **facts: Any) -> None:
        """Add an event.

        Args:
            kind: As ``worker.joined``.
            words: One sentence.
            now: The time.
            facts: Plain values.
        """
        self._num_events += 1
        self._events.append(
            {
                "number": self._num_events,
                "at_s": round(now, 2),
                "kind": kind,
                "words": words,
                "facts": facts,
            }
        )

    def observe(self, snapshot: Snapshot, *, now: float) -> None:
        """Take in what the registry holds."""
        self._note_members(snapshot, now)
        for (role, index), facts in snapshot.facts.items():
            if role == "worker":
                self._take_worker(index, snapshot, facts, now)
            elif role == "pserver":
                self._take_server(index, facts, now)
        training = self._training(snapshot)
        windows = {
            rank: window
            for rank, history in self._workers.items()
            if rank in training and (window := history.window()) is not None
        }
        if now - self._framed_at >= FRAME_S:
            if self._watch.look(find_straggler(windows, server_s=self._server_s())):
                self._note_straggler(now)
            self._take_rows(snapshot, now)
            self._close_frame(now)

    def events(self, *, after: int = 0) -> list[dict[str, Any]]:
        """Return the events with a higher number, oldest first."""
        return [event for event in self._events if event["number"] > after]

    @property
    def straggler(self) -> dict[str, Any] | None:
        """Return who holds the others up, in plain values."""
        named = self._watch.named
        if named is None:
            return None
        return {"rank": named.rank, "cause": named.cause, "words": named.words}

    def lag_reason(self, rank: int) -> str:
        """Return in words what a worker's time goes to; empty if nothing stands out."""
        history = self._workers.get(rank)
        window = history.window() if history is not None else None
        waits_for = self._waits_for.get(rank, "")
        return lag_reason(window, self._watch.named, rank, waits_for=waits_for)

    def latest(self, rank: int) -> dict[str, Any]:
        """Return a worker's newest sample; empty before the first."""
        history = self._workers.get(rank)
        return dict(history.samples[-1]) if history is not None and history.samples else {}

    def latest_of_server(self, index: int) -> dict[str, Any]:
        """Return a pserver's newest sample; empty before the first."""
        server = self._servers.get(index)
        return dict(server.samples[-1]) if server is not None and server.samples else {}

    def history(self) -> dict[str, Any]:
        """Return every sample that is kept, of workers and servers by index."""
        return {
            "workers": {str(rank): list(h.samples) for rank, h in self._workers.items()},
            "servers": {str(index): list(s.samples) for index, s in self._servers.items()},
            "tables": list(self._rows),
        }

    @property
    def newest_frame(self) -> int:
        """Return the number of the newest frame; 0 before the first."""
        return self._num_frames

    def frames(self, *, after: int) -> list[dict[str, Any]] | None:
        """Return the frames with a higher number; None if some of them are gone."""
        if after > self._num_frames or (self._frames and after + 1 < self._frames[0]["number"]):
            return None
        return [frame for frame in self._frames if frame["number"] > after]

    def _note_members(self, snapshot: Snapshot, now: float) -> None:
        for key, member in sorted(snapshot.members.items()):
            end = snapshot.ends.get(key, "")
            end = "lost" if end == "gone" else end
            before = self._known.get(key)
            self._known[key] = (member.incarnation, end)
            if before is None or before[0] < member.incarnation:
                where = f"process {member.pid} on {member.host}"
                self._note_one(key, "joined", f"joined: {where}", now)
            elif end != before[1]:
                words = {"done": "has finished", "left": "has left", "lost": "is lost"}.get(
                    end, ""
                )
                if words:
                    self._note_one(key, end, words, now)

    def _note_one(self, key: MemberKey, kind: str, words: str, now: float) -> None:
        role, index = key
        self.note(f"{role}.{kind}", f"{role} {index} {words}", now=now, role=role, index=index)

    def _training(self, snapshot: Snapshot) -> set[int]:
        return {
            index
            for role, index in snapshot.members
            if role == "worker" and not snapshot.ends.get((role, index))
        }

    def _take_worker(
        self, rank: int, snapshot: Snapshot, facts: Mapping[str, Any], now: float
    ) -> None:
        member = snapshot.members.get(("worker", rank))
        life = member.incarnation if member is not None else 0
        if self._lives.get(rank, life) != life:
            self._workers.pop(rank, None)
            self._outside.pop(rank, None)
        self._lives[rank] = life
        sample = self._workers.setdefault(rank, History()).take(facts, now=now)
        if sample is not None:
            self._changes["workers"][str(rank)] = sample
        self._take_guard(rank, facts.get("guard"), now)
        days = facts.get("by_days")
        waits_for = days.get("waits_for") if isinstance(days, Mapping) else None
        self._waits_for[rank] = waits_for if isinstance(waits_for, str) else ""
        for kind in ("checkpoint", "periodic_checkpoint"):
            done = facts.get(kind)
            if rank == 0 and isinstance(done, Mapping) and done != self._saved.get(kind):
                self._saved[kind] = dict(done)
                event, words = _told_of(done)
                self.note(event, words, now=now, **done)
        told = facts.get("shrink")
        if rank == 0 and isinstance(told, Mapping) and told != self._saved.get("shrink"):
            self._saved["shrink"] = dict(told)
            event, words = _told_of_rows(told)
            self.note(event, words, now=now, **told)
        told = facts.get("load")
        if rank == 0 and isinstance(told, Mapping) and told != self._saved.get("load"):
            self._saved["load"] = dict(told)
            if told.get("state") != "waiting":
                event, words = _told_of_load(told)
                self.note(event, words, now=now, **told)

    def _take_guard(self, rank: int, said: Any, now: float) -> None:
        """Note the newest step of a worker that a guard found out of range."""
        if not isinstance(said, Mapping) or not number(said.get("outside")):
            return
        before, self._outside[rank] = self._outside.get(rank, 0), int(said["outside"])
        if self._outside[rank] > before:
            more = self._outside[rank] - before - 1
            words = f"worker {rank}: {str(said.get('last'))[:_MAX_WORDS]}"
            words += f"; and {more} more steps" if more else ""
            counts = {"rank": rank, "outside": self._outside[rank]}
            self.note("worker.outside", words, now=now, **counts)

    @property
    def checkpoint(self) -> Mapping[str, Any]:
        """Return how the last checkpoint went that an operator asked for; empty before."""
        return self._saved.get("checkpoint", {})

    @property
    def periodic_checkpoint(self) -> Mapping[str, Any]:
        """Return how the last one went that the strategy asks for; empty before."""
        return self._saved.get("periodic_checkpoint", {})

    @property
    def load(self) -> Mapping[str, Any]:
        """Return how the last load goes that an operator asked for; empty before."""
        return self._saved.get("load", {})

    @property
    def shrink(self) -> Mapping[str, Any]:
        """Return how many rows went that an operator wanted to go; empty before."""
        return self._saved.get("shrink", {})

    def _take_server(self, index: int, facts: Mapping[str, Any], now: float) -> None:
        server = self._servers.setdefault(index, _Server())
        fault, server.disk_fault = server.disk_fault, disk_fault_of(facts) or ""
        if fault != server.disk_fault:
            self._note_disk(index, server.disk_fault, now)
        uptime_s = facts.get("uptime_s")
        if not number(uptime_s):
            return
        at = float(uptime_s)  # type: ignore[arg-type]  # number() looked
        before, server.before = server.before, (at, facts)
        if before is None or before[0] >= at:
            if before is not None and before[0] == at:
                server.before = before
            return
        wall_s = at - before[0]
        count, seconds = _served(facts, before[1])
        server.recent.append((count, seconds))
        tables = facts.get("tables", ())
        is_known = restoring_of(facts) is None
        sample = {
            "at_s": round(now, 2),
            "requests_per_s": round(count / wall_s, 1),
            "request_ms": round(1e3 * seconds / count, 3) if count else None,
            "rows": sum(table.get("rows", 0) for table in tables) if is_known else None,
            "bytes": sum(table.get("bytes", 0) for table in tables) if is_known else None,
        }
        server.samples.append(sample)
        self._changes["servers"][str(index)] = sample

    def _take_rows(self, snapshot: Snapshot, now: float) -> None:
        """Keep how many rows the largest tables have, while each pserver knows its own."""
        if any(restoring_of(facts) is not None for facts in snapshot.facts.values()):
            return
        counts: Counter[str] = Counter()
        for (role, _), facts in snapshot.facts.items():
            for table in facts.get("tables", ()) if role == "pserver" else ():
                counts[str(table.get("name"))] += int(table.get("rows", 0))
        if counts:
            largest = dict(counts.most_common(MAX_GROWING))
            self._rows.append({"at_s": round(now, 2), "rows": largest})

    def _note_disk(self, index: int, fault: str, now: float) -> None:
        if fault:
            words = f"the disk of server {index} takes no change, who pushes waits: {fault}"
            self.note("server.disk_refuses", words, now=now, index=index, fault=fault)
        else:
            words = f"the disk of server {index} takes changes again"
            self.note("server.disk_takes", words, now=now, index=index)

    def _server_s(self) -> float | None:
        """Return the mean seconds the pservers spent on a request lately."""
        recent = [pair for server in self._servers.values() for pair in server.recent]
        count = sum(pair[0] for pair in recent)
        return sum(pair[1] for pair in recent) / count if count else None

    def _note_straggler(self, now: float) -> None:
        named = self._watch.named
        if named is None:
            self.note("straggler.gone", "no worker delays the others any more", now=now)
        else:
            facts = {"rank": named.rank, "cause": named.cause}
            self.note("straggler.named", named.words, now=now, **facts)

    def _close_frame(self, now: float) -> None:
        self._framed_at = now
        self._num_frames += 1
        new = self.events(after=self._framed_events)
        self._framed_events = self._num_events
        self._frames.append(
            {
                "number": self._num_frames,
                "at_s": round(now, 2),
                **self._changes,
                "tables": self._rows[-1] if self._rows else None,
                "events": new,
                "straggler": self.straggler,
            }
        )
        self._changes = {"workers": {}, "servers": {}}


_RESTORING = ("snapshot_bytes", "of_snapshot_bytes", "commands", "of_commands")
"""What a pserver says of it."""


def disk_fault_of(facts: Mapping[str, Any]) -> str | None:
    """Return what a pserver's disk refuses with, as its facts say; None if it doesn't."""
    said = facts.get("log")
    fault = said.get("fault") if isinstance(said, Mapping) else None
    return None if fault is None else str(fault)


def restoring_of(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how far a pserver is that restores its tables, as its facts say; else None.

    What isn't a count, as of another version, is 0.
    """
    said = facts.get("restoring")
    if not isinstance(said, Mapping):
        return None
    counts = {name: said.get(name) for name in _RESTORING}
    return {name: num if type(num) is int and num >= 0 else 0 for name, num in counts.items()}


def _told_of(done: Mapping[str, Any]) -> tuple[str, str]:
    """Return the event that a checkpoint is, and a sentence about it."""
    which = f"the checkpoint {done.get('dirname')}"
    if done.get("error"):
        return "checkpoint.failed", f"{which} was not written: {done['error']}"
    paused = f"pushes waited {done.get('paused_s')} s"
    words = f"{which} is written, in {done.get('seconds')} s; {paused}"
    if not done.get("consistent"):
        words += f"; it is not a consistent cut: {done.get('reason')}"
    return "checkpoint.written", words


def _told_of_rows(told: Mapping[str, Any]) -> tuple[str, str]:
    """Return the event that a look at rows is, and a sentence about it."""
    if told.get("error"):
        return "shrink.failed", f"rows were not removed: {told['error']}"
    rows = told.get("rows")
    counts = rows if isinstance(rows, Mapping) else {}
    said = ", ".join(f"{count} of {name}" for name, count in sorted(counts.items()))
    went = "would go" if told.get("dry_run") else "went"
    return "shrink.done", f"rows {went}: {said or 'none'}"


def _told_of_load(told: Mapping[str, Any]) -> tuple[str, str]:
    """Return the event that the end of a load is, and a sentence about it."""
    which = f"the checkpoint {told.get('dirname')}"
    if told.get("error"):
        return "load.failed", f"{which} was not loaded: {told['error']}"
    words = f"{which} is loaded, in {told.get('seconds')} s: step {told.get('step')}"
    return "load.ended", words


def _served(after: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[float, float]:
    """Return requests that wait for no worker, and their seconds, between two readings."""
    new, old = after.get("service", {}), before.get("service", {})
    names: Iterable[str] = _WORKER_PULLS
    if after.get("mode") == "sync":
        names = ("push", "step")  # a pull waits for the step to be whole
    count = seconds = 0.0
    for name in names:
        calls, took = new.get(name, (0, 0.0))
        calls_before, took_before = old.get(name, (0, 0.0))
        count += calls - calls_before
        seconds += took - took_before
    return count, seconds
