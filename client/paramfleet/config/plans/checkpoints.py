"""The keys of ``strategy.checkpoint_configs``: checkpoints by time, while the job trains."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paramfleet.config.strategy_keys import Key, StrategyError
from paramfleet_shared.files.folders import FolderNameError, check_folder_name

__all__ = ["CHECKPOINT_KEYS", "CheckpointPlan", "named_folder", "plan_of"]

_MOST_S = 366 * 86_400.0

CHECKPOINT_KEYS: dict[str, Key] = {
    "every_s": Key(
        kind=float,
        default=None,
        exclusive_minimum=0.0,
        maximum=_MOST_S,
        meaning="Seconds from one checkpoint to the next.",
    ),
    "every_steps": Key(
        kind=int,
        default=None,
        minimum=1,
        maximum=2**62,
        meaning="Steps of worker 0 from one checkpoint to the next. With `every_s`, whichever "
        "comes first. Without both no checkpoint is written.",
    ),
    "keep": Key(
        kind=int,
        default=3,
        minimum=1,
        maximum=10_000,
        meaning="Number of checkpoints to keep; older ones are removed when a new one is "
        "complete. Those that were there before a training that begins at step 0 stay.",
    ),
    "dirname": Key(
        kind=str,
        default="checkpoints",
        meaning="Folder for the checkpoints of this job only. Each checkpoint is a folder, "
        "named by its number and worker 0's step; `latest` is a link to the newest.",
    ),
    "dir": Key(
        kind=str,
        default=None,
        meaning="Another name of `dirname`.",
    ),
    "incremental": Key(
        kind=int,
        default=0,
        minimum=0,
        maximum=250,
        meaning="Number of incremental checkpoints after each complete one. They have only the "
        "rows that changed since the checkpoint before, and are loaded together with it.",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPlan:
    """When checkpoints are written, and where."""

    every_s: float | None
    every_steps: int | None
    keep: int
    dirname: str
    incremental: int
    """How many in a row hold only what changed."""


def named_folder(configs: Mapping[str, Any]) -> str:
    """Return the folder that the keys name, by either name."""
    default = CHECKPOINT_KEYS["dirname"].default
    return str(configs.get("dir") or configs.get("dirname") or default)


def plan_of(configs: Mapping[str, Any]) -> CheckpointPlan | None:
    """Return what the keys mean together; None if no checkpoint is asked for.

    Raises:
        StrategyError: if a key is set without a time or a number of steps, ``dirname`` is no
            folder's name, or ``dir`` is another one.
    """
    values = {key: configs[key] for key in CHECKPOINT_KEYS}
    if values["every_s"] is None and values["every_steps"] is None:
        for key, value in configs.items():
            if value is not None:
                rule = "has no effect without every_s or every_steps"
                raise StrategyError(
                    key=f"checkpoint_configs[{key!r}]", value=repr(value), rule=rule
                )
        return None
    key, other = "dirname", values.pop("dir")
    if other is not None:
        if values["dirname"] not in {other, CHECKPOINT_KEYS["dirname"].default}:
            rule = f"is another name of dirname, which is {values['dirname']!r}"
            raise StrategyError(key="checkpoint_configs['dir']", value=repr(other), rule=rule)
        key, values["dirname"] = "dir", other
    try:
        check_folder_name(values["dirname"])
    except FolderNameError as error:
        raise StrategyError(
            key=f"checkpoint_configs[{key!r}]", value=repr(error.path), rule=error.rule
        ) from error
    return CheckpointPlan(**values)
