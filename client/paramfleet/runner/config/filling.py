"""From entries to a frozen dataclass: every key known, every value of its field's type."""

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

import yaml

from paramfleet.config.yaml_text import value_of
from paramfleet.runner.config.entries import Entry, free_value, nested
from paramfleet.runner.config.errors import (
    ConfigError,
    FeatureNotHereError,
    Problems,
    UnknownKeyError,
    collecting,
)
from paramfleet_shared.settings.config import SettingError
from paramfleet_shared.values.texts import nearest, shown

__all__ = ["fill", "require_known", "without_field"]

T = TypeVar("T")

OWN_KEYS = (
    "a key of the model's own is a field of the dataclass M of class Model(runner.Model[M]), "
    'or a module of its folder reads it: config.get("{key}")'
)
"""How a key becomes known."""

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_NONE = frozenset({"", "none", "null", "~"})


def fill(
    cls: type[T],
    entries: Mapping[str, Entry],
    *,
    prefix: str,
    not_here: Mapping[str, str] | None = None,
    also_known: Collection[str] = (),
    problems: Problems | None = None,
) -> T:
    """Return a settings dataclass with the values of ``entries``.

    Fields that are dataclasses take the keys below theirs; a field of type ``Mapping``
    takes them as they are.

    Args:
        cls: A frozen dataclass, with a default for each field.
        entries: By key, without ``prefix``.
        prefix: The section, for errors: ``runner``.
        not_here: What to do instead of keys that ask for something that isn't here; such
            a key may be there with false, 0, or nothing, which ask for nothing.
        also_known: Full keys that something else reads, for the error's nearest.
        problems: Gets what is wrong, instead of the first error; what is returned then has
            defaults in its place.

    Raises:
        UnknownKeyError: if no field answers to a key.
        FeatureNotHereError: if a key asks for what isn't here.
        ConfigError: if a value isn't of its field's type, or breaks its rule.
    """
    not_here = not_here or {}
    hints = typing.get_type_hints(cls)
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # any settings class
    fields = {name: hints[name] for name in names}
    values: dict[str, Any] = {}
    before = len(problems or ())
    others = [*not_here, *also_known]
    for key, entry in entries.items():
        shown = f"{prefix}.{key}"
        with collecting(problems):
            remedy = not_here.get(key) or not_here.get(key.partition(".")[0])
            if remedy:
                _refuse_if_asked(entry, shown, remedy)
            elif _is_field(key, entry, fields, prefix=prefix, others=others):
                values[key] = _cast(shown, entry, hints[key])
    for name, hint in hints.items():
        below = nested(entries, name)
        if below and dataclasses.is_dataclass(hint):
            values[name] = fill(
                typing.cast("type", hint),
                below,
                prefix=f"{prefix}.{name}",
                also_known=also_known,
                problems=problems,
            )
        elif below and name in names:
            values[name] = {
                key: free_value(entry, f"{prefix}.{name}.{key}") for key, entry in below.items()
            }
    try:
        return _made(cls, values, entries, prefix)
    except ConfigError as error:
        if problems is None:
            raise
        if len(problems) == before:  # else a value that is refused may be what is missing
            problems.append(error)
        return cls()


def _is_field(
    key: str, entry: Entry, hints: Mapping[str, Any], *, prefix: str, others: Sequence[str]
) -> bool:
    """Tell whether a key is a field; it may also be one below a field.

    Args:
        key: It, without ``prefix``.
        entry: Its value.
        hints: The fields, with their types.
        prefix: The section.
        others: Further keys that are known, for the error's nearest.

    Raises:
        UnknownKeyError: if it is neither.
    """
    name, dot, _ = key.partition(".")
    if name in hints and (not dot or _has_keys(hints[name])):
        return not dot
    shown, inner = f"{prefix}.{key}", f"{prefix}."
    known = [f"{prefix}.{each}" for each in hints]
    known += [each if each.startswith(inner) else f"{prefix}.{each}" for each in others]
    require_known(shown, known, entry.where, ways=OWN_KEYS)
    raise UnknownKeyError(where=entry.where, key=shown, nearest=None, ways=OWN_KEYS)


def _refuse_if_asked(entry: Entry, key: str, remedy: str) -> None:
    """Refuse a key of what isn't here, if its value asks for it.

    Raises:
        FeatureNotHereError: if it does.
    """
    if _asks(entry.value):
        raise FeatureNotHereError(where=entry.where, key=key, remedy=remedy)


def without_field(cls: type[Any], entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries that no field of a settings class takes, by their keys.

    Args:
        cls: As ``fill`` takes it.
        entries: The same.
    """
    hints = typing.get_type_hints(cls)
    left: dict[str, Entry] = {}
    for key, entry in entries.items():
        name, dot, rest = key.partition(".")
        hint = hints.get(name)
        if hint is None or (dot and not _has_keys(hint)):
            left[key] = entry
        elif dot and dataclasses.is_dataclass(hint):
            below = without_field(typing.cast("type", hint), {rest: entry})
            left |= {f"{name}.{other}": each for other, each in below.items()}
    return left


def require_known(key: str, known: Sequence[str], where: str, *, ways: str = "") -> None:
    """Refuse a key that isn't ``known``.

    Args:
        key: It.
        known: All that are.
        where: Its place, for the error.
        ways: What the error says of how a key becomes known.

    Raises:
        UnknownKeyError: naming the nearest one.
    """
    if key not in known:
        raise UnknownKeyError(where=where, key=key, nearest=nearest(key, known), ways=ways)


def _made(cls: type[T], values: dict[str, Any], entries: Mapping[str, Entry], prefix: str) -> T:
    try:
        return cls(**values)
    except SettingError as error:
        where = entries[error.name].where if error.name in entries else "the defaults"
        raise ConfigError(
            where=where,
            key=f"{prefix}.{error.name}",
            value=shown(error.value),
            rule=f"must be {error.rule}",
        ) from error


def _asks(value: Any) -> bool:
    """Tell whether a value asks for something: neither empty nor any word for no."""
    if isinstance(value, str):
        return value.strip().lower() not in _NONE | _FALSE
    return bool(value)


def _has_keys(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) or typing.get_origin(hint) is Mapping


def _cast(key: str, entry: Entry, hint: Any) -> Any:
    """Return the value as the field's type.

    Raises:
        ConfigError: if it isn't one.
    """
    value = entry.value
    if _has_keys(hint):
        rule = "must be a mapping"
        raise ConfigError(where=entry.where, key=key, value=shown(value), rule=rule)
    kind, optional = _plain(hint)
    if value is None or (entry.is_text and optional and value.lower() in _NONE):
        if not optional:
            raise ConfigError(
                where=entry.where, key=key, value=shown(entry.value), rule=_rule(kind)
            )
        return None
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise ConfigError(
                where=entry.where,
                key=key,
                value=shown(entry.value),
                rule=f"must be one of {', '.join(map(str, choices))}",
            )
        return value
    origin, (item, *_) = typing.get_origin(kind), typing.get_args(kind) or (None,)
    if origin in _SEQUENCES and item in _SCALARS:
        return _SEQUENCES[origin](_items(key, entry, item))
    if kind not in _SCALARS:
        rule = f"is a field of type {hint}, which no key can have: {_FIELD_TYPES}"
        raise ConfigError(where=entry.where, key=key, value=shown(value), rule=rule)
    return _scalar(key, entry, kind)


def _plain(hint: Any) -> tuple[Any, bool]:
    """Return ``X`` of ``X | None``, and whether it was one."""
    if typing.get_origin(hint) in {Union, types.UnionType}:
        kinds = [part for part in typing.get_args(hint) if part is not type(None)]
        return kinds[0], True
    return hint, False


def _items(key: str, entry: Entry, kind: Any) -> tuple[Any, ...]:
    value = entry.value
    if entry.is_text:
        try:
            value = value_of(value if value.startswith("[") else f"[{value}]")
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError(
                where=entry.where,
                key=key,
                value=shown(entry.value),
                rule="must be a list, as [512, 256]",
            ) from error
    if not isinstance(value, list):
        raise ConfigError(
            where=entry.where,
            key=key,
            value=shown(entry.value),
            rule="must be a list, as [512, 256]",
        )
    return tuple(
        _scalar(f"{key}[{index}]", dataclasses.replace(entry, value=item, is_text=False), kind)
        for index, item in enumerate(value)
    )


def _scalar(key: str, entry: Entry, kind: Any) -> Any:
    try:
        return _SCALARS[kind](entry.value)
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(
            where=entry.where, key=key, value=shown(entry.value), rule=_rule(kind)
        ) from error


def _bool(value: Any) -> bool:
    word = str(value).strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(word)
    return word in _TRUE


def _int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise TypeError
    return int(value)


def _float(value: Any) -> float:
    """Return a number; YAML 1.1 has ``1e-3`` for text."""
    return float(str(value) if isinstance(value, bool) else value)  # "True" is no number


def _str(value: Any) -> str:
    if isinstance(value, list | dict):
        raise TypeError
    return str(value)


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
}

_SEQUENCES: dict[Any, Callable[[Any], Any]] = {tuple: tuple, list: list, Sequence: tuple}

_FIELD_TYPES = (
    "let it be a bool, int, float or str, a Literal, a list or tuple of one of these, each "
    "perhaps with None; a Mapping, or a dataclass of such fields"
)


def _rule(kind: Any) -> str:
    rules = {
        bool: "must be true or false",
        int: "must be a whole number",
        float: "must be a number",
        str: "must be text",
    }
    return rules.get(kind, "must have a value")
