"""Ranges of settings, and the errors of settings that are outside; a part of ``config``."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from typing_extensions import override

from paramfleet_shared.errors import ContractError

__all__ = ["SettingError", "UnknownSettingError", "check_range", "check_ranges"]


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
    for name, range_ in ranges.items():
        value = getattr(settings, name)
        if value is not None or defaults[name] is not None:
            check_range(name, value, range_)


def check_range(name: str, value: Any, range_: tuple[float, float]) -> None:
    """Look at one number.

    Args:
        name: Of its setting, for the error.
        value: It.
        range_: The least and the most; whole numbers if the least is one.

    Raises:
        SettingError: if it is no number of its kind, or is outside.
    """
    least, most = range_
    is_whole = isinstance(least, int)
    kind = int if is_whole else int | float
    fits = isinstance(value, kind) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or not least <= value <= most:
        rule = f"a {'whole ' if is_whole else ''}number from {least:g} to {_end(most)}"
        raise SettingError(name=name, value=value, rule=rule)


def _end(most: float) -> str:
    return str(most) if isinstance(most, int) else f"{most:g}"
