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
        trains = torch.is_grad_enabled()
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

        All batches are read first. The rows that they look up are copied to the device with
        their optimizer states, trained there, and written back after the last batch. In one
        process without servers the rows are in host memory; the results are the same as
        without passes, bitwise on a CPU. In a job in gpubox mode the rows are on the pservers.
        The write-back to all pservers is atomic and contains the dense parameters; one worker
        gives the results of sync. Several workers train a pass together, each with its own
        batches: a row is on the device of worker ``id mod workers``, and gradients are a mean
        over the examples of all workers. A worker steps once for each batch; a worker without
        further batches continues to take part in the steps of the others.

        If the rows need more than ``device_budget``, the data is split at batch boundaries into
        passes that fit. Rows that two successive passes share stay on the device.

        Lookups outside training may have any ids. In training a forward may only look up ids
        of the batches of the pass; this includes ids that the model computes. Inside the loop
        ``fleet.load_model`` and ``fleet.remove_rows`` are refused, and in a job also
        ``fleet.save_persistables``. If the loop is left early, what was trained is written
        back. If a ``with`` block around it ends with an error, a job writes nothing back.

        A worker that is restarted in a job runs the same script: batches whose passes are
        already written back are skipped, so each batch is trained once.

        Args:
            loader: The batches; each iteration reads them all into host memory.
            model: The model whose ``fleet.nn`` modules look the rows up.
            ids: Returns the ids of a batch: tensors by module, by its path in the model, or by
                its table's name. By default the first batch shows which of its tensors, or
                views of them, reach which module.
            forward: Computes the model for a batch, as ``lambda batch: model(*batch[:2])``. It
                is called with the first batch, without training, to observe the lookups.
                Without it the first batch is observed while the loop trains it, in a pass of
                its own. Several workers need ``ids`` or ``forward``.
            device: Where rows are trained; by default where the model's parameters are.
            device_budget: Most bytes that rows and their states may take; None for no limit.

        Raises:
            DeviceBudgetOptionError: if ``device_budget`` is not a number of bytes.
            CallOrderError: if iterated before ``distributed_optimizer``.
            WrongModeError: if iterated in a job that isn't in gpubox mode.
            PassOpenError: if iterated during another one.
            OptimizerNotServedError: if pservers don't have the optimizer of a table.
            DeviceBudgetError: if a single batch takes more than the budget.
            DeviceMemoryError: if the device has less memory than a pass needs.
            IdOutsidePassError: in the loop, if a forward in training looks up another id.
            LookupsUnknownError: if several workers have neither ``ids`` nor ``forward``.
            PassesDifferError: if workers that train together have different passes.
            GroupLostError: if another worker ended; nothing of the pass was written back.
            ForeignWriteError: if a table was changed since the pass began; nothing of the pass
                was written back.
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
