"""``paramfleet train``: a model folder's training, alone or as a worker of a job."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

import paramfleet as fleet
from paramfleet.api.device_passing import PassingLoader
from paramfleet.api.prefetching import Prefetcher
from paramfleet.runner.batches import list_files, open_batches, train_share
from paramfleet.runner.config.errors import NoExamplesError
from paramfleet.runner.learning import Learner
from paramfleet.runner.models.metrics import Metric
from paramfleet.runner.models.model import Feeds, Model
from paramfleet.runner.position import TrainData
from paramfleet.runner.scoring import score
from paramfleet.runner.showing.display import Display, metrics_text, shown
from paramfleet.runner.showing.outcome import Outcome, model_name
from paramfleet.runner.showing.profile import Profile
from paramfleet.telemetry.visual import Write, visual
from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet_shared.system.clock import Clock

__all__ = ["Trainer", "train"]


def train(model: Model[Any], clock: Clock) -> Outcome:
    """Train this worker's share, score the test files with the others, and report.

    ``fleet.init`` was called, and took the role of a worker.

    Raises:
        ConfigError: if there are no files, or too few.
        NoExamplesError: if the files of all workers have none.
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
                trainer.save(epoch - 1, display.say)
            metrics = trainer.run_epoch(epoch, display, write)
        fleet.finish_training()
        seconds = clock.monotonic() - started
        num_examples = int(fleet.metrics.sum(trainer.num_examples))
        goes_on = fleet.resumed_from() or runner.model_init_path or fleet.restart_count()
        if not num_examples and not goes_on:
            raise NoExamplesError(key="runner.train_data_dir", folder=runner.train_data_dir)
        trainer.save(runner.epochs - 1, display.say)
        scores = {name: metric.merged() for name, metric in metrics.items()}
        if test is not None:
            scores, _ = score(model, trainer.net, test, trainer.device)
            display.say(f"test: {metrics_text(scores)}")
            write("test", scores, trainer.num_steps)
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
        self._learner = Learner(model, clock)
        self._data = TrainData(model, batches, files)
        self._batches = self._ahead()
        # Under a name that no script's own data has: each may load the other's checkpoints.
        fleet.register_for_checkpointing(runner_batches=self._batches)
        self._learner.begin()
        self.first_epoch = runner.last_epoch + 1
        if fleet.resumed_from() is not None:
            if self._data.loaded_epoch is not None:
                self.first_epoch = self._data.loaded_epoch
        elif runner.model_init_path:
            fleet.load_model(config.path_of(runner.model_init_path))
        self._model = model
        self._took_steps = True
        """Whether the last epoch was trained here; one of gpubox may be skipped."""
        self._epoch_steps: int | None = None
        """Steps of the last epoch, which the next ones will take too; None before."""

    def run_epoch(self, epoch: int, display: Display, write: Write) -> Mapping[str, Metric]:
        """Train on every batch once; return the metrics of this worker's examples.

        Where a checkpoint was taken inside this epoch, only on those behind it.
        """
        steps, num_used = self.num_steps, self._data.begin(epoch)
        if self._epoch_steps is not None:
            left = self._epoch_steps * (self._runner.epochs - epoch) - num_used
            self._learner.total_steps = self._learner.optimizer.num_steps + left
        metrics = self._learner.learn(
            self._batches,
            part=f"epoch {epoch}",
            first=num_used + 1,
            display=display,
            write=write,
        )
        taken = self.num_steps - steps
        self._took_steps = self._runner.sync_mode != "gpubox" or taken > 0
        self._epoch_steps = num_used + taken if self._took_steps else None
        return metrics

    @property
    def net(self) -> torch.nn.Module:
        """What is trained."""
        return self._learner.net

    @property
    def device(self) -> torch.device:
        """Where the worker computes."""
        return self._learner.device

    @property
    def num_steps(self) -> int:
        """Steps that this worker took."""
        return self._learner.num_steps

    @property
    def num_examples(self) -> int:
        """Examples that it trained on."""
        return self._learner.num_examples

    @property
    def profile(self) -> Profile:
        """Where the time went."""
        return self._learner.profile

    @property
    def ledger(self) -> Ledger | None:
        """What LocalSGD's exchanges cost this worker; None in other modes."""
        return self._learner.ledger

    def save(self, epoch: int, say: Callable[[str], None]) -> None:
        """Save the checkpoint of an epoch, if any are saved, and show where.

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
        say(f"checkpoint saved: {folder / str(epoch)}")
        if runner.use_inference:
            export = folder / f"{epoch}.inference"
            fleet.save_inference_model(export)
            say(f"export for inference saved: {export}")

    def _ahead(self) -> Prefetcher[Feeds] | PassingLoader[Feeds]:
        """Return the batches of an epoch, their rows on the way or on the device."""
        if self._runner.sync_mode != "gpubox":
            return fleet.prefetch(self._data, self._learner.net)
        return fleet.device_pass(
            self._data,
            self._learner.net,
            forward=self._learner.outputs,
            device=self._learner.device,
            device_budget=self._runner.device_budget or None,
        )
