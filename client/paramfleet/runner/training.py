"""``paramfleet train``: a model folder's training, alone or as a worker of a job."""

import logging
from collections.abc import Mapping
from typing import Any

import torch

import paramfleet as fleet
from paramfleet.api.device_passing import PassingLoader
from paramfleet.api.prefetching import Prefetcher
from paramfleet.config.checkpoint_plan import named_folder
from paramfleet.config.strategy import StrategyError
from paramfleet.runner.batches import list_files, open_batches, train_share
from paramfleet.runner.config.configuration import Config
from paramfleet.runner.config.errors import ConfigError
from paramfleet.runner.config.settings import RunnerSettings
from paramfleet.runner.display import Display, metrics_text, shown
from paramfleet.runner.models.metrics import Metric
from paramfleet.runner.models.model import Feeds, Model
from paramfleet.runner.outcome import Outcome, model_name
from paramfleet.runner.position import TrainData
from paramfleet.runner.profile import Profile
from paramfleet.runner.scoring import score
from paramfleet.telemetry.visual import Write, visual
from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet_shared.files.addresses import Address, place_of
from paramfleet_shared.system.clock import Clock

__all__ = ["device_of", "strategy_of", "train"]

log = logging.getLogger(__name__)


def train(model: Model[Any], clock: Clock) -> Outcome:
    """Train this worker's share, score the test files with the others, and report.

    ``fleet.init`` was called, and took the role of a worker.

    Raises:
        ConfigError: if there are no files, or too few.
        FleetError: if the job failed, or a file can't be read.
    """
    config, runner = model.config, model.config.runner
    trainer = Trainer(model, clock)
    test = None
    if runner.test_data_dir:
        test = open_batches(model, list_files(config, "test_data_dir"), test=True)
    first = fleet.worker_index() == 0
    folder = config.path_of(runner.visual_path) if runner.use_visual and first else None
    with shown(interval=runner.print_interval) as display, visual(folder) as write:
        started = clock.monotonic()
        metrics: Mapping[str, Metric] = {}
        for epoch in range(trainer.first_epoch, runner.epochs):
            if epoch > trainer.first_epoch:
                trainer.save(epoch - 1)
            metrics = trainer.run_epoch(epoch, display, write)
        fleet.finish_training()
        seconds = clock.monotonic() - started
        trainer.save(runner.epochs - 1)
        scores = {name: metric.merged() for name, metric in metrics.items()}
        if test is not None:
            scores, _ = score(model, trainer.net, test, trainer.device)
            display.say(f"test: {metrics_text(scores)}")
            write("test", scores, trainer.num_steps)
    num_examples = int(fleet.metrics.sum(trainer.num_examples))
    seconds = float(fleet.metrics.max(seconds))
    outcome = Outcome(
        model=model_name(config),
        mode=runner.sync_mode if fleet.server_num() else "local",
        workers=fleet.worker_num(),
        servers=fleet.server_num(),
        epochs=runner.epochs,
        metrics=scores,
        scored_on="train" if test is None else "test",
        examples_per_s=num_examples / seconds,
        unit=model.unit,
        seconds=seconds,
        profile=trainer.profile.result() if runner.dataset_debug else None,
        localsgd=None if trainer.ledger is None else trainer.ledger.as_json(),
    )
    fleet.stop_worker()
    return outcome


def strategy_of(runner: RunnerSettings) -> fleet.DistributedStrategy:
    """Return the strategy that ``sync_mode`` and its like describe.

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


class Trainer:
    """One worker's network, optimizer and training batches.

    Args:
        model: What to train.
        clock: For speeds.

    Raises:
        ConfigError: if there are no files, too few, or no GPU that was asked for.
        FleetError: if the tables can't be joined, or the checkpoint not be loaded.
    """

    def __init__(self, model: Model[Any], clock: Clock) -> None:
        config, runner = model.config, model.config.runner
        self._runner = runner
        files = train_share(config, list_files(config, "train_data_dir"))
        batches = open_batches(model, files, test=False)
        self.device = device_of(config)
        torch.set_num_threads(runner.thread_num)
        torch.manual_seed(runner.seed)
        self.net = fleet.distributed_model(model.create_model().to(self.device))
        inner = model.create_optimizer(self.net)
        strategy = strategy_of(runner)
        if runner.checkpoint_configs:
            strategy.checkpoint_configs = dict(runner.checkpoint_configs)
            named = named_folder(runner.checkpoint_configs)
            if not isinstance(place_of(named), Address):
                named = str(config.path_of(named))
            strategy.checkpoint_configs["dirname"] = strategy.checkpoint_configs["dir"] = named
        self._optimizer = fleet.distributed_optimizer(inner, strategy)
        self._scheduler = model.create_scheduler(self._optimizer)
        if self._scheduler is not None:
            fleet.register_for_checkpointing(scheduler=self._scheduler)
        self._data = TrainData(model, batches, files)
        self._batches = self._ahead()
        # Under a name that no script's own data has: each may load the other's checkpoints.
        fleet.register_for_checkpointing(runner_batches=self._batches)
        fleet.init_worker()
        self.first_epoch = runner.last_epoch + 1
        if fleet.resumed_from() is not None:
            if self._data.loaded_epoch is not None:
                self.first_epoch = self._data.loaded_epoch
        elif runner.model_init_path:
            fleet.load_model(config.path_of(runner.model_init_path))
        self._model = model
        self._clock = clock
        settle = torch.cuda.synchronize if self.device.type == "cuda" else lambda: None
        self.profile = Profile(clock, settle)
        if runner.dataset_debug:
            self.profile.watch(self.net)
        self.num_examples = 0
        self.num_steps = 0
        self._took_steps = True
        """Whether the last epoch was trained here; one of gpubox may be skipped."""

    def run_epoch(self, epoch: int, display: Display, write: Write) -> Mapping[str, Metric]:
        """Train on every batch once; return the metrics of this worker's examples.

        Where a checkpoint was taken inside this epoch, only on those behind it.
        """
        runner = self._model.config.runner
        metrics = self._model.create_metrics()
        shown_at, shown_examples = self._clock.monotonic(), self.num_examples
        loss, steps = torch.tensor(float("nan")), self.num_steps
        first = self._data.begin(epoch) + 1
        for step, feeds in enumerate(self.profile.reading(self._batches), start=first):
            loss = self._step(feeds, metrics if runner.use_auc else {})
            if runner.print_interval == 0 or step % runner.print_interval:
                continue
            now = self._clock.monotonic()
            examples = self.num_examples - shown_examples
            fleet.report(loss=loss.item(), examples=examples)
            values = {name: metric.value() for name, metric in metrics.items()}
            values = {"loss": loss.item(), **(values if runner.use_auc else {})}
            display.progress(epoch=epoch, step=step, metrics=values)
            speed = examples / max(now - shown_at, 1e-9)
            write("train", {**values, "examples_per_s": speed}, self.num_steps)
            if self.ledger is not None:
                write("localsgd", self.ledger.figures(), self.num_steps)
            shown_at, shown_examples = now, self.num_examples
        self._took_steps = runner.sync_mode != "gpubox" or self.num_steps > steps
        return metrics if runner.use_auc else {}

    @property
    def ledger(self) -> Ledger | None:
        """What LocalSGD's exchanges cost this worker; None in other modes."""
        return self._optimizer.ledger

    def save(self, epoch: int) -> None:
        """Save the checkpoint of an epoch, if any are saved.

        Of an epoch whose passes a former incarnation of this worker has trained, and saved, the
        checkpoint stays: the servers have later passes by now.
        """
        runner = self._model.config.runner
        if not runner.model_save_path:
            return
        folder = self._model.config.path_of(runner.model_save_path)
        if not self._took_steps and (folder / str(epoch)).exists():
            return
        fleet.save_persistables(folder / str(epoch))
        if runner.use_inference:
            fleet.save_inference_model(folder / f"{epoch}.inference")

    def _ahead(self) -> Prefetcher[Feeds] | PassingLoader[Feeds]:
        """Return the batches of an epoch, their rows on the way or on the device."""
        if self._runner.sync_mode != "gpubox":
            return fleet.prefetch(self._data, self.net)
        return fleet.device_pass(
            self._data,
            self.net,
            forward=self._outputs,
            device=self.device,
            device_budget=self._runner.device_budget or None,
        )

    def _outputs(self, feeds: Feeds) -> Any:
        """Return what the network makes of a batch."""
        return self.net(*(tensor.to(self.device) for tensor in feeds.inputs))

    def _step(self, feeds: Feeds, metrics: Mapping[str, Metric]) -> torch.Tensor:
        """Take one step; without rows, only the part in the job's step that it has."""
        count = feeds.size
        loss = self._learn(feeds, metrics) if count else torch.tensor(float("nan"))
        with self.profile.phase("push"):
            self._optimizer.step(examples=count, loss=loss)
            self._optimizer.zero_grad()
        if self._scheduler is not None:
            self._scheduler.step()
        self.num_examples += count
        self.num_steps += 1
        self.profile.close_batch()
        return loss

    def _learn(self, feeds: Feeds, metrics: Mapping[str, Metric]) -> torch.Tensor:
        """Leave a batch's gradients, and return its loss."""
        with self.profile.phase("forward"):
            labels = feeds.labels.to(self.device)
            outputs = self._outputs(feeds)
            loss = self._model.create_loss(outputs, labels)
        with self.profile.phase("backward"):
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if metrics:
            with torch.no_grad():
                self._model.update_metrics(metrics, outputs, labels)
        return loss.detach()
