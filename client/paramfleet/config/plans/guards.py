"""The keys of ``strategy.guard_configs``: what is done with a step that is out of range."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from paramfleet.config.strategy_keys import MAX_STEPS, Key, StrategyError
from paramfleet_shared.values.texts import shown

__all__ = ["GUARD_KEYS", "GuardAction", "GuardPlan", "guard_plan_of"]

GuardAction = Literal["warn", "skip", "end"]

_MOST = 1e30

GUARD_KEYS: dict[str, Key] = {
    "action": Key(
        kind=str,
        default="warn",
        choices=get_args(GuardAction),
        meaning="What happens with a step out of range: `warn` logs a warning and takes the "
        "step, `skip` leaves the batch out, `end` ends the training.",
    ),
    "loss_min": Key(
        kind=float,
        default=None,
        minimum=-_MOST,
        maximum=_MOST,
        meaning="Smallest loss of a batch; by default no limit.",
    ),
    "loss_max": Key(
        kind=float,
        default=None,
        minimum=-_MOST,
        maximum=_MOST,
        meaning="Largest loss of a batch; by default no limit.",
    ),
    "loss_times": Key(
        kind=float,
        default=None,
        exclusive_minimum=1.0,
        maximum=_MOST,
        meaning="Largest absolute loss, as a multiple of its running mean.",
    ),
    "grad_norm_max": Key(
        kind=float,
        default=None,
        exclusive_minimum=0.0,
        maximum=_MOST,
        meaning="Largest L2 norm of a worker's gradient, rows and dense parameters together; "
        "by default no limit.",
    ),
    "grad_norm_times": Key(
        kind=float,
        default=None,
        exclusive_minimum=1.0,
        maximum=_MOST,
        meaning="Largest L2 norm, as a multiple of its running mean.",
    ),
    "window": Key(
        kind=int,
        default=100,
        minimum=1,
        maximum=MAX_STEPS,
        meaning="Length of the running means in steps: each step in range has the weight "
        "1 / `window`; the first steps are a plain mean.",
    ),
    "warm_up": Key(
        kind=int,
        default=100,
        minimum=1,
        maximum=MAX_STEPS,
        meaning="Number of steps in range before `loss_times` and `grad_norm_times` apply.",
    ),
    "max_skips": Key(
        kind=int,
        default=100,
        minimum=0,
        maximum=MAX_STEPS,
        meaning="Number of steps in a row that a worker may skip; one more ends the training. "
        "0 means no limit.",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardPlan:
    """Between what loss and gradient norm have to be, and what is done else.

    NaN and infinity are outside in any case.
    """

    action: GuardAction = "warn"
    loss_min: float | None = None
    loss_max: float | None = None
    loss_times: float | None = None
    grad_norm_max: float | None = None
    grad_norm_times: float | None = None
    window: int = 100
    warm_up: int = 100
    max_skips: int = 100

    @property
    def asks_loss(self) -> str:
        """Return a key that needs the loss; empty if none is set."""
        keys = ("loss_min", "loss_max", "loss_times")
        return next((key for key in keys if getattr(self, key) is not None), "")


def guard_plan_of(configs: Mapping[str, Any]) -> GuardPlan | None:
    """Return what the keys mean together; None if none is set.

    Raises:
        StrategyError: if two contradict each other, or one has no effect without another.
    """
    if not configs:
        return None
    found = GuardPlan(**{each.name: configs[each.name] for each in fields(GuardPlan)})
    wrong = _wrong(found, configs.keys())
    if wrong is not None:
        key, rule = wrong
        value = shown(configs[key])
        raise StrategyError(key=f"guard_configs[{key!r}]", value=value, rule=rule)
    return found


def _wrong(found: GuardPlan, given: Any) -> tuple[str, str] | None:
    """Return which key contradicts another one, or has no effect, and why."""
    least, most = found.loss_min, found.loss_max
    if least is not None and most is not None and least >= most:
        return "loss_min", f"must be below loss_max, which is {most:g}"
    is_relative = found.loss_times is not None or found.grad_norm_times is not None
    for key in ("window", "warm_up"):
        if key in given and not is_relative:
            return key, "has no effect without loss_times or grad_norm_times"
    if "max_skips" in given and found.action != "skip":
        return "max_skips", "has no effect without action = 'skip'"
    return None
