"""What a worker trains with: the network, its optimizer, and the steps that it takes."""

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

import paramfleet as fleet
from paramfleet.config.plans.checkpoints import named_folder
from paramfleet.config.strategy import StrategyError
from paramfleet.runner.config.configuration import Config
from paramfleet.runner.config.errors import ConfigError, ModelFolderError
from paramfleet.runner.config.settings import RunnerSettings
from paramfleet.runner.models.layers import NO_ID
from paramfleet.runner.models.metrics import Metric
from paramfleet.runner.models.model import Feeds, Model
from paramfleet.runner.showing.display import Display
from paramfleet.runner.showing.profile import Profile
from paramfleet.telemetry.visual import Write
from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet_shared.files.addresses import Address, place_of
from paramfleet_shared.system.clock import Clock

__all__ = ["Learner", "device_of", "strategy_of"]

log = logging.getLogger(__name__)


def strategy_of(
    runner: RunnerSettings, tables: Mapping[str, Any] | None = None
) -> fleet.DistributedStrategy:
    """Return the strategy that ``sync_mode`` and its like describe.

    Args:
        runner: The settings.
        tables: Of ``table_parameters``; None for none.

    Raises:
        StrategyError: if a key is unknown, or of no effect in the mode.
    """
    chosen = fleet.DistributedStrategy()
    chosen.a_sync = runner.sync_mode != "sync"
    configs = dict(runner.a_sync_configs)
    if runner.sync_mode == "geo":
        configs["k_steps"] = runner.geo_step
    if runner.sync_mode == "gpubox":
        configs["use_ps_gpu"] = 1
    chosen.a_sync_configs = configs
    chosen.eviction_configs = dict(runner.eviction_configs)
    chosen.guard_configs = dict(runner.guard_configs)
    if tables:
        chosen.sparse_table_configs = dict(tables)
    if runner.sync_mode not in {"sync", "async", "geo", "gpubox"}:
        setattr(chosen, runner.sync_mode, True)
        setattr(chosen, f"{runner.sync_mode}_configs", runner.localsgd_configs)
    elif runner.localsgd_configs:
        rule = f"has no effect with sync_mode = {runner.sync_mode!r}"
        value = repr(dict(runner.localsgd_configs))
        raise StrategyError(key="localsgd_configs", value=value, rule=rule)
    return chosen


def device_of(config: Config[Any]) -> torch.device:
    """Return where the worker computes.

    PaddleRec's files for gpubox always ask for a GPU: in this mode the CPU takes its place.

    Raises:
        ConfigError: if that is a GPU and there is none, in another mode.
    """
    if not config.runner.use_gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available() and config.runner.sync_mode == "gpubox":
        facts = {"key": "runner.use_gpu", "remedy": "the CPU computes, and has the rows"}
        log.warning("worker.no_cuda_device", extra=facts)
        return torch.device("cpu")
    if not torch.cuda.is_available():
        rule = "this machine has no CUDA device"
        raise ConfigError(where=str(config.path), key="runner.use_gpu", value="true", rule=rule)
    return torch.device("cuda", fleet.worker_index() % torch.cuda.device_count())


class Learner:
    """One worker's network and optimizer; ``fleet.init_worker`` is still to come.

    Args:
        model: What to train.
        clock: For speeds.

    Raises:
        ConfigError: if there is no GPU that was asked for.
        ModelFolderError: if a lookup of the network would take ``NO_ID`` for an id.
        FleetError: if the strategy contradicts itself.
    """

    def __init__(self, model: Model[Any], clock: Clock) -> None:
        config, runner = model.config, model.config.runner
        self._model = model
        self._runner = runner
        self._clock = clock
        self.device = device_of(config)
        torch.set_num_threads(runner.thread_num)
        torch.manual_seed(runner.seed)
        net = model.create_model()
        _require_padding(model, net)
        self.net = fleet.distributed_model(net.to(self.device))
        inner = model.create_optimizer(self.net)
        strategy = strategy_of(runner, config.tables)
        if runner.checkpoint_configs:
            strategy.checkpoint_configs = dict(runner.checkpoint_configs)
            named = named_folder(runner.checkpoint_configs)
            if not isinstance(place_of(named), Address):
                named = str(config.path_of(named))
            strategy.checkpoint_configs["dirname"] = strategy.checkpoint_configs["dir"] = named
        self.optimizer = fleet.distributed_optimizer(inner, strategy)
        self._scheduler = model.create_scheduler(self.optimizer)
        if self._scheduler is not None:
            fleet.register_for_checkpointing(scheduler=self._scheduler)
        settle = torch.cuda.synchronize if self.device.type == "cuda" else lambda: None
        self.profile = Profile(clock, settle)
        self.num_examples = 0
        self.num_steps = 0
        self.last_loss: float | None = None
        """What was reported last; None before."""
        self.total_steps: int | None = None
        """Steps of the optimizer at the end of the training; None while nobody knows."""

    def begin(self) -> None:
        """Join the tables.

        Raises:
            FleetError: if they can't be joined, or the checkpoint not be loaded.
        """
        fleet.init_worker()
        if self._runner.dataset_debug:
            self.profile.watch(self.net)

    @property
    def ledger(self) -> Ledger | None:
        """What LocalSGD's exchanges cost this worker; None in other modes."""
        return self.optimizer.ledger

    def outputs(self, feeds: Feeds) -> Any:
        """Return what the network makes of a batch."""
        return self.net(*(tensor.to(self.device) for tensor in feeds.inputs))

    def learn(
        self, batches: Iterable[Feeds], *, part: str, first: int, display: Display, write: Write
    ) -> Mapping[str, Metric]:
        """Take a step on every batch; return the metrics of this worker's examples.

        Args:
            batches: They.
            part: Which part of the training they are, as ``epoch 3``.
            first: The number of the first step in it.
            display: Shows how far training is.
            write: Gets curves.
        """
        runner = self._runner
        metrics = self._model.create_metrics()
        shown_at, shown_examples = self._clock.monotonic(), self.num_examples
        loss = torch.tensor(float("nan"))
        for step, feeds in enumerate(self.profile.reading(batches), start=first):
            found = self.step(feeds, metrics if runner.use_auc else {})
            loss = found if feeds.size else loss  # a step without rows has none
            if runner.print_interval == 0 or step % runner.print_interval:
                continue
            now = self._clock.monotonic()
            examples = self.num_examples - shown_examples
            self.last_loss = loss.item()
            counted = metrics if runner.use_auc else {}
            values = {name: metric.value() for name, metric in counted.items()}
            known = _known(values)
            total = self.total_steps
            fleet.report(loss=self.last_loss, examples=examples, total_steps=total, **known)
            values = {"loss": self.last_loss, **values}
            display.progress(part=part, step=step, metrics=values)
            speed = examples / max(now - shown_at, 1e-9)
            write("train", {**values, "examples_per_s": speed}, self.num_steps)
            if self.ledger is not None:
                write("localsgd", self.ledger.figures(), self.num_steps)
            shown_at, shown_examples = now, self.num_examples
        return metrics if runner.use_auc else {}

    def step(self, feeds: Feeds, metrics: Mapping[str, Metric]) -> torch.Tensor:
        """Take one step; without rows, only the part in the job's step that it has."""
        count = feeds.size
        loss = self._gradients(feeds, metrics) if count else torch.tensor(float("nan"))
        with self.profile.phase("push"):
            self.optimizer.step(examples=count, loss=loss)
            self.optimizer.zero_grad()
        if self._scheduler is not None:
            self._scheduler.step()
        self.num_examples += count
        self.num_steps += 1
        self.profile.close_batch()
        return loss

    def _gradients(self, feeds: Feeds, metrics: Mapping[str, Metric]) -> torch.Tensor:
        """Leave a batch's gradients, and return its loss."""
        with self.profile.phase("forward"):
            labels = feeds.labels.to(self.device)
            outputs = self.outputs(feeds)
            loss = self._model.create_loss(outputs, labels)
        with self.profile.phase("backward"):
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if metrics:
            with torch.no_grad():
                self._model.update_metrics(metrics, outputs, labels)
        return loss.detach()


def _known(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values that are numbers: a metric may need examples that haven't come yet."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _require_padding(model: Model[Any], net: torch.nn.Module) -> None:
    """See that no lookup takes ``NO_ID`` for an id; others refuse it as any negative one.

    Raises:
        ModelFolderError: naming the module that does.
    """
    for path, module in net.named_modules():
        is_lookup = isinstance(module, fleet.nn.Embedding | fleet.nn.EmbeddingBag)
        if model.pads_ids and is_lookup and module.negative_ids and module.padding_idx != NO_ID:
            rule = f"{path}: with negative_ids=True, give it padding_idx=runner.NO_ID, too"
            file = model.config.modules / model.config.runner.model_path
            raise ModelFolderError(path=str(file), rule=rule)
