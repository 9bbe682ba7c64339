"""The keys of a YAML file and of ``-o``, each with its value and the line it stands on.

Keys are flattened as PaddleRec does it: ``runner: {epochs: 3}`` is ``runner.epochs``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from paramfleet.config.yaml_text import BoundedLoader, read_text, value_of
from paramfleet.runner.config.errors import ConfigError
from paramfleet_shared.values.texts import shown

__all__ = ["Entry", "free_value", "nested", "read_entries", "read_options", "with_days"]

MAX_DEPTH = 8
"""Of mappings in mappings. PaddleRec's deepest has three."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """The value of one key."""

    value: Any
    """What YAML makes of it; the text itself if it comes from ``-o``."""

    where: str
    """``config.yaml, line 7`` or ``-o``."""

    is_text: bool = False
    """Whether the value is still text, to be read as its key's type."""


def read_entries(path: Path) -> dict[str, Entry]:
    """Return the entries of a file by dotted key.

    Raises:
        ConfigError: if it can't be read, isn't YAML, or names a key twice.
    """
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        rule = f"can't be read ({error})"
        raise ConfigError(where=str(path), key="the file", value="", rule=rule) from error
    return _parsed(text, (), key="the file", where=lambda line: f"{path}, line {line + 1}")


def read_options(options: Sequence[str]) -> dict[str, Entry]:
    """Return the entries of ``key=value`` words; of one key, the last counts.

    A value in braces is a mapping, as in YAML: its keys are those below ``key``.

    Raises:
        ConfigError: if a word has no ``=``, or a mapping isn't YAML or names a key twice.
    """
    found: dict[str, Entry] = {}
    for option in options:
        key, equals, value = option.partition("=")
        key = key.strip()
        if not equals or not key:
            rule = "must look like key=value, as runner.epochs=3"
            raise ConfigError(where="-o", key=option, value="", rule=rule)
        if value.lstrip().startswith("{"):
            found |= _parsed(value, tuple(key.split(".")), key=key, where=lambda _: "-o")
        else:
            found[key] = Entry(value=value, where="-o", is_text=True)
    return found


def with_days(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return entries with ``runner.days`` as a list of words.

    YAML takes PaddleRec's ``{20260101..20260131}`` for a mapping of keys without values.
    """
    key, found = "runner.days", dict(entries)
    inside = {each: found.pop(each) for each in entries if each.startswith(f"{key}.")}
    if inside:
        words = [each.removeprefix(f"{key}.") for each in inside]
        first = next(iter(inside.values()))
        if any(each.value is not None for each in inside.values()):
            return dict(entries)  # what it is, its field's type will say
        found[key] = replace(first, value=words, is_text=False)
    elif (given := found.get(key)) is not None and isinstance(given.value, str | int):
        found[key] = replace(given, value=[given.value], is_text=False)
        if given.is_text and str(given.value).lstrip().startswith("["):
            found[key] = given
    return found


def free_value(entry: Entry, key: str) -> Any:
    """Return the value of a key that has no type: what YAML makes of it.

    Raises:
        ConfigError: if it comes from ``-o`` and isn't YAML.
    """
    if not entry.is_text:
        return entry.value
    try:
        return value_of(entry.value)
    except (yaml.YAMLError, ValueError) as error:
        rule = f"no YAML: {getattr(error, 'problem', None) or error}"
        value = shown(entry.value)
        raise ConfigError(where=entry.where, key=key, value=value, rule=rule) from error


def _parsed(
    text: str, above: tuple[str, ...], *, key: str, where: Callable[[int], str]
) -> dict[str, Entry]:
    """Return the entries of a YAML text.

    Args:
        text: What to parse.
        above: The keys that its keys are below.
        key: What errors of the whole text name.
        where: The place of a line, counted from 0.

    Raises:
        ConfigError: if it isn't YAML, or names a key twice.
    """
    loader = BoundedLoader(text)
    try:
        root = loader.get_single_node()
        return dict(_unique(_flat(where, loader, root, above, 0))) if root else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        rule = f"no YAML: {error.problem}"
        place = where(mark.line if mark else 0)
        raise ConfigError(where=place, key=key, value="", rule=rule) from error
    except (yaml.YAMLError, ValueError) as error:  # a character, or a date that is none
        rule = f"no YAML: {error}"
        raise ConfigError(where=where(0), key=key, value="", rule=rule) from error
    finally:
        loader.dispose()


def _flat(
    where: Callable[[int], str],
    loader: yaml.SafeLoader,
    node: yaml.Node,
    above: tuple[str, ...],
    line: int,
) -> Iterator[tuple[str, Entry]]:
    key = ".".join(above)
    if not isinstance(node, yaml.MappingNode):
        if not above:
            rule = "must be a mapping with runner and hyper_parameters in it"
            raise ConfigError(where=where(line), key="the file", value="", rule=rule)
        yield key, Entry(value=loader.construct_object(node, deep=True), where=where(line))
        return
    if len(above) == MAX_DEPTH:
        rule = f"mappings may be {MAX_DEPTH} deep"
        raise ConfigError(where=where(line), key=key, value="", rule=rule)
    for name, value in node.value:
        word = str(loader.construct_object(name, deep=True))
        yield from _flat(where, loader, value, (*above, word), name.start_mark.line)


def _unique(entries: Iterator[tuple[str, Entry]]) -> Iterator[tuple[str, Entry]]:
    seen: dict[str, Entry] = {}
    for key, entry in entries:
        if key in seen:
            rule = f"is a duplicate of {seen[key].where}"
            raise ConfigError(where=entry.where, key=key, value="", rule=rule)
        seen[key] = entry
        yield key, entry


def nested(entries: Mapping[str, Entry], prefix: str) -> dict[str, Entry]:
    """Return the entries below a key, by the rest of theirs."""
    start = f"{prefix}."
    return {
        key.removeprefix(start): entry
        for key, entry in entries.items()
        if key.startswith(start)
    }
