"""Fleet's numbers of what a save holds: ``mode`` of ``fleet.save_...``."""

from typing import Any

from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.spec import ExportKind
from paramfleet_shared.values.texts import shown

__all__ = ["BATCH_MODEL", "NoBaseError", "SaveModeError", "check_mode", "kind_of_mode"]

BATCH_MODEL = 3
"""All rows; days that are counted by saves go on."""

_KINDS: dict[int, ExportKind] = {1: "delta", 2: "base"}

_HERE = {
    "save_persistables": {0: "a checkpoint", BATCH_MODEL: "a batch model, which ends a day"},
    "save_inference_model": {0: "all rows", 1: "a delta", 2: "a base"},
}
"""Which modes functions have."""

_INSTEAD = {
    1: "fleet.save_inference_model(dirname, mode=1) saves a delta",
    2: "fleet.save_inference_model(dirname, mode=2) saves a base",
    BATCH_MODEL: "fleet.save_persistables(dirname, mode=3) saves a batch model",
    4: "it saves all rows in Fleet, as mode 0 does",
    5: "incremental checkpoints hold the rows that changed since the last one, and can be gone "
    "back to: strategy.checkpoint_configs has `incremental`",
}


class SaveModeError(ContractError):
    """A save is asked for a mode that it doesn't have."""

    code = "contract.save_mode"
    function: str
    value: str
    rule: str
    sentence = "{function}(mode={value}): {rule}"


class NoBaseError(ContractError):
    """A delta is asked for, and what changed since the export before it isn't known."""

    code = "contract.no_base"
    path: str
    reason: str
    sentence = "{path}: {reason}: save a base with mode=2"


def check_mode(function: str, mode: Any) -> int:
    """Return a mode of a function.

    Raises:
        SaveModeError: if it has no such mode; it says which there are, and what else does it.
    """
    known = _HERE[function]
    if type(mode) is int and mode in known:
        return mode
    names = ", ".join(f"{number} ({what})" for number, what in known.items())
    instead = _INSTEAD.get(mode) if type(mode) is int else None
    rule = f"must be one of {names}" if instead is None else f"{instead}; here are {names}"
    raise SaveModeError(function=function, value=shown(mode), rule=rule)


def kind_of_mode(mode: int) -> ExportKind | None:
    """Return what an export of a mode is; None for one of all rows."""
    return _KINDS.get(mode)
