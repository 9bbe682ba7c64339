"""Options of a command in groups, each under its name in what ``--help`` prints."""

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, fields
from typing import Any

import click
from typing_extensions import override

from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.settings.security import SecuritySettings

__all__ = [
    "FINDING",
    "JOB",
    "SECURITY",
    "GroupedOption",
    "OptionGroup",
    "group_of_setting",
    "without_common_options",
    "write_options",
]


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options that belong together."""

    title: str
    """What stands over them, as ``Security options``."""

    is_common: bool = False
    """Whether many commands have the same ones: a page may describe them once."""


JOB = OptionGroup("Options of all processes of a job", is_common=True)
SECURITY = OptionGroup("Security options", is_common=True)
FINDING = OptionGroup("Options to find a running job", is_common=True)

_SECURITY_NAMES = frozenset(field.name for field in fields(SecuritySettings))
_JOB_NAMES = frozenset(field.name for field in fields(JobSettings)) - _SECURITY_NAMES

_brief: ContextVar[bool] = ContextVar("brief", default=False)


class GroupedOption(click.Option):
    """As ``click.Option``, in a group; help shows the first spelling of each of its names.

    ``--worker_num`` and ``--worker-num`` are two spellings of one name.

    Args:
        group: Of the option; None leaves it among the other ones.
    """

    def __init__(self, *args: Any, group: OptionGroup | None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.group = group

    @override
    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        shown = copy(self)
        shown.opts, shown.secondary_opts = _once(self.opts), _once(self.secondary_opts)
        return click.Option.get_help_record(shown, ctx)


def _once(names: Iterable[str]) -> list[str]:
    """Return the first spelling of each name."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(name.replace("_", "-"), name)
    return list(first.values())


def group_of_setting(name: str) -> OptionGroup | None:
    """Return the group of a setting that each process of a job has; None for another one."""
    if name in _SECURITY_NAMES:
        return SECURITY
    return JOB if name in _JOB_NAMES else None


@contextlib.contextmanager
def without_common_options() -> Iterator[None]:
    """Let help say of the options of a common group only that there are some."""
    token = _brief.set(True)
    try:
        yield
    finally:
        _brief.reset(token)


def write_options(
    parameters: Iterable[click.Parameter],
    context: click.Context,
    formatter: click.HelpFormatter,
) -> None:
    """Write options group by group, those without one first."""
    groups: dict[OptionGroup | None, list[tuple[str, str]]] = {None: []}
    for parameter in parameters:
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            groups.setdefault(getattr(parameter, "group", None), []).append(record)
    left_out = []
    for group, records in groups.items():
        if group is not None and group.is_common and _brief.get():
            left_out.append(group.title[0].lower() + group.title[1:])
        elif records:
            with formatter.section("Options" if group is None else group.title):
                formatter.write_dl(records)
    if left_out:
        formatter.write_paragraph()
        formatter.write_text(f"... and the {', and the '.join(left_out)}.")
