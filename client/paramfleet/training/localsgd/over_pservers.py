"""LocalSGD among the workers of a job with parameter servers.

Every worker trains alone with any torch optimizer, and synchronizes with the others at the
pservers' dense tables, without waiting for them. The result of an exchange is applied at the
first step boundary after the answer; only a worker's next exchange waits for its former one.
"""

from collections.abc import Callable
from functools import partial

import torch

from paramfleet.config.strategy import TrainingMode
from paramfleet.tables.dense import DenseBlock
from paramfleet.tables.dense_parameters import named_in
from paramfleet.training.in_place import moves_in_place
from paramfleet.training.job import Job, agree_on_dense, declare, pull_dense
from paramfleet.training.localsgd.core.choices import settings_of
from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet.training.localsgd.layout import Layout, refuse_tables, trained_parameters
from paramfleet.training.localsgd.optimizer import LocalSgdOptimizer
from paramfleet.training.localsgd.pserver_synchronizer import PserverSynchronizer, outer_rule
from paramfleet.training.modes.base import Mode, ModelTables, check_gradients
from paramfleet.training.modes.rowstep import forget_states

__all__ = ["LocalSgdMode"]

UNDURABLE_EXCHANGES = 2
"""Exchanges that may not be durable yet, where workers return: pservers keep where a worker was
behind as many, and one more, for a process that trains again what some pserver lacks."""


class LocalSgdMode(Mode):
    """Local steps, and exchanges when the schedule says so.

    Args:
        job: The worker's connections.
        mode: The strategy.
        optimizer: The user's.
        tables: Its parameters.
        loss: Returns the loss of the step in progress, if the script said it.

    Raises:
        StrategyError: if the model has sparse tables.
        LocalSgdSettingsError: if two keys don't go together, or not over servers.
    """

    def __init__(
        self,
        job: Job,
        mode: TrainingMode,
        optimizer: torch.optim.Optimizer,
        tables: ModelTables,
        *,
        loss: Callable[[], torch.Tensor | float | None],
    ) -> None:
        self._job = job
        self._mode = mode
        self._checked = tables
        assert mode.apart is not None, "the mode is LocalSGD's"
        flag, keys = mode.apart
        refuse_tables(flag, tables)
        self._settings = settings = settings_of(flag, keys, overlaps=True)
        self.ledger = ledger = Ledger(settings.fragments)
        """What the exchanges cost so far."""
        self._loss = loss
        self._step = 0
        self._optimizer = optimizer
        layout = Layout(trained_parameters(optimizer), settings.fragments)
        self._blocks = [
            DenseBlock(f"dense_{number}", fragment)
            for number, fragment in enumerate(layout.fragments)
        ]
        self.tables = ModelTables(
            sparse=(), dense=tuple((block, optimizer.param_groups[0]) for block in self._blocks)
        )
        """What the pservers hold: a table for each fragment."""
        self._synchronizer = PserverSynchronizer(job, self._blocks, settings, ledger=ledger)
        self._wrap = partial(
            LocalSgdOptimizer,
            optimizer,
            settings,
            self._synchronizer,
            ledger=ledger,
            clock=job.communicator.clock,
        )

    def start(self) -> None:
        """Start from worker 0's parameters, or from what the tables hold already."""
        rule, shards = outer_rule(self._settings), self._job.placement.num_shards
        model = self._job.agreement.model
        specs = [
            block.spec(rule, num_shards=shards, parameters=named_in(model, block))
            for block in self._blocks
        ]
        if self._job.communicator.session.returning:
            self._job.pservers.outbox.max_entries = UNDURABLE_EXCHANGES
        self._step = declare(self._job, specs, self._mode, wire=self._settings.wire_dtype)
        if self._job.has_returned:
            self.begins_with = self._step
        agree_on_dense(self._job, self._blocks)
        if moves_in_place(self._job, self._blocks, self._settings.wire_dtype):
            self._synchronizer.move_in_place()
        self._local = self._wrap()
        self._local.schedule.join(self._step)

    def step(self, *, examples: int) -> None:
        """Step locally; take in what arrived; exchange if it is time."""
        del examples  # every worker's optimizer has its own batch
        self._job.communicator.raise_failure()
        check_gradients(self._checked, step=self._step)
        self._step += 1
        self._synchronizer.step = self._step
        self._local.land()
        self._local.step(loss=self._loss())

    def wait_exchanged(self) -> None:
        """Wait for the exchanges in flight, if any, and take in what they brought.

        Raises:
            FleetError: why an exchange failed.
        """
        self._local.land(wait=True)

    def flush(self) -> None:
        """Exchange now: send what was learned, and take in what the others did."""
        self._local.synchronize()

    def reload(self, *, workers: int) -> None:
        """Take the servers' values; this worker's progress and states are forgotten."""
        del workers
        self._local.land(wait=True)
        forget_states(self._optimizer, (), self._blocks)
        self._take_served()
        self._synchronizer.forget()
        schedule = self._local.schedule.state_dict()
        self._local = self._wrap()
        self._local.schedule.load_state_dict(schedule)

    def begins_anew(self, *, kept: bool, saved: bool, served: bool) -> bool:
        """Return whether there are any: what is saved are the outer optimizer's."""
        del saved, served
        return kept

    def depart(self) -> None:
        """Send all that was learned, and leave."""
        self._synchronizer.is_last = True
        self._local.synchronize()
        fields = {**self._job.author.fields(), "step": self._step}
        self._job.communicator.wait(self._job.pservers.call_all("leave", fields))

    def adjust(self, mode: TrainingMode) -> None:
        """Nothing of a running LocalSGD can be changed but the learning rate."""
        self._mode = mode

    def finish(self) -> None:
        """Send all that was learned, wait for the others' last, and hold what all hold.

        Workers with more batches count as those who are there, from now on without this one.
        """
        self.depart()
        self._job.wait_for_the_end("fleet.localsgd_end")
        self._take_served()

    def _take_served(self) -> None:
        if self._synchronizer.is_in_place:
            self._synchronizer.take_served()
            return
        for block, values in zip(
            self._blocks, pull_dense(self._job, self._blocks), strict=True
        ):
            block.install(values)
