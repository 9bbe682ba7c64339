"""``python -m paramfleet.runner``: what ``paramfleet train`` and each process of a job run."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import paramfleet as fleet
from paramfleet.config.plans.checkpoints import named_folder
from paramfleet.runner.config.configuration import Config, RawConfig, read_config
from paramfleet.runner.config.paddle_optimizers import optimizer_note
from paramfleet.runner.folders import read_model
from paramfleet.runner.inference import infer
from paramfleet.runner.models.model import Model
from paramfleet.runner.online.trainer import train_by_days
from paramfleet.runner.showing.outcome import Outcome
from paramfleet.runner.training import train
from paramfleet_shared.errors import ContractError, FleetError, JobFailedError
from paramfleet_shared.files.addresses import Address, place_of
from paramfleet_shared.settings.cli import BoundedCommand, BoundedGroup, echo
from paramfleet_shared.system.clock import Clock, SystemClock

__all__ = ["main"]

log = logging.getLogger(__name__)

Work = Callable[[Model[Any], Clock], Outcome]

_PARAMETERS: list[click.Parameter] = [
    click.Option(
        ["-m", "--model", "path"],
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        required=True,
        help="YAML file of the model folder.",
    ),
    click.Option(
        ["-o", "--option", "options"],
        multiple=True,
        metavar="KEY=VALUE",
        help="Replace a value of the YAML file, as runner.epochs=3. More may follow it.",
    ),
    click.Argument(["more"], nargs=-1, metavar="[KEY=VALUE]..."),
]


@click.group(cls=BoundedGroup)
def main() -> None:
    """Train and score model folders."""


def _train(path: Path, options: tuple[str, ...], more: tuple[str, ...]) -> None:
    """Train a model folder: in this process, or as the process of a job.

    In a job, environment variables give the role of the process. The last line of worker 0's
    standard output is the result as JSON.
    """
    fleet.init()
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server(checkpoint_dirs=_folders_of(path, (*options, *more)))
    else:
        _told("train", _train_model, path, (*options, *more))


def _train_model(model: Model[Any], clock: Clock) -> Outcome:
    """Train by days where there are some, else by epochs."""
    by_days = model.config.runner.is_online
    return train_by_days(model, clock) if by_days else train(model, clock)


def _folders_of(path: Path, options: tuple[str, ...]) -> list[Path]:
    """Return where a model's checkpoints are: a server that is started with it may use them.

    Raises:
        UsageError: if the configuration can't be what was meant.
    """
    try:
        raw = read_config(path, options)
    except ContractError as error:
        raise click.UsageError(str(error)) from error
    configs = raw.runner.checkpoint_configs
    periodic = named_folder(configs) if configs else ""
    names = [raw.runner.model_save_path, raw.runner.model_init_path, periodic]
    return [_place(raw, name) for name in names if name]


def _place(raw: RawConfig, name: str) -> Path:
    """Return the folder of a name, which is below the model's, or an address."""
    place = place_of(name)
    return place if isinstance(place, Address) else raw.path_of(name)


def _infer(path: Path, options: tuple[str, ...], more: tuple[str, ...]) -> None:
    """Evaluate the checkpoints of a model folder in this process.

    It reads the model's test files. The last line of standard output is the result of the last
    checkpoint as JSON.
    """
    fleet.init(fleet.PaddleCloudRoleMaker(environment={}))
    _told("infer", infer, path, (*options, *more))


def _told(name: str, work: Work, path: Path, options: tuple[str, ...]) -> None:
    """Run a command on a model; an error is printed in one line.

    Raises:
        UsageError: if the configuration can't be what was meant.
        JobFailedError: if another member of the job failed.
    """
    try:
        model = read_model(path, options)
        if fleet.worker_index() == 0:
            _tell(name, model.config)
        outcome = work(model, SystemClock())
    except ContractError as error:
        raise click.UsageError(str(error)) from error
    except JobFailedError:
        raise  # which the session says in one line
    except FleetError as error:
        echo(f"paramfleet {name}: {error}", err=True)
        sys.exit(1)
    if fleet.worker_index() == 0:
        print(outcome.to_json(), flush=True)


def _tell(name: str, config: Config[Any]) -> None:
    """Say where the training differs from what the configuration says.

    Args:
        name: Of the command.
        config: Of the model.
    """
    note = optimizer_note(config)
    if note:
        echo(f"paramfleet {name}: {note}", err=True)
    if config.left_out:
        facts = {
            "file": str(config.path),
            "keys": [key.replace(f"{config.path}, ", "") for key in config.left_out],
            "reason": "neither the model nor a reader reads them",
            "remedy": "leave them out, or let model.py read them: config.get(KEY)",
        }
        log.warning("worker.keys_not_read", extra=facts)


for _name, _callback in (("train", _train), ("infer", _infer)):
    main.add_command(
        BoundedCommand(_name, params=_PARAMETERS, callback=_callback, help=_callback.__doc__)
    )

if __name__ == "__main__":
    main(prog_name="paramfleet")
