"""Which lines of a job's processes people see who haven't asked for all of them."""

import json
import re
from typing import Literal

__all__ = [
    "ECHOES",
    "NEWS",
    "Amount",
    "amount_of",
    "event_of",
    "fields_of",
    "is_shown",
    "level_of",
]

Amount = Literal["quiet", "usual", "verbose"]
"""How much of a job a launcher shows."""

NEWS = frozenset({
    "job.resumed",
    "kernels.compiling",
    "worker.base_published",
    "worker.checkpoint_written",
    "worker.day_shrunk",
    "worker.delta_published",
    "worker.drained",
    "worker.ended_after",
    "worker.ended_by_operator",
    "worker.pass_skipped",
    "worker.pass_trained",
    "worker.waits_for_data",
})  # fmt: skip
"""Events at INFO that are shown nevertheless: what a person waits for, or has asked for."""

ECHOES = frozenset({
    "coordinator.stopped",
    "job.failed",
    "pserver.job_failed",
    "pserver.recovered",
    "worker.job_failed",
})  # fmt: skip
"""Events of any level that only repeat what the launcher has done, or says itself."""

_TEXT = re.compile(
    rb"\d\d:\d\d:\d\d\.\d{3} (?P<level>[A-Z]+) "
    rb"(?:coordinator|pserver|worker|serving)(?:/\d+)? (?P<event>[^ ]*)"
)
_JSON = re.compile(
    rb'\{"time": "[^"]{0,40}", "level": "(?P<level>[A-Z]+)", "role": "[a-z]+", '
    rb'"index": (?:null|\d+), "event": "(?P<event>[^" ]*)'
)

_FIELD = re.compile(rb" ([a-z_]+)=([^ ]*)")

_ROUTINE = frozenset({"DEBUG", "INFO"})


def amount_of(*, quiet: bool, verbose: bool) -> Amount:
    """Return how much is shown, as the options say it."""
    if quiet:
        return "quiet"
    return "verbose" if verbose else "usual"


def level_of(line: bytes) -> str:
    """Return the level of a line of our own log, as ``WARNING``; empty for any other line."""
    found = _found(line)
    return "" if found is None else found["level"].decode()


def event_of(line: bytes) -> str:
    """Return the event of a line of our own log; empty for any other line."""
    found = _found(line)
    return "" if found is None else found["event"].decode(errors="replace")


def fields_of(line: bytes) -> dict[str, str]:
    """Return the fields of a line of our own log as text; those without a space in them."""
    found = _TEXT.match(line)
    if found is not None:
        pairs = _FIELD.findall(line[found.end() :])
        return {name.decode(): value.decode(errors="replace") for name, value in pairs}
    try:
        fields = json.loads(line)["fields"]
        return {name: str(value) for name, value in fields.items()}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return {}


def is_shown(line: bytes, amount: Amount) -> bool:
    """Return whether people see a line without reading its log.

    What a script prints is shown always, and so is a warning that isn't one of ``ECHOES``.
    Events at INFO say what each process does; all but ``NEWS`` are for who asks.

    Args:
        line: Of a process, without its label.
        amount: How much is shown.
    """
    if amount == "verbose":
        return True
    if level_of(line) not in _ROUTINE:
        return event_of(line) not in ECHOES
    return amount == "usual" and event_of(line) in NEWS


def _found(line: bytes) -> "re.Match[bytes] | None":
    return _TEXT.match(line) or _JSON.match(line)
