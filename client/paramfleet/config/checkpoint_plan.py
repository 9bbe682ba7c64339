"""The keys of ``strategy.checkpoint_configs``: checkpoints by time, while the job trains."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paramfleet.config.strategy_keys import Key, StrategyError
from paramfleet_shared.files.folders import FolderNameError, check_folder_name

__all__ = ["CHECKPOINT_KEYS", "CheckpointPlan", "plan_of"]

_MOST_S = 366 * 86_400.0

CHECKPOINT_KEYS: dict[str, Key] = {
    "every_s": Key(
        kind=float,
        default=None,
        exclusive_minimum=0.0,
        maximum=_MOST_S,
        meaning="Seconds from one checkpoint to the next; without it none is written.",
    ),
    "keep": Key(
        kind=int,
        default=3,
        minimum=1,
        maximum=10_000,
        meaning="Checkpoints that stay; older ones are removed when a newer one is complete.",
    ),
    "dirname": Key(
        kind=str,
        default="checkpoints",
        meaning="Their folder, of this job alone: one folder a checkpoint, named by its number "
        "and worker 0's step, and `latest`, a link to the newest.",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPlan:
    """When checkpoints are written, and where."""

    every_s: float
    keep: int
    dirname: str


def plan_of(configs: Mapping[str, Any]) -> CheckpointPlan | None:
    """Return what the keys mean together; None if no checkpoint is asked for.

    Raises:
        StrategyError: if a key is set without ``every_s``, or ``dirname`` is no folder's name.
    """
    if configs["every_s"] is None:
        for key, value in configs.items():
            if value is not None:
                rule = "has no effect without every_s"
                raise StrategyError(
                    key=f"checkpoint_configs[{key!r}]", value=repr(value), rule=rule
                )
        return None
    try:
        check_folder_name(configs["dirname"])
    except FolderNameError as error:
        raise StrategyError(
            key="checkpoint_configs['dirname']", value=repr(error.path), rule=error.rule
        ) from error
    return CheckpointPlan(**{key: configs[key] for key in CHECKPOINT_KEYS})
