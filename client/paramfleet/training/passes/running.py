"""Passes over batches with rows on a device.

Batches are known before a pass begins: which rows each looks up, so which rows the pass needs
(``tables.device.plan``). They come to the device together, batches are trained there, and
what was stepped goes back together.

Rows that two neighbouring passes of one run share stay on the device. The others of the next
pass are read beside the training of this one, which doesn't change them: nothing that is read
too early is ever used. Between two runs rows may change by other means, such as a load: the
backing says whether those that it kept are current.

The training thread calls it; one other thread reads.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.nn.embedding import Different, SparseModule
from paramfleet.tables.device.pass_ids import IdSet, PassIds
from paramfleet.tables.device.plan import BatchIds, PlannedPass, plan_passes
from paramfleet.tables.device.shared import SharedSource
from paramfleet.tables.device.source import DeviceSource
from paramfleet.tables.device.table import DeviceRows, DeviceTable, bytes_of
from paramfleet.tables.devices import to_device
from paramfleet.training.passes.backing import PassBacking
from paramfleet.training.passes.rounds import SharedRounds
from paramfleet_shared.errors import ContractError
from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.telemetry.logs_and_metrics import note

__all__ = ["DeviceMemoryError", "DevicePasses", "Lookups", "LookupsUnknownError", "PassFacts"]

log = logging.getLogger(__name__)

B = TypeVar("B")

Lookups = Callable[[B], Iterable[tuple[SparseModule, torch.Tensor]]]
"""Returns what a batch looks up: modules, and the ids of each."""


class DeviceMemoryError(ContractError):
    """A device has no memory for the rows of a pass."""

    code = "contract.device_memory"
    device: str
    bytes: int
    sentence = (
        "{device} has no memory for the {bytes:,} bytes of a pass's rows: give "
        "fleet.device_pass a device_budget below what is free, and it splits the data"
    )


class LookupsUnknownError(ContractError):
    """Several workers train together, and nobody says what their batches look up."""

    code = "contract.lookups_unknown"
    workers: int
    sentence = (
        "{workers} workers train a pass together, and must know its ids before: give "
        "fleet.device_pass ids= or forward="
    )


class _Lookup(NamedTuple):
    """One lookup of a batch, prepared before the batch begins."""

    module: SparseModule
    ids: torch.Tensor
    found: Different

    @property
    def unique(self) -> NDArray[np.int64]:
        """Return its different ids, int64 [U]."""
        return self.found[0].ids


@dataclass(slots=True, kw_only=True)
class PassFacts:
    """One pass, as logs and status show it."""

    number: int
    """Of the run, from 1."""
    passes: int
    """Of the run."""
    batches: int
    rows: int
    """Different ones of all tables."""
    stayed: int = 0
    """Of them, those that were on the device already."""
    device_bytes: int = 0
    build_s: float = 0.0
    """Seconds that reading its rows took, most of it beside the pass before."""
    begin_s: float = 0.0
    """Seconds that the training waited for them."""
    train_s: float = 0.0
    end_s: float = 0.0
    """Seconds that the write-back took."""
    written: int = 0
    """Rows that were written back."""

    @property
    def hit_share(self) -> float:
        """Return which part of the rows didn't travel to the device."""
        return self.stayed / self.rows if self.rows else 0.0

    def rounded(self) -> dict[str, float]:
        """Return plain values, times in milliseconds' precision."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["hit_share"] = self.hit_share
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in values.items()
        }


class _Built(NamedTuple):
    """The rows of a pass, before it begins."""

    ids: Mapping[str, PassIds]
    new: Mapping[str, DeviceRows]
    """Those that the pass before didn't have, by table."""
    seconds: float


class DevicePasses:
    """Runs batches with rows of tables on a device.

    Args:
        backing: Where the rows come from.
        device: Where rows are during a pass.
        budget_bytes: What they may take of it; None for no limit.
        note: Is called with the facts of each pass that has ended.
        clock: By whose time passes are measured.
    """

    def __init__(
        self,
        backing: PassBacking,
        *,
        device: torch.device,
        budget_bytes: int | None = None,
        note: Callable[[PassFacts], None] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._backing = backing
        self._device = device
        self._budget_bytes = budget_bytes
        self._note_pass = note
        self._sources: dict[str, DeviceSource] = {}
        self._shared: SharedRounds | None = None
        """What several workers look up; None where there is one."""

    def run(
        self,
        batches: Sequence[B],
        lookups: Lookups[B],
        stops: Callable[[], bool] = lambda: False,
        *,
        trains: bool | None = True,
    ) -> Generator[B, None, None]:
        """Yield batches, with the rows of each on the device until the next one.

        Rows go back when a pass ends, and when the loop is left in its middle. What becomes of
        them when it fails is the backing's.

        Args:
            batches: In their order. Several workers take as many steps as the one with most.
            lookups: Returns what a batch looks up.
            stops: Returns whether no further batch is wanted.
            trains: Whether the model is in training mode; None of a worker that has finished
                its training, and has no batches.

        Raises:
            OptimizerNotServedError: if rows are stepped by no rule of the pservers.
            DeviceBudgetError: if a batch doesn't fit into the budget.
            DeviceMemoryError: if the device has less memory than a pass needs.
            IdError: if a batch has what can't be an id.
        """
        specs = self._backing.specs()
        with self._running(), ThreadPoolExecutor(1, "paramfleet-pass") as reader:
            prepared = [
                [_Lookup(module, ids, module.different(ids)) for module, ids in lookups(batch)]
                for batch in batches
            ]
            planned = self._plan(prepared, specs, trains=trains)
            does = bool(trains) if self._shared is None else self._shared.trains
            try:
                yield from self._run(batches, prepared, planned, reader, stops, trains=does)
            finally:
                for lookup in (lookup for batch in prepared for lookup in batch):
                    lookup.module.expect_nothing()

    def _plan(
        self,
        prepared: Sequence[Sequence[_Lookup]],
        specs: dict[str, TableSpec],
        *,
        trains: bool | None,
    ) -> list[PlannedPass]:
        """Return the passes of a run."""
        budget, group, tables = self._budget_bytes, self._backing.group, list(specs.values())
        if group is None:
            planned = list(plan_passes(map(_ids_of, prepared), tables, budget_bytes=budget))
        else:
            by_table = [_by_table(batch) for batch in prepared]
            self._shared = SharedRounds(group, list(specs), by_table, trains=trains)
            planned = list(self._shared.plans(tables, budget_bytes=budget))
        self._drop_kept(planned, specs)
        return planned

    def _drop_kept(
        self, planned: Sequence[PlannedPass], specs: Mapping[str, TableSpec]
    ) -> None:
        """Give rows of former runs back, if with them a pass needs more than the budget.

        The plan doesn't count them: a worker that is started again has none, and must plan as
        its former self did.
        """
        if self._budget_bytes is None:
            return
        have = {name: source.rows.capacity for name, source in self._sources.items()}
        for each in planned:
            if not each.keeps_rows:
                return
            wanted = each.capacities
            most = {name: max(have.get(name, 0), wanted.get(name, 0)) for name in specs}
            needed = sum(bytes_of(specs[name], num) for name, num in most.items())
            if needed > self._budget_bytes:
                self._release()
                return

    def _run(
        self,
        batches: Sequence[B],
        prepared: Sequence[Sequence[_Lookup]],
        planned: Sequence[PlannedPass],
        reader: ThreadPoolExecutor,
        stops: Callable[[], bool],
        *,
        trains: bool,
    ) -> Generator[B, None, None]:
        """Yield the batches of all passes, as ``run`` does.

        Several workers take every step together: one that has no batch any more, or whose loop
        was left, goes on without.
        """
        building: Future[_Built] | None = None
        is_left = False
        for number, each in enumerate(planned):
            facts = PassFacts(
                number=number + 1,
                passes=len(planned),
                batches=each.stop - each.first,
                rows=each.num_rows,
                device_bytes=each.device_bytes,
            )
            if not self._backing.open(trains=trains):
                continue
            built = self._begin(each, facts, building)
            building = self._build_beside(planned[number + 1 : number + 2], built, reader)
            began = self._clock.monotonic()
            for batch in range(each.first, each.stop):
                is_left = is_left or batch >= len(batches) or stops()
                if is_left and self._shared is None:
                    break
                self._begin_batch(each, batch, prepared[batch] if not is_left else ())
                if not is_left:
                    try:
                        yield batches[batch]
                    except GeneratorExit:  # the loop was left
                        is_left = True
                if is_left and self._shared is None:
                    break
                self._backing.end_batch()
            facts.train_s = self._clock.monotonic() - began
            self._end(facts)
            building = self._evict_if_due(building)
            if is_left and self._shared is None:
                return

    def go_along(self) -> bool:
        """Take part, without batches, in a run of workers that train on.

        Of a worker that has finished its training, and still has rows of the others.

        Returns:
            Whether there was one: no worker trains any more else.
        """
        for _ in self.run(list[None](), lambda _: (), trains=None):
            pass
        return self._shared is not None and not self._shared.all_finished

    def first(
        self, watched: Generator[B, None, None], *, trains: bool = True
    ) -> Generator[B, None, None]:
        """Yield a batch that nobody knows the lookups of before, in a pass if one is needed.

        Its rows come to the device as they are looked up.

        Args:
            watched: Yields it.
            trains: Whether the model is in training mode.

        Raises:
            LookupsUnknownError: if several workers train together.
        """
        if not self._backing.only_in_passes:
            yield from watched
            return
        with self._running():
            if self._backing.group is not None:
                raise LookupsUnknownError(workers=self._backing.group.size)
            if self._backing.open(trains=trains):
                for name, spec in self._backing.specs().items():
                    rows = self._new_rows(spec)
                    beneath, admit = self._backing.beneath(name), partial(self._admit, rows)
                    self._sources[name] = DeviceSource(rows, beneath, admit=admit)
                self._backing.attach(self._sources)
            yield from watched
            self._backing.commit()
            self._evict_if_due(None)

    def _build_beside(
        self, following: Sequence[PlannedPass], built: _Built, reader: ThreadPoolExecutor
    ) -> "Future[_Built] | None":
        """Begin to read the rows of the next pass, if there is one that keeps rows of this."""
        for each in following:
            if each.keeps_rows:
                return reader.submit(self._build, each, built.ids)
        return None

    def _evict_if_due(self, building: "Future[_Built] | None") -> "Future[_Built] | None":
        """Let rows go between two passes, if it is time.

        Of rows that are on the device, or are read, it isn't known which went: all come again.

        Args:
            building: The next pass, if it is being built.

        Returns:
            It, if no row went.
        """
        if not self._backing.is_eviction_due():
            return building
        if building is not None:
            building.result()
        self._release()
        self._backing.evict()
        return None

    def _admit(self, rows: DeviceTable, ids: NDArray[np.int64]) -> None:
        """Bring rows of ids, int64 [U], to the device that it doesn't have."""
        name, former = rows.spec.name, rows.ids
        known = IdSet(name)
        for some in (ids,) if former is None else (former.ids, ids):
            known.try_to_add(some)
            known.keep()
        if len(known):
            both = PassIds.of(name, known, former)
            rows.begin(both, self._backing.read({name: both.new_ids})[name])

    @contextmanager
    def _running(self) -> Generator[None, None, None]:
        """Let rows go back at the end of the block; a loop that is left is no failure."""
        self._backing.prepare(self._device)
        self._sources = self._backing.kept(self._device)
        try:
            yield
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                self._backing.commit()
            else:
                self._backing.abandon()
            raise
        else:
            self._backing.commit()
            self._backing.keep(self._sources)
        finally:
            self._release()

    def _build(self, planned: PlannedPass, former: Mapping[str, PassIds]) -> _Built:
        """Read the rows of a pass that the former one doesn't have."""
        began = self._clock.monotonic()
        ids = {
            name: PassIds.of(name, own, former.get(name)) for name, own in planned.ids.items()
        }
        new = self._backing.read({name: own.new_ids for name, own in ids.items()})
        return _Built(ids, new, self._clock.monotonic() - began)

    def _begin(
        self, planned: PlannedPass, facts: PassFacts, building: "Future[_Built] | None"
    ) -> _Built:
        """Bring the rows of a pass to the device.

        Raises:
            DeviceMemoryError: if there is no memory for them.
        """
        began = self._clock.monotonic()
        if not planned.keeps_rows:
            self._release()
        former = {
            name: source.rows.ids
            for name, source in self._sources.items()
            if source.rows.ids is not None
        }
        built = self._build(planned, former) if building is None else building.result()
        try:
            for name, spec in self._backing.specs().items():
                if name not in self._sources and (self._shared or name in built.ids):
                    self._sources[name] = self._new_source(spec)
            for name, ids in built.ids.items():
                self._sources[name].rows.begin(ids, built.new[name])
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError(
                device=str(self._device), bytes=planned.device_bytes
            ) from error
        self._backing.attach(self._sources)
        facts.build_s = built.seconds
        facts.stayed = facts.rows - sum(len(new.ids) for new in built.new.values())
        facts.begin_s = self._clock.monotonic() - began
        return built

    def _new_source(self, spec: TableSpec) -> DeviceSource:
        """Return where a table's rows will be."""
        rows = self._new_rows(spec)
        group, beneath = self._backing.group, self._backing.beneath(spec.name)
        if group is None:
            return DeviceSource(rows, beneath)
        return SharedSource(rows, beneath, group)

    def _new_rows(self, spec: TableSpec) -> DeviceTable:
        """Return a table on the device, without rows."""
        free_rows = self._backing.free_rows(spec.name)
        return DeviceTable(spec, device=self._device, free_rows=free_rows)

    def _end(self, facts: PassFacts) -> None:
        """Write a pass back, and note what it was."""
        began = self._clock.monotonic()
        facts.written = self._backing.commit()
        facts.end_s = self._clock.monotonic() - began
        note(log, "worker.device_pass", **facts.rounded(), device=str(self._device))
        self._note_pass(facts)

    def _begin_batch(
        self, planned: PlannedPass, number: int, lookups: Sequence[_Lookup]
    ) -> None:
        """Let the lookups of a batch find what was prepared."""
        for lookup in lookups:
            lookup.module.expect_nothing()
        for lookup in lookups:
            lookup.module.expect(lookup.ids, lookup.found)
        numbers = planned.numbers[number - planned.first]
        if self._shared is not None:
            for name, source in self._sources.items():
                assert isinstance(source, SharedSource), "made for several workers"
                ids = source.rows.ids if name in planned.ids else None
                source.begin_round(
                    self._shared.table_round(name, number, ids, numbers.get(name))
                )
            return
        of_table: dict[str, list[tuple[NDArray[np.int64], torch.Tensor]]] = {}
        for lookup, where in zip(lookups, self._places_in(numbers, lookups), strict=True):
            of_table.setdefault(lookup.module.table.name, []).append((lookup.unique, where))
        for name, source in self._sources.items():
            source.begin_batch(number, of_table.get(name, ()))

    def _places_in(
        self, numbers: Mapping[str, NDArray[np.int64]], lookups: Iterable[_Lookup]
    ) -> list[torch.Tensor]:
        """Return the places of the rows of one batch, whose ids were numbered by table."""
        places, taken = list[torch.Tensor](), dict.fromkeys(numbers, 0)
        for lookup in lookups:
            name = lookup.module.table.name
            start = taken[name]
            taken[name] = stop = start + len(lookup.unique)
            source = self._sources.get(name)
            if source is None or source.rows.ids is None or start == stop:
                places.append(torch.empty(0, dtype=torch.int64))
                continue
            found = source.rows.ids.places[numbers[name][start:stop]]
            places.append(to_device(torch.from_numpy(found), self._device))
        return places

    def _release(self) -> None:
        """Give the device's memory back, and let rows come from beneath."""
        self._sources = {}
        self._backing.release()


def _by_table(lookups: Iterable[_Lookup]) -> dict[str, list[NDArray[np.int64]]]:
    """Return the ids of each lookup of a batch, int64 [n], by table."""
    of_table: dict[str, list[NDArray[np.int64]]] = {}
    for lookup in lookups:
        of_table.setdefault(lookup.module.table.name, []).append(lookup.unique)
    return of_table


def _ids_of(lookups: Iterable[_Lookup]) -> BatchIds:
    """Return the ids of a batch by table."""
    return {name: np.concatenate(each) for name, each in _by_table(lookups).items()}
