"""The ``paramfleet`` command."""

from paramfleet_worker.process import interrupts  # first: it takes Ctrl-C from now on

# isort: split
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from paramfleet.config.settings import WorkerSettings
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.net.secret import new_secret, open_warnings, write_secret
from paramfleet_shared.settings.cli import (
    BoundedCommand,
    click_type,
    echo,
    with_dashes,
    with_default,
)
from paramfleet_shared.settings.config import (
    Option,
    Resolved,
    options_of,
    read_environment,
    resolve,
)
from paramfleet_shared.settings.failpoints import require_chaos
from paramfleet_shared.settings.option_groups import (
    GroupedOption,
    OptionGroup,
    group_of_setting,
)
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.telemetry.logs_and_metrics import setup_logging
from paramfleet_worker.app.beginning.demo.command import NEXT, SCRIPT, launch_words
from paramfleet_worker.app.beginning.new_project.command import new
from paramfleet_worker.app.commands.checkpoints import checkpoint, export
from paramfleet_worker.app.commands.operating import COMMANDS
from paramfleet_worker.app.commands.outcomes import check_working_folder, exit_code_of
from paramfleet_worker.app.commands.tables import tables
from paramfleet_worker.app.launch.checking import check_settings
from paramfleet_worker.app.launch.launcher import Launcher
from paramfleet_worker.app.launch.naming import with_name
from paramfleet_worker.app.launch.option_groups import in_groups
from paramfleet_worker.app.launch.planning import plan_launch
from paramfleet_worker.app.launch.preparing import prepared_launch
from paramfleet_worker.app.script import become_worker, script_of
from paramfleet_worker.app.shell.completion import completion, files
from paramfleet_worker.app.shell.delegates import LazyGroup
from paramfleet_worker.config import LaunchSettings
from paramfleet_worker.core.checkpoints.command_line import CommandLine
from paramfleet_worker.core.showing.lines import amount_of
from paramfleet_worker.process.ports import PortReservations
from paramfleet_worker.process.terminal.console import Console

__all__ = ["main"]

interrupts.restore()

log = logging.getLogger("paramfleet_worker")


@click.group(cls=LazyGroup, context_settings={"token_normalize_func": with_dashes})
@click.version_option(package_name="paramfleet", prog_name="paramfleet")
def main() -> None:
    """Parameter-server training for PyTorch."""


def _launch(
    arguments: tuple[str, ...], model: Path | None, option: tuple[str, ...], **options: Any
) -> None:
    """Start a training job on this machine or on several machines.

    Starts a Redis, a coordinator, pservers (parameter servers) and workers. Each pserver and
    each worker runs SCRIPT with ARGS, or the model folder of -m. Options for the job stand
    before SCRIPT; everything after it goes to the script.

    The exit code is 0 only if all processes end with 0. When a process dies, the launcher says
    which one and stops the others; with --data_dir, --replicas or --max_restarts it restarts
    the process, and the job continues.

    --gpus, --nproc_per_node and --ips without --server_num start a collective job: workers
    without pservers, through torch's elastic agent.
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
        amount = amount_of(quiet=resolved.value.quiet, verbose=resolved.value.verbose)
        console = Console(sys.stdout.buffer, sys.stderr.buffer, environment, amount=amount)
        script = script_of(arguments, model=model, options=option)
        code = 1
        try:
            again = CommandLine.of(tuple(sys.argv[1:]), arguments, environment)
            code = _launched(resolved, script, environment, console, again)
        finally:
            console.close(keeps_results=code == 0)
        return code

    sys.exit(exit_code_of("launch", run))


def _launched(
    resolved: Resolved[LaunchSettings],
    script: tuple[str, ...],
    environment: Mapping[str, str],
    console: Console,
    again: CommandLine,
) -> int:
    """Run the job in one of the ways there are; return the exit code.

    Raises:
        FleetError: if it can't begin.
        OSError: if a log can't be written, or a process can't be started.
    """
    require_chaos(environment, chaos=resolved.value.chaos)
    if resolved.value.collective:
        from paramfleet_worker.app.launch.collective import launch_collective  # noqa: PLC0415 -- slow

        return launch_collective(resolved.value, script, environment, console)
    check_settings(environment)
    inherited = {**environment, **_resuming(resolved.value, console, again)}
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
            prepared_again = replace(prepared, again=again)
            launcher = Launcher(prepared_again, console=console, clock=SystemClock())
            return asyncio.run(launcher.run())


def _resuming(settings: LaunchSettings, console: Console, again: CommandLine) -> dict[str, str]:
    """Return what lets the job continue from a checkpoint; nothing if it isn't asked to.

    Raises:
        CheckpointFolderError: if there is no such folder.
        NoWholeCheckpointError: if each checkpoint in it is damaged.
    """
    if not settings.resume:
        return {}
    from paramfleet_worker.app.checkpoints.resuming import resume_environment  # noqa: PLC0415 -- slow

    return resume_environment(place_of(settings.resume).expanduser(), console.say, again)


def _worker(
    arguments: tuple[str, ...],
    model: Path | None,
    option: tuple[str, ...],
    config: Path | None,
    **options: Any,
) -> None:
    """Run a worker of a job.

    The other processes of the job are started separately. The worker runs SCRIPT with ARGS, or
    the model folder of -m.
    """
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
        given = set(resolved.lines(given=True))
        for line in resolved.lines():
            log.log(logging.INFO if line in given else logging.DEBUG, "setting %s", line)
        for warning in warnings:
            log.warning(warning)
        return
    for line in (*resolved.lines(given=True), *(f"warning: {each}" for each in warnings)):
        echo(f"[worker] {line}", err=True)


@main.delegate("coordinator")
def _coordinator() -> click.Command:
    """Run the coordinator of a job."""
    from paramfleet_coordinator.__main__ import main  # noqa: PLC0415 -- slow

    return main


@main.delegate("train")
def _train() -> click.Command:
    """Train a model folder in this process, without a job."""
    from paramfleet.runner.__main__ import main as runner  # noqa: PLC0415 -- slow

    return runner.commands["train"]


@main.delegate("infer")
def _infer() -> click.Command:
    """Evaluate the checkpoints of a model folder in this process."""
    from paramfleet.runner.__main__ import main as runner  # noqa: PLC0415 -- slow

    return runner.commands["infer"]


@main.delegate("certs")
def _certs() -> click.Command:
    """Create and show TLS certificates for the processes of a job."""
    from paramfleet_worker.app.commands.certs import certs  # noqa: PLC0415 -- slow

    return certs


@main.delegate("doctor")
def _doctor() -> click.Command:
    """Check that jobs can run on this machine."""
    from paramfleet_worker.app.doctor.report import doctor  # noqa: PLC0415 -- slow

    return doctor


@main.delegate("plan")
def _plan() -> click.Command:
    """Estimate the memory that a table needs on each pserver."""
    from paramfleet_worker.app.planning.command import plan  # noqa: PLC0415 -- slow

    return plan


@main.delegate("verify")
def _verify() -> click.Command:
    """Kill processes of small jobs and check the results."""
    from paramfleet_worker.app.commands.verify import verify  # noqa: PLC0415 -- slow

    return verify


@main.delegate("data")
def _data() -> click.Command:
    """Show and remove what pservers wrote into a data folder."""
    from paramfleet_worker.app.commands.data import data  # noqa: PLC0415 -- slow

    return data


@main.delegate("delta")
def _delta() -> click.Command:
    """Write, show, check and clean up streams of changes."""
    from paramfleet_worker.app.commands.deltas import delta  # noqa: PLC0415 -- slow

    return delta


@main.command("secret")
@click.argument("file", default="paramfleet.secret")
def _secret(file: str) -> None:
    """Create the secret that the processes of a job share, in FILE.

    FILE is paramfleet.secret by default; - prints the secret. Copy the file to each machine of
    the job so that only you can read it, and set PARAMFLEET_SECRET_FILE to its path there. An
    existing file is not overwritten.
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


@main.delegate("tokens")
def _tokens() -> click.Command:
    """Create, list and revoke tokens for admin addresses."""
    from paramfleet_worker.app.commands.tokens import tokens  # noqa: PLC0415 -- slow

    return tokens


@main.delegate("pserver")
def _pserver() -> click.Command:
    """Run a pserver (parameter server) of a job."""
    from paramfleet_pserver.__main__ import main  # noqa: PLC0415 -- slow

    return main


def _find_job(arguments: tuple[str, ...]) -> None:
    """Put into the environment where the job is that a server is to follow."""
    from paramfleet_worker.app.serving import job_variables  # noqa: PLC0415 -- slow

    found = job_variables(arguments, read_environment())
    os.environ.update(found)  # noqa: TID251 - whence the command reads its settings


@main.delegate("serve", prepare=_find_job)
def _serve() -> click.Command:
    """Serve a model over HTTP, also while it trains."""
    from paramfleet_serving.__main__ import main  # noqa: PLC0415 -- slow

    return main


def _script_command(
    name: str, settings: type, callback: Callable[..., None], *more: click.Parameter
) -> click.Command:
    """Return a command of settings, then a script and what it takes, or a model folder."""
    model = click.Option(
        ["-m", "--model"],
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="YAML file of a model folder to train, instead of a script.",
    )
    option = click.Option(
        ["-o", "--option"],
        multiple=True,
        metavar="KEY=VALUE",
        help="With -m: replace a value of the file, as runner.epochs=3. More may follow.",
    )
    shown = [each for each in options_of(settings) if not each.secret]
    pairs = (
        in_groups(shown)
        if settings is LaunchSettings
        else [(each, group_of_setting(each.name)) for each in shown]
    )
    options = [_option(each, group) for each, group in pairs]
    rest = click.Argument(
        ["arguments"],
        nargs=-1,
        type=click.UNPROCESSED,
        metavar="[SCRIPT [ARGS]...]",
        shell_complete=files,
    )
    return BoundedCommand(
        name,
        params=[*options, *more, model, option, rest],
        callback=callback,
        help=callback.__doc__,
        context_settings={"allow_interspersed_args": False},
    )


@main.command("demo", context_settings={"show_default": True})
@click.option(
    "--mode",
    type=click.Choice(["sync", "async", "geo"]),
    default="geo",
    help="Training mode.",
)
@click.option("--servers", type=click.IntRange(min=1), default=1, help="Number of pservers.")
@click.option("--workers", type=click.IntRange(min=1), default=2, help="Number of workers.")
@click.option("--steps", type=click.IntRange(min=1), default=300, help="Steps of each worker.")
@click.option("--show", is_flag=True, help="Print the script of the example and exit.")
def _demo(mode: str, servers: int, workers: int, steps: int, *, show: bool) -> None:
    """Train a small example on this machine.

    The model is wide and deep, the data are generated clicks.
    The last line of the output is the result as JSON; log files are in log/. The first start
    compiles the code for the tables, which takes half a minute or more. In a clone, `make demo`
    trains a larger example on 336,776 flights.
    """
    if show:
        click.echo(SCRIPT.read_text(encoding="utf-8"), nl=False)
        return

    def run() -> int:
        torch = find_spec("torch") is not None
        words = launch_words(
            mode=mode, servers=servers, workers=workers, steps=steps, torch=torch
        )
        try:
            main.commands["launch"].main(words, prog_name="paramfleet demo")
        except SystemExit as ended:
            if not ended.code:
                click.echo(NEXT, err=True)
            raise

    sys.exit(exit_code_of("demo", run))


def _option(option: Option, group: OptionGroup | None) -> click.Option:
    flag = f"--{option.name}"
    if option.type is bool:
        flag += f"/--no-{option.name}"
    help_ = with_default(option)
    kind = click_type(option.type)
    return GroupedOption([flag], type=kind, default=None, help=help_, group=group)


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
            help="TOML file with settings.",
        ),
    )
)

for _command in (*COMMANDS, tables, checkpoint, completion, export, new):
    main.add_command(_command)

if __name__ == "__main__":
    main()
