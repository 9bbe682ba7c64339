"""How this worker is doing: what its job and its own admin address show of it.

The training thread writes, the communicator's loop reads: every value is replaced
as a whole, so neither waits for the other.
"""

import math
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from paramfleet.telemetry.step_times import PHASES
from paramfleet.telemetry.traffic import Traffic
from paramfleet.training.modes.base import learning_rate
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet.training.passes.running import PassFacts
from paramfleet.transport.outbox import Outbox
from paramfleet_shared.discovery.records import Member
from paramfleet_shared.net.tls import MEMBER_ROLES, tls_of
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry

if TYPE_CHECKING:
    from paramfleet_shared.net.admin import AdminServer

__all__ = ["Progress"]

_GAUGES = {
    "step": "Steps of this worker.",
    "loss": "The loss that the script reported last; without reports, the loss that "
    "minimize got.",
    "examples_per_s": "Examples per second between the last two reports.",
    "staleness": "The lead of this worker over the slowest worker, in batches, as of the "
    "last answer of a pserver.",
}

_UNDERWAY = {
    "pushes_in_flight": "async: pushes that were sent and are not answered yet.",
    "unapplied_steps": "async: steps whose push waits to be sent, or is not answered yet. "
    "This is the age of this worker's own gradients.",
}

_LOCALSGD = {
    "synchronisations": "LocalSGD: exchanges so far. The exchange of one of n fragments "
    "counts as 1/n.",
    "sent_bytes": "LocalSGD: bytes of the differences that this worker sent.",
    "stall_seconds": "LocalSGD: seconds in which the training waited for an exchange.",
    "k_steps": "LocalSGD: the current number of steps between two exchanges.",
}

_GUARD = {
    "outside": "Steps whose loss or gradient was outside the ranges of the strategy.",
    "skipped": "Steps that were skipped because their loss or gradient was outside the ranges.",
}

_PASS = {
    "rows": "Rows of the last pass with rows on a device.",
    "hit_share": "Share of the rows of the last pass that was on the device already.",
    "device_bytes": "Device memory that the rows of the last pass took.",
    "written": "Rows that the last pass wrote back.",
    "build_s": "Seconds that reading the rows of the last pass took, mostly during the "
    "pass before it.",
    "begin_s": "Seconds in which the training waited for the rows of the last pass.",
    "train_s": "Seconds that the batches of the last pass took.",
    "end_s": "Seconds that the write-back of the last pass took.",
}

_OUTBOX = {
    "changes": "Pushes and exchanges that the worker keeps until they are on the disks of "
    "all pservers.",
    "bytes": "Bytes of the pushes and exchanges that the worker keeps.",
}

_MAX_METRICS = 16
"""Names of further metrics that a worker may report."""

_OPERATIONS = ("pull", "push", "step", "exchange")
"""Those that a worker's traffic consists of."""


class Progress:
    """The facts about one worker, and the metrics made of them.

    Args:
        clock: For uptime and rates.
        member: Returns this worker's place in the job; None before it has joined.
    """

    def __init__(self, clock: Clock, member: Callable[[], Member | None]) -> None:
        self._clock = clock
        self._member = member
        self._started_at = clock.monotonic()
        self._reported_at: float | None = None
        self._optimizer: DistributedOptimizer | None = None
        self.waits_in = ""
        """Call of the script in which this worker waits for the others; empty for none."""
        self._loss: float | None = None
        self._examples_per_s: float | None = None
        self._reported: dict[str, float] = {}
        self._noted: dict[str, Any] = {}
        self._noting = threading.Lock()
        self._pass_facts: PassFacts | None = None
        self._outbox: Outbox | None = None
        self._num_passes = 0
        self._metrics = MetricRegistry()
        self._show("worker", _GAUGES, self._measure)
        self._traffic = Traffic()
        for name, sentence in (
            ("sent", "Bytes of requests to the pservers."),
            ("received", "Bytes of the pservers' answers."),
        ):
            gauge = self._metrics.gauge(f"worker_{name}_bytes", sentence, ["operation"])
            for op in _OPERATIONS:
                gauge.labels(op).set_function(partial(self._measure_bytes, name, op))
        for name, sentence in (
            ("receiving", "Memory of the pservers' answers that are being received."),
            ("sending", "Bytes of requests to the pservers that are not sent yet."),
        ):
            gauge = self._metrics.gauge(f"worker_{name}_bytes", sentence)
            gauge.set_function(partial(self._measure_held, name))
        misses = self._metrics.gauge(
            "worker_prefetch_misses",
            "Lookups under fleet.prefetch whose rows had not been prefetched.",
        )
        misses.set_function(self._prefetch_misses)
        self._show("worker", _UNDERWAY, self._measure_underway)
        seconds = self._metrics.gauge(
            "worker_phase_seconds",
            "Seconds in each phase of the steps: data, pull, "
            "compute, push, barrier (waiting for other workers), "
            "wait (for data that is not there yet), pause.",
            ["phase"],
        )
        for phase in PHASES:
            seconds.labels(phase).set_function(partial(self._measure_phase, phase))
        calls = self._metrics.gauge(
            "worker_call_seconds",
            "Seconds that the calls in paramfleet_worker_calls took, summed.",
            ["operation"],
        )
        numbers = self._metrics.gauge(
            "worker_calls",
            "Calls to all pservers that do not wait for another worker.",
            ["operation"],
        )
        for op in _OPERATIONS:
            calls.labels(op).set_function(partial(self._measure_calls, op, 1))
            numbers.labels(op).set_function(partial(self._measure_calls, op, 0))
        self._show("worker_localsgd", _LOCALSGD, self._measure_apart)
        self._show("worker_resend", _OUTBOX, self._measure_outbox)
        self._show("worker_guard", _GUARD, self._measure_guard)
        self._show("worker_pass", _PASS, self._measure_pass)
        self._further = self._metrics.gauge(
            "worker_reported",
            "Further values that the script reported last, such as auc "
            "and calibration: the first 16 names.",
            ["name"],
        )
        self._examples = self._metrics.counter(
            "worker_examples", "Examples that the script reported."
        )

    def _show(
        self, of: str, sentences: Mapping[str, str], measure: Callable[[str], float]
    ) -> None:
        """Make a gauge of each name."""
        for name, sentence in sentences.items():
            gauge = self._metrics.gauge(f"{of}_{name}", sentence)
            gauge.set_function(partial(measure, name))

    def watch(self, optimizer: DistributedOptimizer) -> None:
        """Count the steps of this optimizer."""
        self._optimizer = optimizer

    def watch_traffic(self, traffic: Traffic) -> None:
        """Show the bytes that this counts."""
        self._traffic = traffic

    def watch_outbox(self, outbox: Outbox) -> None:
        """Show what this keeps to be sent again."""
        self._outbox = outbox

    def _measure_outbox(self, name: str) -> float:
        return 0.0 if self._outbox is None else float(self._outbox.facts()[name])

    def _measure_guard(self, name: str) -> float:
        guard = None if self._optimizer is None else self._optimizer.guard
        return 0.0 if guard is None else float(guard.facts()[name])

    def _measure_pass(self, name: str) -> float:
        return 0.0 if self._pass_facts is None else float(getattr(self._pass_facts, name))

    def report(
        self, *, loss: float, examples: int, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Note what the training script says of its last batches."""
        now = self._clock.monotonic()
        before, self._reported_at = self._reported_at, now
        self._loss = float(loss)
        self._examples_per_s = (
            0.0 if before is None else round(examples / max(now - before, 1e-9), 1)
        )
        self._examples.inc(examples)
        known = {**self._reported, **{n: float(v) for n, v in (metrics or {}).items()}}
        self._reported = dict(list(known.items())[:_MAX_METRICS])
        for name, value in self._reported.items():
            self._further.labels(name).set(value)

    def note(self, **facts: Any) -> None:
        """Tell these too from now on; any thread may call it."""
        with self._noting:
            self._noted = {**self._noted, **facts}

    def note_pass(self, facts: PassFacts) -> None:
        """Note a pass with rows on a device that has ended."""
        self._pass_facts = facts
        self._num_passes += 1
        self.note(device_pass={**facts.rounded(), "ended": self._num_passes})

    def facts(self) -> dict[str, Any]:
        """Return what changes while training.

        ``loss`` is what was reported last, else what ``minimize`` was given; None before.
        """
        optimizer = self._optimizer
        loss = self._loss
        facts: dict[str, Any] = {}
        if optimizer is not None:
            facts = _facts_of(optimizer)
            loss = _number(optimizer.last_loss) if loss is None else loss
        return {
            "step": 0 if optimizer is None else optimizer.num_steps,
            "at": self._place(),
            "loss": loss,
            "examples_per_s": self._examples_per_s,
            "staleness": 0 if optimizer is None else optimizer.staleness,
            "mode": None if optimizer is None else optimizer.mode.name,
            "sent_bytes": sum(self._traffic.sent_bytes.copy().values()),
            "received_bytes": sum(self._traffic.received_bytes.copy().values()),
            "metrics": {**self._reported, **self._apart()},
            "calls": self._calls(),
            **self._noted,
            **facts,
        }

    def _place(self) -> str:
        """Return where this worker is, for those that wait for it."""
        optimizer, waits_in = self._optimizer, self.waits_in
        if waits_in:
            return f"in {waits_in}"
        if optimizer is None or not optimizer.started:
            return "before its first step"
        if optimizer.is_finished:
            return "behind the end of its training"
        return f"in step {optimizer.num_steps + 1}"

    def admin(self, settings: JobSettings) -> "AdminServer":
        """Return a new admin server of these facts.

        Raises:
            CertificateFilesError: if the settings' certificate can't be used.
            TokensFileError: if the file of tokens can't be read.
        """
        from paramfleet_shared.net.access import gate_of  # noqa: PLC0415 -- slow
        from paramfleet_shared.net.admin import AdminServer  # noqa: PLC0415 -- slow

        tls = tls_of(settings, "worker")
        pages = tls and tls.accepts(*MEMBER_ROLES, protocol="http/1.1")
        return AdminServer(
            status=self._status,
            ready=self._ready,
            metrics=self._metrics,
            gate=gate_of(settings, pages),
            tls=pages,
        )

    def _status(self) -> dict[str, Any]:
        member = self._member()
        return {
            "role": "worker",
            "rank": None if member is None else member.index,
            "incarnation": None if member is None else member.incarnation,
            "uptime_s": round(self._clock.monotonic() - self._started_at, 3),
            **self.facts(),
            "table_bytes": self._traffic.table_bytes.copy(),
            "resend": None if self._outbox is None else self._outbox.facts(),
        }

    def _ready(self) -> tuple[bool, str]:
        if self._member() is None:
            return False, "joining the job"
        if self._optimizer is None or not self._optimizer.started:
            return False, "waiting for fleet.init_worker()"
        return True, "training"

    def _calls(self) -> dict[str, list[float]]:
        """Return by operation: calls without waits for others, their seconds, all bytes."""
        sent, received = self._traffic.sent_bytes, self._traffic.received_bytes
        return {
            op: [calls, round(seconds, 5), sent.get(op, 0) + received.get(op, 0)]
            for op, (calls, seconds) in self._traffic.call_times.copy().items()
        }

    def _measure_phase(self, phase: str) -> float:
        if self._optimizer is None:
            return 0.0
        seconds: float = self._optimizer.times.facts()["seconds"][phase]
        return seconds

    def _measure_calls(self, op: str, which: int) -> float:
        return float(self._traffic.call_times.get(op, (0, 0.0))[which])

    def _prefetch_misses(self) -> float:
        return 0 if self._optimizer is None else self._optimizer.prefetch_misses

    def _measure_underway(self, name: str) -> float:
        count: int = 0 if self._optimizer is None else getattr(self._optimizer, name)
        return float(count)

    def _apart(self) -> dict[str, float]:
        """Return the cost of LocalSGD's exchanges until now, as curves; empty without them."""
        ledger = None if self._optimizer is None else self._optimizer.ledger
        figures = {} if ledger is None else ledger.figures()
        return {f"localsgd_{name}": round(value, 4) for name, value in figures.items()}

    def _measure_apart(self, name: str) -> float:
        return self._apart().get(f"localsgd_{name}", 0.0)

    def _measure(self, name: str) -> float:
        value = self.facts()[name]
        return math.nan if value is None else float(value)

    def _measure_held(self, name: str) -> float:
        held: int = getattr(self._traffic.held(), name)
        return float(held)

    def _measure_bytes(self, name: str, op: str) -> float:
        sent = name == "sent"
        counts = self._traffic.sent_bytes if sent else self._traffic.received_bytes
        return float(counts.get(op, 0))


def _facts_of(optimizer: DistributedOptimizer) -> dict[str, Any]:
    """Return the facts that an optimizer reports in addition to its steps."""
    mode = optimizer.mode
    return {
        **({} if optimizer.guard is None else {"guard": optimizer.guard.facts()}),
        "times": optimizer.times.facts(),
        "lr": sorted({learning_rate(group) for group in optimizer.param_groups}),
        "k_steps": mode.k_steps,
        "max_staleness": mode.max_staleness,
        "staleness_counts": optimizer.staleness_counts,
    }


def _number(loss: torch.Tensor | None) -> float | None:
    return float(loss) if loss is not None and loss.numel() == 1 else None
