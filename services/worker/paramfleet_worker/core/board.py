"""A job's status as lines of text, for people at a terminal.

It takes what the coordinator's admin API answers and returns lines; it prints nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["board", "rows_of", "tables_of"]

_BAR = {
    "data": "d", "pull": "<", "compute": "#", "push": ">", "barrier": ".", "wait": "w",
    "pause": "p",
}  # fmt: skip
_BAR_WIDTH = 20

WORKER_COLUMNS = (
    "rank", "host", "step", "samples_per_s", "loss", "staleness", "last_seen_s", "lag_reason",
)  # fmt: skip
TABLE_COLUMNS = (
    "name",
    "tier",
    "rows",
    "bytes",
    "admitted",
    "refused",
    "removed",
    "pulls",
    "pushes",
)
SHARD_COLUMNS = ("table", "shard", "server", "rows", "bytes", "pulled", "pushed")
DENSE_COLUMNS = ("name", "rows", "bytes", "pulls", "pushes")
AUDIT_COLUMNS = ("number", "at", "who", "peer", "action", "before", "after")
_ON_DISK = ("rows_in_memory", "rows_on_disk")
"""Columns of tables where one has rows on disk."""

_TITLES = {
    "samples_per_s": "examples/s",
    "rows_in_memory": "in memory",
    "rows_on_disk": "on disk",
    "process": "pserver",
}
"""What stands over a column that isn't called so."""

PROCESS_COLUMNS = ("index", "host", "groups", "follows", "state")
GROUP_COLUMNS = ("group", "owner", "term", "follower", "lag", "moves_to", "protected")
BARRIER_COLUMNS = ("name", "generation", "arrived", "missing")

_OF_WORKERS = (
    "time: d data  < pull  # compute  > push  . for others  w for data  p paused",
    "staleness: steps ahead of the slowest  lag_reason: where most time goes",
)
_OF_SERVERS = (
    "rows: of tables, and values of dense parameters  request_ms: of a request, mean",
    "last_seen_s: since it was heard of last",
)
"""What the columns mean whose names don't say it."""

_OF_TABLES = (
    "bytes: of memory  admitted: ids that an entry gave a row",
    "refused: how often an id got none  removed: rows that went",
)
_OF_ROWS_ON_DISK = "rows: in memory and on disk together, of all pservers"

_GO_AHEAD = {"async": "max_staleness", "geo": "k_steps"}
"""Modes in which no worker waits for a slower one, and the setting that counts there."""


def board(status: Mapping[str, Any], *, width: int = 120) -> list[str]:
    """Return the whole job: a line of state, the workers, the pservers or groups, who lags.

    Args:
        status: What ``/api/v1/status`` answers.
        width: Characters of a line; longer ones are cut.
    """
    head = (
        f"{status['job']}: {status['state']}, {status['mode'] or 'no mode yet'}, "
        f"{_shown(status['samples_per_s'])} examples/s, loss {_shown(status['loss'])}"
    )
    lines = [head, "", "workers"]
    workers = [{**worker, "time": _bar(worker)} for worker in status["workers"]]
    shown = ("rank", "step", "samples_per_s", "loss", "staleness", "time", "lag_reason")
    lines += rows_of(workers, shown)
    lines += _OF_WORKERS
    lines += _of_data(status["workers"], width)
    of_servers = ("index", "requests_per_s", "request_ms", "rows", "bytes", "last_seen_s")
    plan = status.get("plan")
    part = "group" if plan else "pserver"
    lines += ["", f"{part}s"]
    hosts = ("process",) if plan else ()
    lines += rows_of(status["servers"], (of_servers[0], *hosts, "state", *of_servers[1:]))
    lines += _OF_SERVERS
    lines += _of_plan(plan) if plan else []
    lines += [
        f"{part} {each['index']} is lost; the job waits {_shown(each['waits_s'])} s more for it"
        for each in status["servers"]
        if each.get("waits_s") is not None
    ]
    lines += [
        f"{part} {each['index']} restores its tables: {_progress_of(each['restoring'])}"
        for each in status["servers"]
        if each.get("restoring")
    ]
    lines += [
        f"{part} {each['index']}: its disk takes no change ({each['disk_fault']}); pushes wait"
        for each in status["servers"]
        if each.get("disk_fault")
    ]
    lines += [
        f"barrier {each['name']}: waiting for {_shown(each['missing'])}"
        for each in status["barriers"]
    ]
    if words := _of_lag(status):
        lines += ["", words]
    return [line[:width] for line in lines]


def _progress_of(restoring: Mapping[str, Any]) -> str:
    """Return how far a restoring is: the snapshot comes first, then the log behind it."""
    done, of = int(restoring["snapshot_bytes"]), int(restoring["of_snapshot_bytes"])
    if not of:
        return "it begins"
    if done < of:
        return f"{1e-6 * done:,.1f} of {1e-6 * of:,.1f} MB of the snapshot are read"
    done, of = int(restoring["commands"]), int(restoring["of_commands"])
    return f"{done:,} of {of:,} commands of the log are executed again"


def _of_lag(status: Mapping[str, Any]) -> str:
    """Return who holds the others up, or how far workers are apart that nobody holds up."""
    straggler, mode = status["straggler"], status["mode"]
    if straggler:
        return str(straggler["words"])
    if mode not in _GO_AHEAD:
        return "no worker is behind"
    training = [each for each in status["workers"] if each.get("alive", True)]
    steps = [each["step"] for each in training if each["step"] and not each.get("done")]
    if len(steps) < 2:
        return ""
    setting = _GO_AHEAD[mode]
    value = (status.get("settings") or {}).get(setting)
    bound = "" if value is None else f" ({setting} = {_shown(value)})"
    apart = f"the first is {max(steps) - min(steps):,} steps ahead of the last"
    return f"{mode}: workers don't wait; {apart}{bound}"


def _of_data(workers: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Return which data is waited for, each once: all workers wait for the same."""
    told: dict[str, str] = {}
    for worker in workers:
        days = worker.get("by_days") or {}
        if file := days.get("waits_for"):
            where = f"day {days['day']}, pass {days['pass']}"
            head = f"{where}: waits for data ({days['waited_s']} s): "
            free = width - len(head)  # the end of a path says the day and the folder
            is_long = len(file) > free > 3
            told.setdefault(where, head + (f"...{file[3 - free :]}" if is_long else file))
    return list(told.values())


def _of_plan(plan: Mapping[str, Any]) -> list[str]:
    """Return who hosts, follows and gets what."""
    processes = [
        {**each, "state": _state_of(each)} for each in plan["processes"] if each["alive"]
    ]
    lines = ["", "pservers", *rows_of(processes, PROCESS_COLUMNS)]
    if plan["wanted"] and plan["wanted"] != len(processes):
        lines.append(f"{plan['wanted']} pservers are requested, {len(processes)} are running")
    lines += ["", "who has which group", *rows_of(plan["groups"], GROUP_COLUMNS)]
    if plan["unprotected"]:
        lines.append(f"without a follower: groups {_shown(plan['unprotected'])}")
    return lines


def tables_of(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return tables of rows, dense parameters apart, and the shards that are used most.

    Args:
        tables: What ``/api/v1/tables`` answers.
    """
    dense = [each for each in tables if each.get("kind") == "dense"]
    sparse = [each for each in tables if each.get("kind") != "dense"]
    has_disk = any(each.get("tier") == "memory+disk" for each in sparse)
    at = TABLE_COLUMNS.index("rows") + 1
    more = _ON_DISK if has_disk else ()
    lines = rows_of(sparse, (*TABLE_COLUMNS[:at], *more, *TABLE_COLUMNS[at:]))
    lines += [*([_OF_ROWS_ON_DISK] if has_disk else []), *_OF_TABLES]
    if dense:
        columns = rows_of(dense, DENSE_COLUMNS, titles={"rows": "values"})
        lines += ["", "dense parameters", *columns]
    shards = [{"table": t["name"], **shard} for t in sparse for shard in t["shards"]]
    used = "the shards used most: rows read and changed"
    return [*lines, "", used, *rows_of(shards, SHARD_COLUMNS)]


def _state_of(process: Mapping[str, Any]) -> str:
    return "draining" if process["draining"] else "serving"


def rows_of(
    items: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    titles: Mapping[str, str] = _TITLES,
) -> list[str]:
    """Return items as a table with a line of names above; numbers stand to the right.

    Args:
        items: A line each.
        columns: Which of their values.
        titles: What stands over a column that isn't called so.
    """
    cells = [[_shown(item.get(column)) for column in columns] for item in items]
    heads = [titles.get(column, column) for column in columns]
    widths = [max([len(head), *(len(row[i]) for row in cells)]) for i, head in enumerate(heads)]
    right = [
        all(isinstance(item.get(c), int | float | None) for item in items) for c in columns
    ]
    lines = []
    for row in [heads, *cells]:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def _bar(worker: Mapping[str, Any]) -> str:
    """Return where a worker's time goes as a bar of letters."""
    split = worker.get("split") or {}
    return "".join(
        letter * round(_BAR_WIDTH * float(split.get(phase, 0.0)))
        for phase, letter in _BAR.items()
    )


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return str(value)
