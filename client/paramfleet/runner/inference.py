"""``paramfleet infer``: the saved checkpoints of a model, scored on the test files."""

from pathlib import Path
from typing import Any

import torch

import paramfleet as fleet
from paramfleet.runner.batches import list_files, open_batches
from paramfleet.runner.config.configuration import Config
from paramfleet.runner.config.errors import ConfigError
from paramfleet.runner.learning import device_of
from paramfleet.runner.models.model import Model
from paramfleet.runner.scoring import score
from paramfleet.runner.showing.display import metrics_text, shown
from paramfleet.runner.showing.outcome import Outcome, model_name
from paramfleet_shared.system.clock import Clock

__all__ = ["infer"]


def infer(model: Model[Any], clock: Clock) -> Outcome:
    """Score the checkpoints from ``infer_start_epoch`` to ``infer_end_epoch``, in this process.

    Returns:
        The metrics of the last one; all are shown on the way.

    Raises:
        ConfigError: if no checkpoint or file is named, or an epoch wasn't saved.
        ManifestError: if what is there is no checkpoint.
    """
    config, runner = model.config, model.config.runner
    name = runner.infer_load_path or runner.model_save_path
    if not name:
        raise ConfigError(
            where=str(config.path), key="runner.infer_load_path", value="", rule="must be given"
        )
    stop = runner.epochs if runner.infer_end_epoch is None else runner.infer_end_epoch
    epochs = range(runner.infer_start_epoch, stop)
    if not epochs:
        raise ConfigError(
            where=str(config.path),
            key="runner.infer_end_epoch",
            value=repr(stop),
            rule=f"must be more than infer_start_epoch ({runner.infer_start_epoch})",
        )
    folder = config.path_of(name)
    _require_saved(config, folder, epochs)
    batches = open_batches(model, list_files(config, "test_data_dir"), test=True)
    device = device_of(config)
    started, scored = clock.monotonic(), 0
    scores: dict[str, float] = {}
    with shown(interval=1) as display:
        for epoch in epochs:
            net = _load(model, folder / str(epoch), device)
            scores, count = score(model, net, batches, device)
            scored += count
            display.say(f"epoch {epoch}: {metrics_text(scores)}")
    seconds = clock.monotonic() - started
    return Outcome(
        model=model_name(config),
        mode="infer",
        workers=1,
        servers=0,
        epochs=len(epochs),
        metrics=scores,
        scored_on="test",
        examples_per_s=scored / seconds,
        unit=model.unit,
        seconds=seconds,
    )


def _require_saved(config: Config[Any], folder: Path, epochs: range) -> None:
    """Look for all checkpoints before the first is scored.

    Raises:
        ConfigError: naming the first that isn't there, and those that are.
    """
    missing = [epoch for epoch in epochs if not (folder / str(epoch)).exists()]
    if missing:
        entries = folder.iterdir() if folder.is_dir() else ()
        numbers = sorted(int(each.name) for each in entries if each.name.isdecimal())
        there = ", ".join(map(str, numbers)) or "none"
        raise ConfigError(
            where=str(config.path),
            key="runner.infer_end_epoch",
            value=str(epochs.stop),
            rule=f"there is no checkpoint of epoch {missing[0]} in {folder}; it has: {there}",
        )


def _load(model: Model[Any], folder: Path, device: torch.device) -> torch.nn.Module:
    """Return the network with a checkpoint's values."""
    net = fleet.distributed_model(model.create_model().to(device))
    fleet.distributed_optimizer(model.create_optimizer(net))
    fleet.init_worker()
    fleet.load_model(folder)
    return net
