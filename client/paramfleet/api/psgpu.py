"""``fleet.PSGPU``: passes over data by the names that Paddle has for them.

A pass here is one or more passes of ``fleet.device_pass``, with the rows on a device.
"""

import datetime as dt
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from typing_extensions import runtime_checkable

from paramfleet.api.device_passing import DevicePassing, PassingLoader
from paramfleet.nn.views import tensors_of
from paramfleet.nn.watching import BatchLookups, IdsOfBatch, evaluating
from paramfleet.session.session import Session
from paramfleet.training.passes.running import PassFacts
from paramfleet_shared.errors import ContractError

__all__ = ["PSGPU", "PassArgumentError", "PassOrderError", "PsGpuMaking"]

log = logging.getLogger(__name__)


class PassOrderError(ContractError):
    """A function of ``fleet.PSGPU`` was called before the one that it needs."""

    code = "contract.pass_order"
    function: str
    remedy: str
    sentence = "PSGPU.{function}(): {remedy}"


class PassArgumentError(ContractError):
    """A function of ``fleet.PSGPU`` was given what it can't use."""

    code = "contract.pass_argument"
    function: str
    value: str
    rule: str
    sentence = "PSGPU.{function}({value}): {rule}"


@runtime_checkable
class _InMemory(Protocol):
    """A dataset that is read into memory, as ``fleet.data.InMemoryDataset``."""

    def load_into_memory(self) -> None: ...
    def preload_into_memory(self) -> None: ...
    def wait_preload_done(self) -> None: ...


class PSGPU:
    """Passes by Paddle's names; made by ``fleet.PSGPU()``.

        ps = fleet.PSGPU()
        ps.set_dataset(dataset, model, ids=lambda batch: {"words": batch["words"].values})
        for day in days:
            ps.set_date(day.year, day.month, day.day)
            ps.load_into_memory()
            for batch in ps.begin_pass():
                optimizer.minimize(loss(model(batch)))
            ps.end_pass()
        ps.finalize()

    Args:
        session: Whose worker trains.
        passing: Runs the passes.
    """

    def __init__(self, session: Session, passing: DevicePassing) -> None:
        self._session = session
        self._passing = passing
        self._dataset: Iterable[Any] | None = None
        self._model: torch.nn.Module | None = None
        self._ids: IdsOfBatch | None = None
        self._forward: Callable[[Any], object] | None = None
        self._slots: dict[str, tuple[int, ...]] = {}
        self._device: torch.device | None = None
        self._device_budget: int | None = None
        self._is_infer = False
        self._date: dt.date | None = None
        self._loaded: list[Any] | None = None
        """The batches of the next passes; of a dataset that is in memory, those are there."""
        self._is_loaded = False
        self._preload: _Preload | None = None
        self._open: ExitStack | None = None
        self._facts: list[dict[str, Any]] = []

    def set_dataset(
        self,
        dataset: Iterable[Any],
        model: torch.nn.Module,
        ids: IdsOfBatch | None = None,
        forward: Callable[[Any], object] | None = None,
    ) -> None:
        """Say which data passes are of, and what a model looks up in its batches.

        Paddle's takes the dataset alone, and knows the slots from its program.

        Args:
            dataset: A ``fleet.data.InMemoryDataset``, or any iterable of batches.
            model: Whose modules of ``fleet.nn`` look the rows up.
            ids: As of ``fleet.device_pass``. Batches of ``fleet.data`` need it.
            forward: As of ``fleet.device_pass``, if there is no ``ids``.

        Raises:
            PassOrderError: during a pass, or a preload of other data.
            PassArgumentError: if there is neither ``ids`` nor ``forward``.
        """
        self._check_closed("set_dataset")
        self._check_no_preload("set_dataset")
        if ids is None and forward is None:
            rule = "give ids= or forward=: a pass brings the rows that its batches look up"
            raise PassArgumentError(function="set_dataset", value="ids=None", rule=rule)
        self._dataset, self._model, self._ids, self._forward = dataset, model, ids, forward
        self._loaded, self._is_loaded = None, False

    def set_slot_vector(self, slots: Sequence[int]) -> None:
        """Take the numbers of the slots. Modules say what they look up: it has no effect here.

        Raises:
            PassArgumentError: if they aren't whole numbers from 0, or another vector has
                another length.
        """
        self._set_slots("set_slot_vector", slots)

    def set_slot_dim_vector(self, dims: Sequence[int]) -> None:
        """Take the widths of the slots' rows. Modules have theirs: it has no effect here.

        Raises:
            PassArgumentError: as ``set_slot_vector``.
        """
        self._set_slots("set_slot_dim_vector", dims)

    def set_slot_offset_vector(self, offsets: Sequence[int]) -> None:
        """Take the places of the slots in a record. It has no effect here.

        Raises:
            PassArgumentError: as ``set_slot_vector``.
        """
        self._set_slots("set_slot_offset_vector", offsets)

    def set_mode(self, infer: bool) -> None:  # noqa: FBT001 - Paddle's signature
        """Say whether passes train nothing.

        Such a pass has the model in evaluation mode until its end. Nothing is written back of
        it.

        Raises:
            PassOrderError: during a pass.
        """
        self._check_closed("set_mode")
        self._is_infer = bool(infer)

    def set_date(self, year: int, month: int, day: int) -> None:
        """Note the day of the data; log lines and facts of the next passes have it.

        Raises:
            PassArgumentError: if there is no such day.
            PassOrderError: during a pass.
        """
        self._check_closed("set_date")
        try:
            self._date = dt.date(year, month, day)
        except (TypeError, ValueError) as error:
            value = f"{year!r}, {month!r}, {day!r}"
            raise PassArgumentError(
                function="set_date", value=value, rule=f"is no day: {error}"
            ) from error

    def init_gpu_ps(
        self, device_ids: Sequence[int] = (), *, device_budget: int | None = None
    ) -> None:
        """Say on which devices passes have their rows.

        A worker trains on one: of n devices, the worker of rank r takes that at r mod n.

        Args:
            device_ids: Numbers of CUDA devices. None means the device of the model. Where there
                is no CUDA device, 0 is the CPU, and the log says so.
            device_budget: As of ``fleet.device_pass``.

        Raises:
            PassArgumentError: if there is no such device, or the budget is below 1.
            PassOrderError: during a pass.
        """
        self._check_closed("init_gpu_ps")
        ids = _whole("init_gpu_ps", device_ids)
        if device_budget is not None and device_budget < 1:
            rule = "must be at least 1, or None for no limit"
            value = f"device_budget={device_budget}"
            raise PassArgumentError(function="init_gpu_ps", value=value, rule=rule)
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        missing = [number for number in ids if number >= max(1, count)]
        if missing:
            rule = f"there is no device {missing[0]}: torch finds {count} CUDA devices"
            raise PassArgumentError(function="init_gpu_ps", value=str(list(ids)), rule=rule)
        self._device, self._device_budget = None, device_budget
        if ids and count:
            self._device = torch.device("cuda", ids[self._session.worker_index() % len(ids)])
        elif not count:
            facts = {"device": "cpu", "reason": "torch finds no CUDA device"}
            log.info("worker.psgpu_device", extra=facts)

    def load_into_memory(self) -> None:
        """Read the data of the next pass.

        It stays until other data is loaded: several passes may train it. What a pass that is
        open trains doesn't change.

        Raises:
            PassOrderError: before ``set_dataset``, or during a preload.
            FleetError: what is wrong with the data; that of before stays, if it is no dataset.
        """
        dataset = self._require_dataset("load_into_memory")
        self._check_no_preload("load_into_memory")
        if isinstance(dataset, _InMemory):
            self._is_loaded = False
            dataset.load_into_memory()
        else:
            self._loaded = list(dataset)
        self._is_loaded = True

    def preload_into_memory(self) -> None:
        """Begin to read the data of the next pass in the background, while this one trains.

        Raises:
            PassOrderError: before ``set_dataset``, or a second time before
                ``wait_preload_done``.
            FleetError: if a dataset has no files.
        """
        dataset = self._require_dataset("preload_into_memory")
        self._check_no_preload("preload_into_memory")
        self._preload = _Preload(dataset)

    def wait_preload_done(self) -> None:
        """Wait for what ``preload_into_memory`` reads; the next pass is of it.

        Raises:
            PassOrderError: if none was begun.
            FleetError: what is wrong with the data; that of before stays.
        """
        if self._preload is None:
            remedy = "call preload_into_memory() first"
            raise PassOrderError(function="wait_preload_done", remedy=remedy)
        preload, self._preload = self._preload, None
        self._loaded, self._is_loaded = preload.wait(), True

    def begin_pass(self) -> Iterator[Any]:
        """Begin a pass; return its batches, to be trained in this order.

        Rows come to the device with the first batch. They go back behind the last one, or with
        ``end_pass`` if the loop was left.

        Raises:
            PassOrderError: during a pass, or if nothing was loaded.
            PassArgumentError: if batches have no tensors that ``forward`` could show.
            CallOrderError: before ``fleet.distributed_optimizer``.
            WrongModeError: in a job of another mode than gpubox.
            PassOpenError: during a pass of ``fleet.device_pass``.
            FleetError: in the loop, as ``fleet.device_pass`` says.
        """
        self._check_closed("begin_pass")
        dataset = self._require_dataset("begin_pass")
        if not self._is_loaded:
            remedy = "no data was loaded: call load_into_memory() first"
            raise PassOrderError(function="begin_pass", remedy=remedy)
        self._passing.check("PSGPU().begin_pass")
        batches = list(dataset) if self._loaded is None else self._loaded
        if batches and self._ids is None and not dict(tensors_of(batches[0])):
            kind = type(batches[0]).__name__
            rule = f"a {kind} holds no tensors that forward could show: give set_dataset ids="
            raise PassArgumentError(function="begin_pass", value="", rule=rule)
        assert self._model is not None, "there is a dataset"
        loader: PassingLoader[Any] = self._passing.loader(
            batches,
            BatchLookups(self._model, self._ids, self._forward),
            device=self._device,
            device_budget=self._device_budget,
            note=self._note,
        )
        with ExitStack() as stack:
            if self._is_infer:
                stack.enter_context(evaluating(self._model))
            running = iter(loader)
            stack.callback(running.close)  # which keeps it while no loop does
            self._facts = []
            self._open = stack.pop_all()
        return running

    def end_pass(self) -> None:
        """End the pass: rows and dense values that were trained are written back.

        Raises:
            PassOrderError: if none is open.
            FleetError: if they can't be written back.
        """
        if self._open is None:
            remedy = "no pass is open: call begin_pass() first"
            raise PassOrderError(function="end_pass", remedy=remedy)
        stack, self._open = self._open, None
        stack.close()

    def finalize(self) -> None:
        """Forget the data, and wait for a preload that runs.

        Raises:
            PassOrderError: during a pass.
        """
        self._check_closed("finalize")
        preload, self._preload = self._preload, None
        if preload is not None:
            preload.forget()
        self._dataset = self._model = self._ids = self._forward = None
        self._loaded, self._is_loaded = None, False

    @property
    def facts(self) -> Sequence[dict[str, Any]]:
        """What the last pass was: one entry, or more where a budget has split it.

        Each has ``date``, as ``2026-11-23`` or empty, and what ``worker.device_pass`` logs.
        """
        return list(self._facts)

    def _note(self, facts: PassFacts) -> None:
        date = "" if self._date is None else self._date.isoformat()
        noted = {"date": date, **facts.rounded()}
        self._facts.append(noted)
        log.info("worker.psgpu_pass", extra=noted)

    def _set_slots(self, function: str, numbers: Sequence[int]) -> None:
        taken = _whole(function, numbers)
        for other, known in self._slots.items():
            if other != function and len(known) != len(taken):
                rule = f"has {len(taken)} numbers, and {other} was given {len(known)}"
                raise PassArgumentError(function=function, value="...", rule=rule)
        self._slots[function] = taken

    def _require_dataset(self, function: str) -> Iterable[Any]:
        if self._dataset is None:
            raise PassOrderError(function=function, remedy="call set_dataset() first")
        return self._dataset

    def _check_closed(self, function: str) -> None:
        if self._open is not None:
            remedy = "a pass is open: call end_pass() first"
            raise PassOrderError(function=function, remedy=remedy)

    def _check_no_preload(self, function: str) -> None:
        if self._preload is not None:
            remedy = "data is being preloaded: call wait_preload_done() first"
            raise PassOrderError(function=function, remedy=remedy)


class PsGpuMaking:
    """What a session offers of this.

    Args:
        session: Whose worker trains.
        passing: Runs the passes.
    """

    def __init__(self, session: Session, passing: DevicePassing) -> None:
        self._session = session
        self._passing = passing

    def make(self) -> PSGPU:
        """Return an object that runs passes by Paddle's names: see its functions."""
        return PSGPU(self._session, self._passing)


class _Preload:
    """Reads data in the background: a dataset in a thread of its own, else a thread does it.

    Args:
        dataset: What to read.
    """

    def __init__(self, dataset: Iterable[Any]) -> None:
        self._dataset = dataset
        self._batches: list[Any] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if isinstance(dataset, _InMemory):
            dataset.preload_into_memory()
            return
        self._thread = threading.Thread(
            target=self._run, name="paramfleet-pass-data", daemon=True
        )
        self._thread.start()

    def wait(self) -> list[Any] | None:
        """Return the batches; None if they are in the dataset's memory."""
        if self._thread is None:
            assert isinstance(self._dataset, _InMemory)
            self._dataset.wait_preload_done()
            return None
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._batches

    def forget(self) -> None:
        """Wait for its end, whatever that is."""
        try:
            self.wait()
        except Exception:
            log.info("worker.preload_failed", exc_info=True)

    def _run(self) -> None:
        try:
            self._batches = list(self._dataset)
        except BaseException as error:  # noqa: BLE001 - the training thread raises it
            self._error = error


def _whole(function: str, numbers: Sequence[int]) -> tuple[int, ...]:
    """Return whole numbers from 0.

    Raises:
        PassArgumentError: if they are others.
    """
    taken = tuple(numbers)
    wrong = [number for number in taken if type(number) is not int or number < 0]
    if wrong:
        rule = "must be whole numbers from 0"
        raise PassArgumentError(function=function, value=repr(wrong[0]), rule=rule)
    return taken
