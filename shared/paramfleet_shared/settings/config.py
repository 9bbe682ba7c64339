"""Settings: frozen dataclasses, filled from the command line, the environment and a file.

A settings class is a frozen dataclass with a sentence under each field. ``resolve``
fills it, field by field, from the first of these that names it:

1. ``arguments``: what the command line or the caller gave;
2. the environment: ``PARAMFLEET_<SECTION>__<FIELD>`` for a service's own fields,
   ``PARAMFLEET_<FIELD>`` for those every process of a job shares (``JobSettings``); with
   ``_FILE`` behind a secret's name, the file that holds it;
3. the TOML file: ``[section]`` for the own fields, top level for the shared ones;
4. the default in the class.

A name that no field answers to is an error that says the nearest one: a mistyped
setting must not be a silent default.
"""

import os
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, Union

from paramfleet_shared.settings.field_docs import sentences_of
from paramfleet_shared.settings.ranges import (
    SettingError,
    UnknownSettingError,
    check_range,
    check_ranges,
)
from paramfleet_shared.settings.security import SecuritySettings
from paramfleet_shared.values.texts import is_printable, nearest

__all__ = [
    "JobSettings",
    "Option",
    "Resolved",
    "SettingError",
    "UnknownSettingError",
    "check_environment",
    "check_ranges",
    "check_texts",
    "options_of",
    "read_environment",
    "resolve",
    "without_password",
]

T = TypeVar("T")

_PREFIX = "PARAMFLEET_"
_SECTIONS = ("coordinator", "pserver", "worker", "serving")
"""Tables a settings file may hold beside the shared fields on its top level."""

_SECURITY_NAMES = frozenset(field.name for field in fields(SecuritySettings))

_SECONDS = dict.fromkeys(
    (
        "lease_ttl_s", "lease_renew_s", "join_timeout_s", "barrier_timeout_s",
        "call_timeout_s", "outage_grace_s",
    ),
    (0.001, 1e7),
)  # fmt: skip
_JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")

_PASSWORD = re.compile(r"(://[^/@]*:)[^/@]*(?=@)|([?&]password=)[^&#]*")
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSettings(SecuritySettings):
    """What every process of a job must know to find the others.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    job: str = "default"
    """Name of the job. Processes with the same name and the same Redis form a job."""

    redis: str = "redis://127.0.0.1:6379/0"
    """Address of the Redis where the processes of a job find each other: redis://, rediss:// or
    unix://."""

    launch: str = ""
    """Identifier of the launch that started this process; `paramfleet launch` sets it. A
    coordinator accepts only processes of its own launch, and those where this is empty."""

    host: str = "127.0.0.1"
    """Address under which other machines reach this process."""

    log_format: Literal["text", "json"] = "text"
    """Format of log lines: text, or one JSON object in each line."""

    traces: Literal["none", "otlp"] = "none"
    """Trace calls, and send the traces by OTLP to the address in the OTEL_ variables."""

    chaos: bool = False
    """Allow `paramfleet chaos` to kill, stop or slow down this process, to test recovery."""

    lease_ttl_s: float = 4.0
    """Seconds without a heartbeat after which a process counts as dead."""

    lease_renew_s: float = 0.5
    """Seconds between two heartbeats; at most a third of lease_ttl_s."""

    join_timeout_s: float = 120.0
    """Seconds to wait at the start for Redis, the coordinator and the pservers."""

    barrier_timeout_s: float = 600.0
    """Seconds that a barrier waits for the last worker."""

    call_timeout_s: float = 60.0
    """Seconds that a request to another process may take, including retries."""

    outage_grace_s: float = 60.0
    """Seconds that a running job continues without Redis or the coordinator before it fails."""

    def __post_init__(self) -> None:
        check_ranges(self, _SECONDS)
        check_texts(self)
        if not self.redis.startswith(("redis://", "rediss://", "unix://")):
            rule = "a redis://, rediss:// or unix:// address"
            raise SettingError(name="redis", value=without_password(self.redis), rule=rule)
        if self.lease_renew_s * 3 > self.lease_ttl_s:
            rule = f"at most a third of lease_ttl_s ({self.lease_ttl_s})"
            raise SettingError(name="lease_renew_s", value=self.lease_renew_s, rule=rule)


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One setting, as a command line needs it."""

    name: str
    """The field's name, with underscores."""

    type: Any
    """``str``, ``int``, ``float``, ``bool``, ``Path`` or a ``Literal``; never an optional."""

    default: Any
    """The class's default; ``...`` when the setting has none and must be given."""

    help: str

    secret: bool = False
    """Whether it must not be seen: on a command line everybody would."""

    flag: str = ""
    """A further name on the command line, one that no field can have; empty is none."""


@dataclass(frozen=True, kw_only=True)
class Resolved(Generic[T]):
    """Settings, and where each came from."""

    value: T
    origins: Mapping[str, str]
    """By field: ``argument``, ``environment PARAMFLEET_X``, ``file`` or ``default``."""

    def shown(self) -> dict[str, dict[str, Any]]:
        """Return ``{field: {"value", "origin"}}`` in plain values, with secrets hidden."""
        return {
            field.name: {
                "value": _hide(field, getattr(self.value, field.name)),
                "origin": self.origins[field.name],
            }
            for field in _fields(type(self.value))
        }

    def lines(self, *, given: bool = False) -> list[str]:
        """Return one line a setting for the log, with secrets hidden.

        Args:
            given: Only those that somebody gave: not the defaults.
        """
        return [
            f"{name} = {fact['value']!r} ({fact['origin']})"
            for name, fact in self.shown().items()
            if not given or fact["origin"] != "default"
        ]


def read_environment() -> dict[str, str]:
    """Return a copy of this process's environment: the one place that reads it."""
    return dict(os.environ)


def without_password(text: str) -> str:
    """Return ``text`` with the password of an address in it replaced by stars."""
    return _PASSWORD.sub(r"\1\2***", text)


def check_texts(settings: Any) -> None:
    """Look at every text of a settings class: addresses, paths, the name of the job.

    Raises:
        SettingError: if one holds control characters, or a job's name other characters.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        is_name = field.name in {"job", "launch"} and value != field.default
        if is_name and not _JOB.fullmatch(value):
            rule = "1 to 128 letters, digits, dots, dashes or underscores, no dot or dash first"
            raise SettingError(name=field.name, value=value, rule=rule)
        if isinstance(value, str | Path) and not is_printable(str(value)):
            rule = "a text without control characters"
            raise SettingError(name=field.name, value=_hide(field, value), rule=rule)


def resolve(
    cls: type[T],
    *,
    section: str,
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
    file: Path | None = None,
) -> Resolved[T]:
    """Fill a settings class.

    Args:
        cls: A settings dataclass; fields it inherits from ``JobSettings`` are shared.
        section: The service's name, ``""`` when every field is shared.
        arguments: By field name; a None means not given.
        environment: Usually ``read_environment()``.
        file: A TOML file, or None.

    Raises:
        SettingError: if a value can't be read as its field's type or breaks its rule.
        UnknownSettingError: if a name is given that no field answers to.
    """
    names = [field.name for field in _fields(cls)]
    for name in arguments:
        _require_known(name, names)
    own = [name for name in names if section and name not in _shared_names()]
    by_field, secrets = _variables_of(cls, section)
    _reject_unread(environment, section=section, known={*by_field.values(), *secrets})
    in_file = _read_file(file, section=section, own=own) if file is not None else {}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    hints = typing.get_type_hints(cls)
    for name in names:
        variable = by_field[name]
        if arguments.get(name) is not None:
            values[name] = _convert(name, arguments[name], hints[name])
            origins[name] = "argument"
        elif variable in environment:
            values[name] = _convert(variable, environment[variable], hints[name])
            origins[name] = f"environment {variable}"
        elif f"{variable}_FILE" in secrets & environment.keys():
            values[name] = _read_secret(f"{variable}_FILE", environment)
            origins[name] = f"environment {variable}_FILE"
        elif name in in_file:
            values[name] = _convert(name, in_file[name], hints[name])
            origins[name] = "file"
        else:
            origins[name] = "default"
    _require_given(cls, values, by_field)
    return Resolved(value=cls(**values), origins=origins)


def check_environment(
    cls: type,
    *,
    section: str,
    environment: Mapping[str, str],
    ranges: Mapping[str, tuple[float, float]],
) -> None:
    """Pass if ``resolve`` would read each variable of a service's settings.

    What the values say together isn't looked at: each alone has its type and its range.

    Args:
        cls: As of ``resolve``.
        section: As of ``resolve``; not empty.
        environment: As of ``resolve``.
        ranges: Of the service's own fields, as of ``check_ranges``.

    Raises:
        SettingError: if a value can't be read as its field's type, or is outside its range.
        UnknownSettingError: if a name is given that no field answers to.
    """
    by_field, secrets = _variables_of(cls, section)
    _reject_unread(environment, section=section, known={*by_field.values(), *secrets})
    hints = typing.get_type_hints(cls)
    for name, variable in by_field.items():
        if variable in environment:
            value = _convert(variable, environment[variable], hints[name])
            range_ = ranges.get(name) or _SECONDS.get(name)
            if range_ is not None and value is not None:
                check_range(variable, value, range_)


def options_of(cls: type) -> list[Option]:
    """Return the settings of a class in order, with the sentence under each field."""
    hints = typing.get_type_hints(cls)
    sentences = sentences_of(cls)
    return [
        Option(
            name=field.name,
            type=_plain_type(hints[field.name]),
            default=_default_of(field),
            help=field.metadata.get("help") or sentences.get(field.name, ""),
            secret=bool(field.metadata.get("secret")),
            flag=field.metadata.get("flag", ""),
        )
        for field in _fields(cls)
    ]


def _fields(cls: Any) -> list[Field[Any]]:
    """Return the fields in order, but those of ``SecuritySettings`` last."""
    return sorted(fields(cls), key=lambda field: field.name in _SECURITY_NAMES)


def _shared_names() -> frozenset[str]:
    return frozenset(field.name for field in fields(JobSettings))


def _environment_name(name: str, section: str) -> str:
    return _PREFIX + (f"{section}__{name}" if section else name).upper()


def _variables_of(cls: type, section: str) -> tuple[dict[str, str], set[str]]:
    """Return the variable of each field of a settings class, and those of secrets' files."""
    shared = _shared_names()
    by_field = {
        field.name: _environment_name(field.name, "" if field.name in shared else section)
        for field in _fields(cls)
    }
    secrets = {f"{by_field[f.name]}_FILE" for f in _fields(cls) if f.metadata.get("secret")}
    return by_field, secrets


def _default_of(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else ...


def _hide(field: Field[Any], value: Any) -> Any:
    if field.metadata.get("secret"):
        return "***" if value else value
    if isinstance(value, str | Path):
        return without_password(str(value))
    return value


def _require_known(name: str, known: list[str]) -> None:
    if name not in known:
        raise UnknownSettingError(name=name, nearest=nearest(name, known))


def _reject_unread(environment: Mapping[str, str], *, section: str, known: set[str]) -> None:
    """Refuse variables of the own section, and near misses of the shared ones.

    Other ``PARAMFLEET_`` variables belong to other programs, so only one that is
    almost a shared setting is taken for a mistake.

    Raises:
        UnknownSettingError: for such a variable.
    """
    own_prefix = _environment_name("", section) if section else None
    shared = [_environment_name(name, "") for name in _shared_names()]
    for variable in environment:
        if not variable.startswith(_PREFIX) or variable in known:
            continue
        if own_prefix is not None and variable.startswith(own_prefix):
            raise UnknownSettingError(name=variable, nearest=nearest(variable, [*known]))
        if "__" in variable or variable in shared:
            continue
        meant = nearest(variable, shared, cutoff=0.9)
        if meant is not None:
            raise UnknownSettingError(name=variable, nearest=meant)


def _read_file(file: Path, *, section: str, own: list[str]) -> dict[str, Any]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # of whole numbers without end too
        rule = f"a readable TOML file ({error})"
        raise SettingError(name="config", value=str(file), rule=rule) from error
    shared = sorted(_shared_names())
    values = {}
    for key, value in document.items():
        if isinstance(value, dict) and key in _SECTIONS:
            continue
        _require_known(key, [*shared, *_SECTIONS])
        values[key] = value
    for key, value in document.get(section, {}).items() if section else ():
        _require_known(key, own)
        values[key] = value
    return values


def _read_secret(variable: str, environment: Mapping[str, str]) -> str:
    try:
        return Path(environment[variable]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        rule = f"a readable file of one secret ({error})"
        raise SettingError(name=variable, value=environment[variable], rule=rule) from error


def _require_given(cls: type, values: Mapping[str, Any], variables: Mapping[str, str]) -> None:
    for field in _fields(cls):
        if _default_of(field) is ... and field.name not in values:
            rule = f"given (as an argument or in {variables[field.name]})"
            raise SettingError(name=field.name, value=None, rule=rule)


def _plain_type(hint: Any) -> Any:
    """Return the type in ``X | None``; any other type as it is."""
    if typing.get_origin(hint) in {Union, types.UnionType}:
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint


def _convert(name: str, value: Any, hint: Any) -> Any:
    kind = _plain_type(hint)
    if kind is not hint and value in {None, "", "none"}:
        return None
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            rule = f"one of {', '.join(map(str, choices))}"
            raise SettingError(name=name, value=value, rule=rule)
        return value
    if kind is bool:
        return _to_bool(name, value)
    if kind is int and isinstance(value, float):
        raise SettingError(name=name, value=value, rule=_called(kind, name))
    if isinstance(value, bool):
        raise SettingError(name=name, value=value, rule=_called(kind, name))
    try:
        return kind(value)
    except (TypeError, ValueError) as error:
        raise SettingError(name=name, value=value, rule=_called(kind, name)) from error


def _called(kind: Any, name: str) -> str:
    """Return what a value of a type is, in words."""
    if kind is int and name.lower().endswith("_bytes"):
        return "a whole number of bytes, such as 2147483648"
    return {int: "a whole number", float: "a number", Path: "a path"}.get(kind, "text")


def _to_bool(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in _TRUE | _FALSE:
        raise SettingError(name=name, value=value, rule="true or false")
    return word in _TRUE
