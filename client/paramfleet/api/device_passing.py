"""``fleet.device_pass``: rows of many batches on a device while they are trained."""

import itertools
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Self, TypeVar

import torch

from paramfleet.api.loader_states import ReadAhead
from paramfleet.config.errors import CallOrderError
from paramfleet.nn.embedding import SparseModule
from paramfleet.nn.watching import BatchLookups, IdsOfBatch
from paramfleet.session.session import Session
from paramfleet.training.collective.errors import WrongModeError
from paramfleet.training.passes.backing import PassBacking
from paramfleet.training.passes.running import DevicePasses, PassFacts
from paramfleet_shared.errors import ContractError

__all__ = ["DevicePassing", "PassingLoader"]

B = TypeVar("B")

_IN_GPUBOX = (
    "its workers and servers share rows in every step; set a_sync_configs['use_ps_gpu'] = 1 "
    "for passes, or leave the call out"
)


class _Read(NamedTuple):
    """A batch, and where its loader was behind it."""

    batch: Any
    state: Any


class DeviceBudgetOptionError(ContractError):
    """``device_budget`` is no number of bytes."""

    code = "contract.device_budget_option"
    value: str
    sentence = "device_budget = {value}: must be a whole number of bytes from 1, or None"


class PassingLoader(ReadAhead[B]):
    """Yields a loader's batches unchanged; made by ``fleet.device_pass``, iterated each epoch.

    Args:
        loader: The batches.
        lookups: What the model looks up in them.
        begin: Returns what runs passes; called as the iteration begins.
        stops: Returns whether no further batch is wanted.
        between: Called between two passes, and at the end of the last one.
    """

    def __init__(
        self,
        loader: Iterable[B],
        lookups: BatchLookups,
        *,
        begin: Callable[[], DevicePasses],
        stops: Callable[[], bool],
        between: Callable[[], None],
    ) -> None:
        super().__init__(loader)
        self._lookups = lookups
        self._begin = begin
        self._stops = stops
        self._between = between
        self._running: weakref.ref[Generator[B, None, None]] | None = None
        """What iterates; a loop that is left lets go of it, which ends the pass."""
        self._is_entered = False
        self._kept: Generator[B, None, None] | None = None
        """The same in a ``with``, which ends the pass itself: it knows how the block ended."""

    def __enter__(self) -> Self:
        """Return itself: a pass that is open at the block's end ends with it."""
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """End the pass: as if the loop had been left, or as one that failed."""
        running = None if self._running is None else self._running()
        self._is_entered, self._kept = False, None
        if running is None:
            return
        if error is None:
            running.close()
            self._between()
            return
        with suppress(BaseException):  # it is on its way already
            running.throw(error)

    def __iter__(self) -> Generator[B, None, None]:
        """Return what yields the batches of the loader.

        Raises:
            FleetError: as ``fleet.device_pass`` says, with the first batch.
        """
        running = self._run()
        self._running = weakref.ref(running)
        if self._is_entered:
            self._kept = running
        return running

    def _run(self) -> Generator[B, None, None]:
        passes = self._begin()
        self._between()
        if self._stops():
            return
        batches = iter(self._loader)
        trains = self._lookups.model.training and torch.is_grad_enabled()
        first = next(batches, None)
        if first is not None:
            batches = itertools.chain([first], batches)
            self._lookups.try_forward(first)
            if not self._lookups.are_known:
                yield from passes.first(self._lookups.learn(batches), trains=trains)
                self._between()
        read = list(itertools.starmap(_Read, self._with_states(batches)))

        def ids(each: _Read) -> Iterator[tuple[SparseModule, torch.Tensor]]:
            return self._lookups.of(each.batch)

        yield from self._taken(passes.run(read, ids, self._stops, trains=trains))
        self._between()
        if not self._stops():
            self._state = None

    def _taken(self, running: Generator[_Read, None, None]) -> Generator[B, None, None]:
        """Yield the batches, and note behind which one the loop is."""
        try:
            for each in running:
                self._state = each.state
                yield each.batch
        except BaseException as error:  # of a loop that is left, too
            with suppress(StopIteration):  # it ended what it had begun
                running.throw(error)
            raise


class DevicePassing:
    """What a session offers of this.

    Args:
        session: Whose optimizer trains.
        stops: Returns whether an operator ended the job: no batch follows then.
        between: Called between two passes: what must not be done in one is done there.
    """

    def __init__(
        self,
        session: Session,
        stops: Callable[[], bool] = lambda: False,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._session = session
        self._stops = stops
        self._between = between

    def device_pass(
        self,
        loader: Iterable[B],
        model: torch.nn.Module,
        *,
        ids: IdsOfBatch | None = None,
        forward: Callable[[B], object] | None = None,
        device: torch.device | str | None = None,
        device_budget: int | None = None,
    ) -> PassingLoader[B]:
        """Iterate over a loader with the rows of its batches on the model's device.

            with fleet.device_pass(loader, model, device_budget=4 << 30) as batches:
                for batch in batches:
                    optimizer.minimize(loss(model(batch)))

        All batches are read first. The rows that they look up come to the device together with
        their optimizer states, are trained there, and go back when the batches are over. In one
        process without servers they come from the host's memory; the numbers are the same as
        without passes, to the bit on a processor. In a job in gpubox mode they come from the
        pservers, and go back to all of them or to none, with the dense parameters; one worker
        trains what sync does. Several workers train a pass together, each with its batches:
        a row is on the device of worker ``id mod workers``, and gradients are a mean over
        the examples of all. Each takes one step a batch; one that has no batch any more goes on
        without.

        Where they take more than ``device_budget``, the data is split at a border of batches
        into passes that fit. Rows that two passes of one iteration share stay on the device.

        Lookups that train nothing may have any ids. A forward in training may look up ids of
        the batches alone, on the whole pass: an id that is computed in the model must be one of
        them. ``fleet.load_model`` and ``fleet.remove_rows`` wait for the loop's end; so does
        ``fleet.save_persistables`` in a job. If the loop is left early, what was trained goes
        back all the same. If a ``with`` around it ends with an error in a job, nothing does.

        A worker that is restarted in a job runs the same script: batches of passes that are in
        the pservers are left out, so that each is trained once.

        Args:
            loader: The batches; each iteration reads them all, into the host's memory.
            model: Whose modules of ``fleet.nn`` look the rows up.
            ids: Returns the ids of a batch: tensors by module, by its path in the model, or by
                its table's name. If not given, the first batch is watched: which of its
                tensors, or views of them, reach which module.
            forward: Computes the model of a batch, as ``lambda batch: model(*batch[:2])``. The
                first batch is watched by it then, without training. If not given, the first
                batch is watched while the loop trains it, apart from the others. Several
                workers need ``ids`` or this.
            device: Where rows are trained; by default where the model's parameters are.
            device_budget: Bytes that rows with their states may take there; None for no limit.

        Raises:
            DeviceBudgetOptionError: if ``device_budget`` is no number of bytes.
            CallOrderError: if iterated before ``distributed_optimizer``.
            WrongModeError: if iterated in a job that isn't in gpubox mode.
            PassOpenError: if iterated during another one.
            OptimizerNotServedError: if the optimizer of a table is none that pservers run.
            DeviceBudgetError: if a single batch takes more than the budget.
            DeviceRoomError: if the device has less memory than a pass needs.
            IdOutsidePassError: in the loop, if a forward in training looks up another id.
            LookupsUnknownError: if several workers aren't told what batches look up.
            PassesDifferError: if workers that train together wouldn't do the same.
            GroupLostError: if another worker ended; pservers have nothing of the pass.
            ForeignWriteError: if a table was changed since the pass began; nor have they then.
        """
        if device_budget is not None and (type(device_budget) is not int or device_budget < 1):
            raise DeviceBudgetOptionError(value=repr(device_budget))
        lookups = BatchLookups(model, ids, forward)
        return self.loader(loader, lookups, device=device, device_budget=device_budget)

    def loader(
        self,
        loader: Iterable[B],
        lookups: BatchLookups,
        *,
        device: torch.device | str | None,
        device_budget: int | None,
        note: Callable[[PassFacts], None] = lambda _: None,
    ) -> PassingLoader[B]:
        """Do as ``device_pass``.

        Args:
            loader: As there.
            lookups: What the model looks up in the batches.
            device: As there.
            device_budget: As there.
            note: Is called with the facts of each pass that has ended.
        """
        where = _device_of(lookups.model) if device is None else torch.device(device)

        def ended(facts: PassFacts) -> None:
            self._session.progress.note_pass(facts)
            note(facts)
            self._between()

        def begin() -> DevicePasses:
            backing = self.check("device_pass")
            return DevicePasses(backing, device=where, budget_bytes=device_budget, note=ended)

        return PassingLoader(
            loader, lookups, begin=begin, stops=self._stops, between=self._between
        )

    def check(self, function: str) -> PassBacking:
        """Return where rows of passes come from, with no pass open.

        Args:
            function: Of ``fleet``, for the errors.

        Raises:
            CallOrderError: if there is no optimizer.
            WrongModeError: if the mode has no passes.
            PassOpenError: if a pass is open.
        """
        optimizer = self._session.optimizer
        if optimizer is None:
            remedy = "call fleet.distributed_optimizer() before iterating"
            raise CallOrderError(function=function, remedy=remedy)
        backing = optimizer.running.passes
        if backing is None:
            mode = f"a job in {optimizer.mode.name} mode"
            raise WrongModeError(function=function, mode=mode, remedy=_IN_GPUBOX)
        backing.check_no_pass(function)
        return backing


def _device_of(model: torch.nn.Module) -> torch.device:
    """Return where the first parameter of a model is."""
    return next((each.device for each in model.parameters()), torch.device("cpu"))
