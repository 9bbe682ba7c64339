"""The ``paramfleet`` command."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from paramfleet.config.settings import WorkerSettings
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.net.secret import new_secret, open_warnings, write_secret
from paramfleet_shared.settings.cli import BoundedCommand, BoundedGroup, click_type, echo
from paramfleet_shared.settings.config import (
    Option,
    Resolved,
    options_of,
    read_environment,
    resolve,
)
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.telemetry.logs_and_metrics import setup_logging
from paramfleet_worker.app.commands.checkpoints import checkpoint, export
from paramfleet_worker.app.commands.operating import COMMANDS
from paramfleet_worker.app.commands.outcomes import check_working_folder, exit_code_of
from paramfleet_worker.app.commands.tables import tables
from paramfleet_worker.app.launch.launcher import Launcher
from paramfleet_worker.app.launch.naming import with_name
from paramfleet_worker.app.launch.planning import plan_launch
from paramfleet_worker.app.launch.preparing import prepared_launch
from paramfleet_worker.app.script import become_worker, script_of
from paramfleet_worker.config import LaunchSettings
from paramfleet_worker.process.console import Console
from paramfleet_worker.process.ports import PortReservations

__all__ = ["main"]

log = logging.getLogger("paramfleet_worker")

DELEGATE = {
    "add_help_option": False,
    "context_settings": {"ignore_unknown_options": True, "allow_interspersed_args": False},
}


def _with_dashes(token: str) -> str:
    """Take ``--worker_num``, as Fleet spells it, for ``--worker-num``."""
    return token.replace("_", "-")


@click.group(cls=BoundedGroup, context_settings={"token_normalize_func": _with_dashes})
@click.version_option(package_name="paramfleet", prog_name="paramfleet")
def main() -> None:
    """Parameter-server training for PyTorch."""


def _launch(
    arguments: tuple[str, ...], model: Path | None, option: tuple[str, ...], **options: Any
) -> None:
    """Train on this machine, or on several.

    Starts what the job needs, and runs SCRIPT with ARGS, or the model folder of -m, as each
    of its pservers and workers. Ends with 0 only if every process did. When one dies, the
    others are stopped and it is named. --gpus, --nproc_per_node and --ips start the workers of
    a collective job, without servers, through torch's elastic agent; with --max-restarts it
    starts all of them again when one has failed. With --data-dir or --replicas a pserver, the
    coordinator, or the launcher's own Redis that dies is started again, and the job continues.
    """
    environment = read_environment()

    def run() -> int:
        check_working_folder()
        file = environment.get("PARAMFLEET_CONFIG")
        resolved = resolve(
            LaunchSettings,
            section="launch",
            arguments=options,
            environment=environment,
            file=Path(file) if file else None,
        )
        console = Console(sys.stdout.buffer, sys.stderr.buffer, environment)
        script = script_of(arguments, model=model, options=option)
        if resolved.value.collective:
            from paramfleet_worker.app.launch.collective import launch_collective  # noqa: PLC0415 -- slow

            return launch_collective(resolved.value, script, environment, console)
        inherited = environment | _resuming(resolved.value, console)
        resolved = replace(resolved, value=with_name(resolved.value, script=script))
        if resolved.value.on == "ray":
            from paramfleet_worker.app.launch.on_ray import launch_on_ray  # noqa: PLC0415 -- slow

            launching = launch_on_ray(
                resolved, script=script, environment=inherited, console=console
            )
            return asyncio.run(launching)
        with PortReservations() as reservations:
            plan = plan_launch(
                resolved.value,
                script=script,
                pod_ip=environment.get("POD_IP", ""),
                reservations=reservations,
            )
            with prepared_launch(resolved, plan, inherited) as prepared:
                launcher = Launcher(prepared, console=console, clock=SystemClock())
                return asyncio.run(launcher.run())

    sys.exit(exit_code_of("launch", run))


def _resuming(settings: LaunchSettings, console: Console) -> dict[str, str]:
    """Return what lets the job continue from a checkpoint; nothing if it isn't asked to.

    Raises:
        CheckpointFolderError: if there is no such folder.
        NoWholeCheckpointError: if each checkpoint in it is damaged.
    """
    if not settings.resume:
        return {}
    from paramfleet_worker.app.checkpoints.resuming import resume_environment  # noqa: PLC0415 -- slow

    return resume_environment(place_of(settings.resume).expanduser(), console.say)


def _worker(
    arguments: tuple[str, ...],
    model: Path | None,
    option: tuple[str, ...],
    config: Path | None,
    **options: Any,
) -> None:
    """Run SCRIPT with ARGS, or the model folder of -m, in a job that is started elsewhere."""
    environment = read_environment()

    def run() -> int:
        resolved: Resolved[WorkerSettings] = resolve(
            WorkerSettings,
            section="worker",
            arguments=options,
            environment=environment,
            file=config,
        )
        _tell_settings(resolved)
        script = script_of(arguments, model=model, options=option)
        become_worker(script, resolved, environment)

    sys.exit(exit_code_of("worker", run))


def _tell_settings(resolved: Resolved[WorkerSettings]) -> None:
    warnings = open_warnings(resolved.origins, resolved.value, read_environment())
    if resolved.value.log_format == "json":
        setup_logging("worker", log_format="json")
        for line in resolved.lines():
            log.info("setting %s", line)
        for warning in warnings:
            log.warning(warning)
        return
    for line in (*resolved.lines(), *(f"warning: {each}" for each in warnings)):
        echo(f"[worker] {line}", err=True)


@main.command("coordinator", **DELEGATE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _coordinator(arguments: tuple[str, ...]) -> None:
    """Run the coordinator of a job."""
    from paramfleet_coordinator.__main__ import main as command  # noqa: PLC0415 -- slow

    _delegate(command, "coordinator", arguments)


@main.command("train", **DELEGATE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _train(arguments: tuple[str, ...]) -> None:
    """Train a model folder in this process."""
    from paramfleet.runner.__main__ import main as command  # noqa: PLC0415 -- slow

    command.main(["train", *arguments], prog_name="paramfleet")


@main.command("infer", **DELEGATE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _infer(arguments: tuple[str, ...]) -> None:
    """Score a model folder's checkpoints in this process."""
    from paramfleet.runner.__main__ import main as command  # noqa: PLC0415 -- slow

    command.main(["infer", *arguments], prog_name="paramfleet")


@main.command("certs", **DELEGATE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _certs(arguments: tuple[str, ...]) -> None:
    """Make and show the certificates of a job's roles."""
    from paramfleet_worker.app.commands.certs import certs as command  # noqa: PLC0415 -- slow

    _delegate(command, "certs", arguments)


@main.command("doctor", **DELEGATE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _doctor(arguments: tuple[str, ...]) -> None:
    """Look for what would keep a job from running here."""
    from paramfleet_worker.app.doctor.report import doctor as command  # noqa: PLC0415 -- slow

    _delegate(command, "doctor", arguments)


@main.command("plan", **DELEGATE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _plan(arguments: tuple[str, ...]) -> None:
    """Say what each pserver needs for a table; no job is needed."""
    from paramfleet_worker.app.planning.command import plan as command  # noqa: PLC0415 -- slow

    _delegate(command, "plan", arguments)


@main.command("verify", **DELEGATE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _verify(arguments: tuple[str, ...]) -> None:
    """Let processes of small jobs die, and check that no change is lost or doubled."""
    from paramfleet_worker.app.commands.verify import verify as command  # noqa: PLC0415 -- slow

    _delegate(command, "verify", arguments)


@main.command("data", **DELEGATE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _data(arguments: tuple[str, ...]) -> None:
    """See and remove what pservers keep below a data folder."""
    from paramfleet_worker.app.commands.data import data as command  # noqa: PLC0415 -- slow

    _delegate(command, "data", arguments)


@main.command("delta", **DELEGATE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _delta(arguments: tuple[str, ...]) -> None:
    """Write, see, check and tidy the stream of a model's changes in a folder."""
    from paramfleet_worker.app.commands.deltas import delta as command  # noqa: PLC0415 -- slow

    _delegate(command, "delta", arguments)


@main.command("secret")
@click.argument("file", default="paramfleet.secret")
def _secret(file: str) -> None:
    """Make the secret that the processes of a job share, in FILE; - writes it out.

    Copy the file to each machine of the job, as a secret, and name it there in
    PARAMFLEET_SECRET_FILE. A file that is there already is left alone.
    """
    text = new_secret() + "\n"
    if file == "-":
        click.echo(text, nl=False)
        return

    def run() -> int:
        write_secret(Path(file), text)
        click.echo(f"a new secret is in {file}", err=True)
        return 0

    sys.exit(exit_code_of("secret", run))


@main.command("tokens", **DELEGATE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _tokens(arguments: tuple[str, ...]) -> None:
    """Make, list and revoke the tokens that admin addresses accept."""
    from paramfleet_worker.app.commands.tokens import tokens as command  # noqa: PLC0415 -- slow

    _delegate(command, "tokens", arguments)


@main.command("pserver", **DELEGATE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _pserver(arguments: tuple[str, ...]) -> None:
    """Run a pserver of a job."""
    from paramfleet_pserver.__main__ import main as command  # noqa: PLC0415 -- slow

    _delegate(command, "pserver", arguments)


@main.command("serve", **DELEGATE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _serve(arguments: tuple[str, ...]) -> None:
    """Serve a model from the stream of its changes, or from its running job."""
    from paramfleet_serving.__main__ import main as command  # noqa: PLC0415 -- slow
    from paramfleet_worker.app.serving import job_variables  # noqa: PLC0415 -- slow

    found = job_variables(arguments, read_environment())
    os.environ.update(found)  # noqa: TID251 - whence the command reads its settings
    _delegate(command, "serve", arguments)


def _delegate(command: click.Command, name: str, arguments: tuple[str, ...]) -> None:
    command.main(
        list(arguments), prog_name=f"paramfleet {name}", token_normalize_func=_with_dashes
    )


def _script_command(
    name: str, settings: type, callback: Callable[..., None], *more: click.Parameter
) -> click.Command:
    """Return a command of settings, then a script and what it takes, or a model folder."""
    model = click.Option(
        ["-m", "--model"],
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A model folder's YAML file, instead of a script.",
    )
    option = click.Option(
        ["-o", "--option"],
        multiple=True,
        metavar="KEY=VALUE",
        help="With -m: overrules a key, as runner.epochs=3; more may follow behind it.",
    )
    options = [_option(each) for each in options_of(settings) if not each.secret]
    rest = click.Argument(
        ["arguments"], nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT [ARGS]...]"
    )
    return BoundedCommand(
        name,
        params=[*options, *more, model, option, rest],
        callback=callback,
        help=callback.__doc__,
        context_settings={"allow_interspersed_args": False},
    )


def _option(option: Option) -> click.Option:
    shown = "none" if option.default in {None, ""} else option.default
    flag = f"--{option.name}"
    if option.type is bool:
        flag += f"/--no-{option.name}"
    help_ = f"{option.help}  [{shown}]"
    return click.Option([flag], type=click_type(option.type), default=None, help=help_)


main.add_command(_script_command("launch", LaunchSettings, _launch))
main.add_command(
    _script_command(
        "worker",
        WorkerSettings,
        _worker,
        click.Option(
            ["--config"],
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            envvar="PARAMFLEET_CONFIG",
            help="TOML file of settings.",
        ),
    )
)

for _command in (*COMMANDS, tables, checkpoint, export):
    main.add_command(_command)

if __name__ == "__main__":
    main()
