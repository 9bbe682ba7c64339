"""What a strategy's keys are: type, default, bounds and choices, checked as they are set."""

import math
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from paramfleet_shared.errors import ContractError
from paramfleet_shared.values.texts import nearest, shown

__all__ = ["MAX_STEPS", "NOT_HERE", "Configs", "Key", "StrategyError"]

MAX_STEPS = 2**31 - 1
"""Of keys that count steps: as many as an operator may set."""

_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    dict: "a dict",
    tuple: "a list",
    object: "any value",
}
"""What a value of a type is called in an error."""

_MAX_MEMBERS = 1000
"""Of a list."""

NOT_HERE: dict[str, str] = {
    "adam_d2sum": "use torch.optim.Adam",
    "is_fl_ps_mode": "federated mode doesn't exist here",
    "is_with_coordinator": "the coordinator is always there; federated mode isn't",
    "trainer_desc_configs": "dumping and local/remote sparse lists don't exist here",
    "fs_client_param": "paths are local paths",
    "asp": "sparsity of weights doesn't exist here",
    "auto": "choose the mode: nothing is guessed",
    "elastic": "start the coordinator, or the launcher, with --elastic",
    "heter_ccl_mode": "all workers use one backend",
    "hybrid_configs": "tensor and pipeline parallel don't exist here",
    "pipeline": "pipeline parallel doesn't exist here",
    "qat": "quantized training doesn't exist here",
    "recompute": "use torch.utils.checkpoint in the model",
    "semi_auto": "choose the mode: nothing is guessed",
    "tensor_parallel": "tensor parallel doesn't exist here",
    "use_hierarchical_allreduce": "nccl chooses its own topology",
}
"""Switches and keys of Fleet that aren't supported, and what to use."""


class StrategyError(ContractError):
    """A strategy key is unknown, out of range, or has no effect with the others."""

    code = "contract.strategy"
    key: str
    value: str
    """Empty where the key itself is wrong."""
    rule: str

    @override
    def describe(self) -> str:
        value = f" = {self.value}" if self.value else ""
        return f"strategy {self.key}{value}: {self.rule}"

    @classmethod
    def of(cls, key: str, value: object, rule: str) -> "StrategyError":
        """Show the value as code."""
        return cls(key=key, value=shown(value), rule=rule)

    @classmethod
    def unknown(cls, where: str, key: object, known: list[str]) -> "StrategyError":
        """Name the nearest known key."""
        near = nearest(key, known) if isinstance(key, str) else None
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
        return cls(key=where, value="", rule=f"unknown; {hint}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key: its type, bounds, choices, default, and what it means."""

    kind: type
    """``int`` takes no booleans, ``float`` finite integers too, ``tuple`` any list."""
    default: Any
    minimum: float | None = None
    """Of a ``tuple`` a bound of each member, as ``maximum``."""
    maximum: float | None = None
    exclusive_minimum: float | None = None
    """The value must be greater."""
    choices: tuple[Any, ...] | None = None
    member_kind: type | None = None
    """Of a ``tuple``: the type of its members."""
    min_members: int = 0
    """Of a ``tuple``: members it must have."""
    modes: frozenset[str] = frozenset()
    """Of ``a_sync_configs``: the modes in which it has an effect."""
    remedy: str = ""
    """Said behind the choices where a value is none of them."""
    meaning: str = ""
    """One sentence for the page of settings."""

    def take(self, name: str, value: Any) -> Any:
        """Return the value as it is kept.

        Raises:
            StrategyError: naming the key, if the value has another type or is out of range.
        """
        if value is None and self.default is None:
            return None
        value = self._typed(name, value)
        rule = ""
        for each in value if self.kind is tuple else (value,):
            if self.minimum is not None and not each >= self.minimum:
                rule = f"must be at least {self.minimum}"
            elif self.maximum is not None and not each <= self.maximum:
                rule = f"must be at most {self.maximum}"
            elif self.exclusive_minimum is not None and not each > self.exclusive_minimum:
                rule = f"must be above {self.exclusive_minimum}"
        if not rule and self.choices is not None and value not in self.choices:
            choices = " or ".join(repr(choice) for choice in self.choices)
            rule = f"must be {choices}" + (self.remedy and f": {self.remedy}")
        if rule:
            raise StrategyError(key=name, value=shown(value), rule=rule)
        return value

    def _typed(self, name: str, value: Any) -> Any:
        if self.kind is tuple and isinstance(value, list | tuple):
            if not self.min_members <= len(value) <= _MAX_MEMBERS:
                rule = f"must have {self.min_members} to {_MAX_MEMBERS} members"
                raise StrategyError.of(name, value, rule)
            for member in value:
                if not _is_a(member, self.member_kind or object):
                    kind = _KINDS[self.member_kind or object]
                    raise StrategyError.of(name, value, f"each member must be {kind}")
            return tuple(value)
        if not _is_a(value, self.kind) and not (self.choices and isinstance(value, self.kind)):
            raise StrategyError.of(name, value, f"must be {_KINDS[self.kind]}")
        if self.kind is not float:
            return value
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise StrategyError.of(name, value, "must be a finite number")
        return number


def _is_a(value: object, kind: type) -> bool:
    if isinstance(value, bool):
        return kind in {bool, object}
    return isinstance(value, int | float if kind is float else kind)


class Configs(MutableMapping[str, Any]):
    """A dict that knows its keys, as ``a_sync_configs``; a key that isn't set has its default.

    Args:
        name: Of the dict, for errors.
        keys: What it takes.
        prefix: Before a key in errors.
    """

    def __init__(self, name: str, keys: Mapping[str, Key], prefix: str = "") -> None:
        self._name = name
        self._prefix = prefix
        self._keys = keys
        self._set: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        known = self._key(key)
        return self._set.get(key, known.default)

    def __setitem__(self, key: str, value: Any) -> None:
        self._set[key] = self._key(key).take(self._prefix + key, value)

    def __delitem__(self, key: str) -> None:
        del self._set[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._set)

    def __contains__(self, key: object) -> bool:
        return key in self._set

    def __len__(self) -> int:
        return len(self._set)

    def __repr__(self) -> str:
        return repr(self._set)

    def full(self) -> dict[str, Any]:
        """Return every key's value, set or default."""
        return {key: self[key] for key in self._keys}

    def _key(self, key: object) -> Key:
        if not isinstance(key, str) or key not in self._keys:
            where = f"{self._name}[{shown(key)}]"
            raise StrategyError.unknown(where, key, list(self._keys))
        return self._keys[key]
