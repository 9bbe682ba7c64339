"""Ranges of settings, and the errors of settings that are outside; a part of ``config``."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from typing_extensions import override

from paramfleet_shared.errors import ContractError

__all__ = ["SettingError", "UnknownSettingError", "check_ranges"]


class SettingError(ContractError):
    """A setting has a value its rule forbids."""

    code = "contract.setting"
    name: str
    value: Any
    rule: str
    sentence = "{name} = {value!r}: must be {rule}"


class UnknownSettingError(ContractError):
    """A setting was given that nothing reads."""

    code = "contract.unknown_setting"
    name: str
    nearest: str | None

    @override
    def describe(self) -> str:
        hint = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"nothing reads the setting {self.name}{hint}"


def check_ranges(settings: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Look at numbers of a settings class, each alone.

    Args:
        settings: An instance.
        ranges: By field the least and the most; whole numbers if the least is one. None is
            allowed where it is the default.

    Raises:
        SettingError: on a value that is no number of its kind, or is outside.
    """
    defaults = {field.name: field.default for field in fields(settings)}
    for name, (least, most) in ranges.items():
        value = getattr(settings, name)
        if value is None and defaults[name] is None:
            continue
        is_whole = isinstance(least, int)
        kind = int if is_whole else int | float
        fits = isinstance(value, kind) and not isinstance(value, bool)
        if not fits or not math.isfinite(value) or not least <= value <= most:
            rule = f"a {'whole ' if is_whole else ''}number from {least:g} to {_end(most)}"
            raise SettingError(name=name, value=value, rule=rule)


def _end(most: float) -> str:
    return str(most) if isinstance(most, int) else f"{most:g}"
