"""``paramfleet status|top|...``: a running job in a terminal."""

import asyncio
import json
import shutil
import ssl
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from typing_extensions import override

from paramfleet_shared.discovery.errors import NoCoordinatorError
from paramfleet_shared.errors import FleetError
from paramfleet_shared.settings.cli import BoundedCommand, echo
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.settings.hurts import ACTIONS
from paramfleet_shared.settings.option_groups import FINDING, GroupedOption
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.values.texts import printable, shown
from paramfleet_worker.app.finding import Found, NoJobError, find_job, running_jobs
from paramfleet_worker.app.operating import (
    Operator,
    operator_of,
    read_audit,
    read_token,
    reading,
)
from paramfleet_worker.app.shell.completion import jobs
from paramfleet_worker.core.board import (
    AUDIT_COLUMNS,
    BARRIER_COLUMNS,
    WORKER_COLUMNS,
    board,
    rows_of,
    tables_of,
)

__all__ = [
    "COMMANDS",
    "SHOW_TABLES",
    "SHRINK_TABLES",
    "WRITE_CHECKPOINT",
    "job_command",
    "require_going_on",
    "show",
]

_CLEAR = "\x1b[H\x1b[2J"
_TOP_PERIOD_S = 1.0
_CHECKPOINT_POLL_S = 0.2
_PLAIN_WIDTH = 200
_NOT_CONSISTENT = 3
"""Exit status: the checkpoint is written, but not as of one moment."""

Run = Callable[[Operator, dict[str, Any]], None]


def _status(operator: Operator, options: dict[str, Any]) -> None:
    """Show the state of a job: its workers and its pservers."""
    status = operator.get("status")
    show(status, board(status, width=_PLAIN_WIDTH), options)


def _top(operator: Operator, options: dict[str, Any]) -> None:
    """Show the state of a job live, until Ctrl-C or its end."""
    clock = SystemClock()
    while True:
        status = operator.get("status")
        if options["json"]:
            echo(json.dumps(status))
        else:
            width, height = _size()
            lines = board(status, width=width)[: height - 1]
            clear = "" if options["once"] else _CLEAR
            click.echo(clear + _printable(lines))
        if options["once"] or status["state"] in {"finished", "failed"}:
            return
        asyncio.run(clock.sleep(_TOP_PERIOD_S))


def _tables(operator: Operator, options: dict[str, Any]) -> None:
    """Show the tables of a job, its dense parameters, and the shards that are used most."""
    tables = _as_list(operator.get("tables"))
    show(tables, tables_of(tables), options)


def _shrink(operator: Operator, options: dict[str, Any]) -> None:
    """Remove expired rows, and rows above a limit.

    Does the same as fleet.shrink(), in TABLE or in all tables: the accessors of the tables and
    strategy.eviction_configs decide which rows are removed. --dry-run only counts these rows;
    in sync only --dry-run is possible. While the job trains, the number of a dry run and of a
    later run differ: pause the job first to get the same number. Worker 0 removes the rows
    between two of its steps, so --timeout must be longer than a step. The exit code is 1 if it
    fails.

    Raises:
        ClickException: if it failed.
    """
    asked = operator.post(
        "tables/shrink", {"table": options["table"] or "", "dry_run": options["dry_run"]}
    )
    done = _await(operator, "shrink", asked["number"], options["timeout"], what="the rows")
    if done["error"]:
        raise click.ClickException(str(done["error"]))
    went = "would go" if done["dry_run"] else "went"
    lines = [f"{name}: {rows:,} rows {went}" for name, rows in sorted(done["rows"].items())]
    none = "no table has an accessor or eviction_configs: every row stays"
    show(done, lines or [none], options)


def _await(
    operator: Operator, kind: str, number: int, timeout_s: float, *, what: str
) -> dict[str, Any]:
    """Return what worker 0 says became of an order.

    Raises:
        ClickException: if the job ends before, or it takes too long.
    """
    clock = SystemClock()
    deadline = clock.monotonic() + timeout_s
    while True:
        status = operator.get("status")
        done: dict[str, Any] | None = status[kind]
        if done is not None and done["number"] >= number:
            return done
        require_going_on(status)
        if clock.monotonic() >= deadline:
            waited = f"{what}: worker 0 hasn't said in {timeout_s:g} s what became of it"
            raise click.ClickException(waited)
        asyncio.run(clock.sleep(_CHECKPOINT_POLL_S))


def _workers(operator: Operator, options: dict[str, Any]) -> None:
    """Show the workers of a job, and why slow ones are slow."""
    _list(operator.get("workers"), WORKER_COLUMNS, options)


def _barriers(operator: Operator, options: dict[str, Any]) -> None:
    """Show which workers wait at which barrier."""
    _list(operator.get("barriers"), BARRIER_COLUMNS, options)


def _audit(operator: Operator, options: dict[str, Any]) -> None:
    """Show who changed what in a job, also after its end."""
    _list(operator.get("audit"), AUDIT_COLUMNS, options)


def _audit_of_registry(options: dict[str, Any]) -> None:
    """Show what the registry keeps of a job that has no coordinator."""
    echo("the coordinator is gone; this is what the registry (Redis) keeps", err=True)
    _list(read_audit(_find(options).settings), AUDIT_COLUMNS, options)


def _pause(operator: Operator, options: dict[str, Any]) -> None:
    """Pause the training: workers stop before their next step."""
    show(operator.post("pause"), ["paused"], options)


class _MistakenFolder(click.Argument):
    """A word that no usage shows, because it is refused."""

    @override
    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        return []


def _refuse_folder(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Name the command that continues from a checkpoint, which is what a folder asks for.

    Raises:
        click.UsageError: if there is a folder.
    """
    del param
    if value is not None:
        message = (
            f"this command continues a paused job, and takes no folder; to continue from a "
            f"checkpoint: paramfleet launch --resume {value} SCRIPT"
        )
        raise click.UsageError(message, ctx)


def _resume(operator: Operator, options: dict[str, Any]) -> None:
    """Continue a paused training.

    To continue from a checkpoint: paramfleet launch --resume DIR SCRIPT.
    """
    show(operator.post("resume"), ["resumed"], options)


def _page(operator: Operator, options: dict[str, Any]) -> None:
    """Print a link to the job's page in the browser.

    The link works once, within ten minutes.
    """
    code = operator.post("codes")["code"]
    link = f"{operator.url.rstrip('/')}/#code={code}"
    show({"url": link}, [link], options)


def _end(operator: Operator, options: dict[str, Any]) -> None:
    """End the training after the current step.

    A script that leaves its loop when fleet.should_stop() is true then runs the code after the
    loop. Any other script ends without running further code.
    """
    job = operator.get("status")["job"]
    show(operator.post("end"), [f"job {job} ends"], options)


def _drain(operator: Operator, options: dict[str, Any]) -> None:
    """Remove the worker RANK from an async or GEO job.

    The other workers continue.
    """
    rank = options["rank"]
    show(operator.post(f"workers/{rank}/drain"), [f"worker {rank} leaves"], options)


def _chaos(operator: Operator, options: dict[str, Any]) -> None:
    """Kill, stop or slow down a process of a job.

    The job must have been started with `paramfleet launch --chaos`. TARGET is worker:N,
    pserver:N, coordinator or redis. For actions that break calls, PEER is the other end of the
    calls, as in worker:1 pserver:0 or pserver:0 registry; by default all.
    """
    names = ("action", "target", "peer", "at", "for", "rate", "by")
    asked = {name: options[name] for name in names if options[name] is not None}
    answer = operator.post("chaos", asked)
    where = f" at {answer['point']}:{answer['nth']}" if answer["point"] else ""
    peer = f" and {answer['peer']}" if answer["peer"] else ""
    lasts = f" for {answer['for_s']:g} s" if answer["for_s"] else ""
    line = f"{answer['action']} {answer['role']}:{answer['index']}{peer}{where}{lasts}"
    show(answer, [line], options)


_MOST_DIGITS = 10
"""No job has as many processes, and no more are read."""


def _scale(operator: Operator, options: dict[str, Any]) -> None:
    """Change the number of pservers, as pservers=4.

    Raises:
        UsageError: if it isn't pservers=N.
    """
    role, is_pair, text = options["size"].partition("=")
    is_number = text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS
    if role != "pservers" or not is_pair or not is_number:
        wrong = f"{shown(options['size'])}: say pservers=N, as pservers=4"
        raise click.UsageError(wrong)
    answer = operator.post("scale", {"pservers": int(text)})
    lines = [f"pservers = {answer['pservers']}, was {answer['before']}"]
    show(answer, [*lines, answer["advice"]] if answer["advice"] else lines, options)


def _set(operator: Operator, options: dict[str, Any]) -> None:
    """Change settings while the job trains, as lr=0.01.

    lr is the learning rate. In GEO there is also k_steps, in async max_staleness.

    Raises:
        UsageError: if one isn't NAME=VALUE.
    """
    wanted = {}
    for word in options["settings"]:
        name, is_pair, text = word.partition("=")
        if not is_pair:
            wrong = f"{shown(word)}: say NAME=VALUE, as k_steps=8"
            raise click.UsageError(wrong)
        wanted[name.replace("-", "_")] = _value_of(text)
    answer = operator.post("settings", wanted)
    before = answer["before"]
    lines = [f"{name} = {json.dumps(value)}, was {json.dumps(before[name])}"
             for name, value in answer["settings"].items()]  # fmt: skip
    show(answer, lines, options)


def _checkpoint(operator: Operator, options: dict[str, Any]) -> None:
    """Write a complete checkpoint of a running job.

    Waits until it is written. The exit code is 1 if it could not be written, and 3 if it was
    written but its tables are not all of the same moment.

    Raises:
        ClickException: if it could not be written.
        Exit: with 3.
    """
    name = options["name"]
    asked = operator.post("checkpoint", {"name": name} if name else {})
    what = f"the checkpoint {asked['dirname']}"
    done = _await(operator, "checkpoint", asked["number"], options["timeout"], what=what)
    if done["error"]:
        raise click.ClickException(str(done["error"]))
    paused = f"pushes waited {done['paused_s']} s"
    show(
        done,
        [f"checkpoint saved: {done['dirname']}, in {done['seconds']} s; {paused}"],
        options,
    )
    if not done["consistent"]:
        echo(f"not a consistent cut: {done['reason']}", err=True)
        raise click.exceptions.Exit(_NOT_CONSISTENT)


def require_going_on(status: Mapping[str, Any]) -> None:
    """Pass while a job can still do what was asked of it.

    Raises:
        ClickException: if it has ended.
    """
    if status["state"] in {"finished", "failed"}:
        failure = status["failure"]
        why = f": {failure['reason']}" if failure else ""
        ended = f"the job is {status['state']}{why}"
        raise click.ClickException(ended)


def _value_of(text: str) -> Any:
    """Return a value as JSON has it; ``none`` is null."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _list(answer: Any, columns: tuple[str, ...], options: Any) -> None:
    items = _as_list(answer)
    show(items, rows_of(items, columns), options)


def _as_list(answer: Any) -> list[dict[str, Any]]:
    """Return an answer that is a list.

    Raises:
        TypeError: if it is none.
    """
    if type(answer) is not list:
        raise TypeError("it is no list")
    return answer


def show(answer: Any, lines: list[str], options: dict[str, Any]) -> None:
    """Print an answer: as JSON if that is asked for, else in these lines."""
    click.echo(json.dumps(answer) if options["json"] else _printable(lines))


def _printable(lines: list[str]) -> str:
    return "\n".join(printable(line, lines=False) for line in lines)


def _size() -> tuple[int, int]:
    """Return columns and lines of the terminal; plenty where there is none."""
    if not sys.stdout.isatty():
        return _PLAIN_WIDTH, 1 << 16
    found = shutil.get_terminal_size()
    return found.columns, found.lines


def _operator_of(options: dict[str, Any]) -> Operator:
    """Return who asks whom, as the options, the settings and the job's folder say.

    With ``tls_dir`` set, its admin.crt and admin.key say who asks, and a token as well.

    Raises:
        NoJobError: if none of them says where the job is.
    """
    found = _find(options)
    if found.chosen:
        echo(found.chosen, err=True)
    context: ssl.SSLContext | None = None
    ca = options["ca"]
    if ca is not None:
        context = ssl.create_default_context(cafile=str(ca))
        if options["cert"] is not None:
            context.load_cert_chain(options["cert"], options["key"])
    if not found.url and not found.names_registry:
        raise NoJobError(job=options["job"] or "", running=running_jobs(found.settings))
    given = read_token(options["token"], options["token_file"])
    return operator_of(found, token=given, tls=context)


def _find(options: dict[str, Any]) -> Found:
    given = {name: options[name] for name in ("job", "redis")}
    return find_job(given, read_environment(), url=options["url"] or "")


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _finding(names: list[str], **more: Any) -> click.Option:
    """Return an option of every command that asks a running job."""
    return GroupedOption(names, group=FINDING, **more)


def job_command(
    name: str,
    run: Run,
    *more: click.Parameter,
    otherwise: Callable[[dict[str, Any]], None] | None = None,
) -> click.Command:
    """Return a command that asks a coordinator; without one it does what is said otherwise."""

    def ask(options: dict[str, Any]) -> None:
        try:
            operator = _operator_of(options)
        except NoCoordinatorError:
            if otherwise is None:
                raise
            otherwise(options)
        else:
            with reading(operator.url):
                run(operator, options)

    def callback(**options: Any) -> None:
        try:
            ask(options)
        except FleetError as error:
            echo(f"paramfleet {name}: {error}", err=True)
            sys.exit(1)
        except KeyboardInterrupt:
            sys.exit(130)

    where = [
        _finding(["--job"], help="Name of the job. By default your only job here, or the one "
                 "that was launched from this folder.",
                 shell_complete=jobs),
        _finding(["--url"], help="Admin address of the coordinator; by default it is looked up "
                 "in the job's folder or in its Redis.", envvar="PARAMFLEET_ADMIN_URL"),
        _finding(["--redis"], help="Address of the job's Redis, for a job on other machines."),
        _finding(["--token"], envvar="PARAMFLEET_ADMIN_TOKEN", help="Token for the admin "
                 "address; by default your job's, or that of PARAMFLEET_SECRET_FILE."),
        _finding(["--token-file"], type=_FILE, envvar="PARAMFLEET_ADMIN_TOKEN_FILE",
                 help="File with the token."),
        _finding(["--ca"], type=_FILE, help="Certificate of the authority; connects by https."),
        _finding(["--cert"], type=_FILE, help="Your certificate."),
        _finding(["--key"], type=_FILE, help="The key of your certificate."),
        click.Option(["--json"], is_flag=True, help="Print the answer as JSON."),
    ]  # fmt: skip
    return BoundedCommand(name, params=[*more, *where], callback=callback, help=run.__doc__)


WRITE_CHECKPOINT = job_command(
    "checkpoint",
    _checkpoint,
    click.Option(["--name"], help="Name of its folder; by default its number."),
    click.Option(
        ["--timeout"], type=float, default=600.0, help="Seconds to wait for the result."
    ),
)
"""``paramfleet checkpoint``, alone or followed by ``write``."""

SHOW_TABLES = job_command("tables", _tables)
"""``paramfleet tables`` alone."""

SHRINK_TABLES = job_command(
    "tables shrink",
    _shrink,
    click.Argument(["table"], required=False),
    click.Option(["--dry-run"], is_flag=True, help="Only count the rows; remove none."),
    click.Option(
        ["--timeout"], type=float, default=600.0, help="Seconds to wait for the result."
    ),
)
"""``paramfleet tables shrink``."""

COMMANDS = (
    job_command("status", _status),
    job_command(
        "top",
        _top,
        click.Option(["--once"], is_flag=True, help="Show it once."),
    ),
    job_command("workers", _workers),
    job_command("barriers", _barriers),
    job_command("audit", _audit, otherwise=_audit_of_registry),
    job_command("page", _page),
    job_command("pause", _pause),
    job_command(
        "resume",
        _resume,
        _MistakenFolder(["folder"], required=False, callback=_refuse_folder),
    ),
    job_command(
        "set",
        _set,
        click.Argument(["settings"], nargs=-1, required=True, metavar="NAME=VALUE..."),
    ),
    job_command("scale", _scale, click.Argument(["size"], metavar="pservers=N")),
    job_command("drain", _drain, click.Argument(["rank"], type=click.IntRange(min=0))),
    job_command("end", _end),
    job_command(
        "chaos",
        _chaos,
        click.Argument(["action"], type=click.Choice(list(ACTIONS))),
        click.Argument(["target"]),
        click.Argument(["peer"], required=False),
        click.Option(
            ["--at"],
            help="Do it when the process reaches a failpoint for the Nth time from now, as "
            "after_apply_before_log:3; by default at once.",
        ),
        click.Option(["--for", "for"], type=float, help="Duration in seconds.  [8]"),
        click.Option(["--rate"], type=float, help="Share of the calls that break.  [0.1]"),
        click.Option(
            ["--by"],
            type=float,
            help="For slow: how many times slower. For delay and reorder: milliseconds at "
            "most. For clock: seconds.",
        ),
    ),
)
"""The commands, for the group of all."""
