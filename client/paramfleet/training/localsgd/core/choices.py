"""From a strategy's keys to what all workers are given."""

from collections.abc import Mapping
from typing import Any

from paramfleet.training.localsgd.core.settings import LocalSgdSettings, LocalSgdSettingsError

__all__ = ["settings_of"]

_SAME = (
    "outer_optimizer", "outer_lr", "outer_momentum", "optimizer_state", "wire_dtype",
    "begin_step", "max_k_steps", "fragments", "overlap_steps", "k_steps",
)  # fmt: skip
"""Keys that have one name and one meaning here and there."""


def settings_of(
    flag: str, values: Mapping[str, Any], *, overlaps: bool = False
) -> LocalSgdSettings:
    """Return what a member of the family means.

    Args:
        flag: ``localsgd``, ``adaptive_localsgd`` or ``diloco``.
        values: All of its keys, with their values.
        overlaps: Whether training goes on during an exchange whatever the keys say.

    Raises:
        LocalSgdSettingsError: if two keys don't go together.
    """
    chosen = {key: values[key] for key in _SAME if key in values}
    if flag == "adaptive_localsgd":
        chosen |= {"k_steps": values["init_k_steps"], "interval": values["variant"]}
    if flag == "diloco":
        chosen["begin_step"] = 0  # its outer steps are of whole periods
        chosen["mixing"] = values["mixing"]
    if values["overlap"] and chosen.get("overlap_steps"):
        rule = f"overlap_steps = {chosen['overlap_steps']} says it already: choose one"
        raise LocalSgdSettingsError(key="overlap", value="True", rule=rule)
    if (overlaps or values["overlap"]) and not chosen.get("overlap_steps"):
        chosen["overlap_steps"] = max(chosen["k_steps"], chosen.get("max_k_steps", 1))
    return LocalSgdSettings(**chosen)
