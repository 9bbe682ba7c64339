"""How workers carry out an operator's load: all of them, once, each between two of its steps.

The order comes to each worker with a heartbeat of its own, so they first come together
(``session.coming_together``); then they load as ``fleet.load_model`` does, but for positions in
data. In sync the communicator's thread arrives for a training thread that is within a step; in
other modes only for one that waits for all workers, or has ended.

A load that all have refused changes nothing, and the training goes on. One that failed in part
ends this worker's step with ``LoadIncompleteError``, and so the job.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramfleet.model_state.one_checkpoint import folder_to_load
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.coming_together import (
    Arrival,
    LoadNotBegunError,
    Verdict,
    judge_arrivals,
)
from paramfleet.session.session import Session
from paramfleet.training.optimizer import LoadIncompleteError
from paramfleet_shared.checkpoint.manifest import ManifestError
from paramfleet_shared.discovery.errors import (
    BarrierTimeoutError,
    GatherLostError,
    NoRedisError,
)
from paramfleet_shared.discovery.orders import LoadOrder
from paramfleet_shared.errors import FleetError
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.system.clock import Clock

if TYPE_CHECKING:
    from concurrent.futures import Future

    from paramfleet.transport.communicator import Communicator

__all__ = ["OrderedLoads"]

log = logging.getLogger(__name__)

_GATHER = "fleet.load_order"


class OrderedLoads:
    """Carries out loads for one session. Made and called by the training thread.

    Args:
        session: Whose worker loads.
        saving: Loads.
        clock: For how long that took.
    """

    def __init__(self, session: Session, saving: Saving, clock: Clock) -> None:
        self._session = session
        self._saving = saving
        self._clock = clock
        self._communicator: Communicator | None = None
        self._lock = threading.Lock()
        """For all below, which the communicator's thread changes, too."""
        self._seen = 0
        """Number of the newest load that is known; each is carried out once."""
        self._order: LoadOrder | None = None
        """That one, if it isn't done."""
        self._seen_at = 0.0
        self._begun = 0
        """Steps that the training thread may have begun."""
        self._waits_at = ""
        self._ended = False
        self._verdict: Future[Verdict] | None = None
        """What follows from this worker's newest arrival."""
        self._loads = False

    def between_steps(self) -> None:
        """Load if it is time; almost free of cost without an order.

        Raises:
            LoadIncompleteError: if a load failed in part.
            FleetError: if another worker didn't come, or the job failed.
        """
        if not self._is_ready():
            return
        in_step = self._in_step()
        while True:
            with self._lock:
                self._look()
                if self._order is not None and self._verdict is None:
                    self._arrive()
                verdict = self._verdict
                goes_on = verdict is None or not (in_step or verdict.done())
                if goes_on:
                    self._begun = self._num_steps() + 1
            if goes_on or verdict is None:
                return
            found = verdict.result()
            if found.kind == "load":
                break
            if found.kind == "again" and not in_step:
                return  # at the end of the next step
        if in_step and self._num_steps() < found.step:
            with self._lock:
                self._begun = self._num_steps() + 1
            return
        self._load()

    def before_finishing(self) -> None:
        """Carry out what all have agreed on: this worker takes no step any more.

        Raises:
            FleetError: as ``between_steps``.
        """
        if self._is_ready():
            self._settle(self._note_end)

    @contextmanager
    def meeting(self, name: str) -> Iterator[None]:
        """Say what this worker waits at; load before, if all have agreed on that.

        In sync all workers have taken the same steps when they meet.

        Raises:
            FleetError: as ``between_steps``.
        """
        if self._loads or not self._is_ready() or self._in_step():
            yield
            return

        def note() -> None:
            self._waits_at = name

        self._settle(note)
        try:
            yield
        finally:
            with self._lock:
                self._waits_at = ""

    def _note_end(self) -> None:
        self._ended = True

    def _settle(self, note: Callable[[], None]) -> None:
        """Wait for what follows from an arrival, and load if that does; then ``note``."""
        while True:
            with self._lock:
                verdict = self._verdict
                if verdict is None:
                    note()
                    return
            if verdict.result().kind == "load":
                self._load()

    def _is_ready(self) -> bool:
        """Return whether there are orders and steps; look at each heartbeat from then on."""
        if self._communicator is None:
            session = self._session
            optimizer, communicator = session.optimizer, session.communicator
            if communicator is None or optimizer is None or session.job is None:
                return False
            self._communicator = communicator
            communicator.follow(lambda _placement: self._beat())
        return not self._session.stopped

    def _in_step(self) -> bool:
        assert self._session.optimizer is not None, "it steps"
        return self._session.optimizer.running.in_step

    def _num_steps(self) -> int:
        assert self._session.optimizer is not None, "it steps"
        return self._session.optimizer.num_steps

    def _beat(self) -> None:
        """Arrive for a training thread that doesn't; called on the loop."""
        with self._lock:
            self._look()
            away = self._waits_at or self._ended or self._in_step()
            if self._order is not None and self._verdict is None and away:
                self._arrive()

    def _look(self) -> None:
        """Take a new order, once; the lock is held."""
        orders = self._session.backend.orders()
        order = None if orders is None else orders.load
        if order is None or order.number <= self._seen:
            return
        self._seen, self._order, self._seen_at = order.number, order, self._clock.monotonic()
        self._tell(order, state="waiting")

    def _arrive(self) -> None:
        """Say where this worker is; the lock is held."""
        assert self._communicator is not None, "there are orders"
        assert self._order is not None, "it was asked for"
        arrival = Arrival(
            number=self._order.number,
            step=max(self._begun, self._num_steps()),
            ended=self._ended,
            waits_at=self._waits_at,
            known_s=self._clock.monotonic() - self._seen_at,
        )
        self._verdict = self._communicator.submit(self._come_together(self._order, arrival))

    async def _come_together(self, order: LoadOrder, arrival: Arrival) -> Verdict:
        """Return what follows when all workers have arrived, however long that takes.

        Raises:
            FleetError: if the job failed, or Redis has lost what others said: this worker can't
                know what they do.
        """
        assert self._communicator is not None, "there are orders"
        session = self._communicator.session
        while True:
            try:
                said = await session.gather(_GATHER, arrival.packed())
            except BarrierTimeoutError as error:
                log.warning("worker.load_waits", extra={"reason": str(error)})
                continue
            break
        arrivals = [Arrival.unpacked(each) for each in said]
        verdict = judge_arrivals(arrivals, patience_s=order.patience_s)
        with self._lock:
            if verdict.kind != "load":
                self._verdict = None
            if verdict.kind == "drop":
                self._order = None
                unbegun = LoadNotBegunError(folder=order.dirname, reason=verdict.reason)
                self._tell(order, state="failed", error=str(unbegun), code=unbegun.code)
        return verdict

    def _load(self) -> None:
        """Load, together with all other workers.

        Raises:
            LoadIncompleteError: if it failed in part.
            FleetError: if another worker didn't come, or the job failed.
        """
        order, optimizer = self._order, self._session.optimizer
        assert order is not None, "all have agreed on it"
        assert optimizer is not None, "it steps"
        began = self._clock.monotonic()
        self._loads = True
        try:
            outcome = self._load_together(order)
        finally:
            self._loads = False
        with self._lock:
            self._order = self._verdict = None
            self._begun = optimizer.num_steps + 1
        seconds = round(self._clock.monotonic() - began, 3)
        outcome |= {"seconds": seconds, "step": optimizer.num_steps}
        try:
            optimizer.check_loaded()
        except LoadIncompleteError as error:
            self._tell(order, **{**outcome, "error": str(error), "code": error.code})
            raise
        self._tell(order, **outcome)
        self._session.raise_if_failed()

    def _load_together(self, order: LoadOrder) -> dict[str, Any]:
        """Load, and return what to tell of it: in all workers the same error, or none.

        Raises:
            BarrierTimeoutError: if a worker didn't come: it can't be known what others do.
            GatherLostError: if Redis has lost what others said: the same.
            NoRedisError: if it stays away: the same.
            FleetError: if what waits in this worker can't be sent.
        """
        self._saving.come_together()
        try:
            report = self._saving.load_together(_folder_of(order))
        except (BarrierTimeoutError, GatherLostError, NoRedisError):
            raise
        except Exception as error:  # noqa: BLE001 - a user's object may raise anything
            code = error.code if isinstance(error, FleetError) else "internal"
            return {"state": "failed", "error": str(error) or repr(error), "code": code}
        return {"state": "loaded", "tables": report.rows, "missing": report.missing}

    def _tell(self, order: LoadOrder, **more: Any) -> None:
        """Tell the job what becomes of an order; worker 0 does."""
        if not self._session.is_first_worker():
            return
        told = {"number": order.number, "dirname": order.dirname, "error": "", **more}
        if told["state"] != "waiting":
            word = "worker.load_failed" if told["error"] else "worker.loaded_by_order"
            facts = {"folder": order.dirname, "reason": told["error"]}
            (log.warning if told["error"] else log.info)(word, extra=facts)
        self._session.progress.note(load=told)


def _folder_of(order: LoadOrder) -> Path:
    """Return where the order's links lead; what can't be read is refused when it is read."""
    try:
        return folder_to_load(order.dirname)
    except ManifestError:
        return place_of(order.dirname).absolute()
