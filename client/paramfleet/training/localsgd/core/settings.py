"""How workers train apart, as one frozen object that is checked when it is made."""

from dataclasses import dataclass
from typing import Literal, get_args

from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.codecs.catalog import WireDtype
from paramfleet_shared.values.bounds import MAX_LEARNING_RATE
from paramfleet_shared.values.texts import shown

__all__ = [
    "IntervalRule",
    "LocalSgdSettings",
    "LocalSgdSettingsError",
    "OuterName",
    "StateRule",
]

IntervalRule = Literal["fixed", "paper", "fleet"]
OuterName = Literal["none", "sgd", "nesterov"]
StateRule = Literal["keep", "average", "reset"]

_MAX_STEPS = 2**31 - 1
_MAX_FRAGMENTS = 4096


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class LocalSgdSettingsError(ContractError):
    """A setting is out of its range, or doesn't go together with another."""

    code = "contract.localsgd_settings"
    key: str
    value: str
    rule: str
    sentence = "LocalSGD's {key} = {value}: {rule}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSgdSettings:
    """What each worker must be given alike.

    Raises:
        LocalSgdSettingsError: if a value is out of its range, or two don't go together.
    """

    k_steps: int = 1
    """Steps from one synchronization to the next; where they are adaptive K0, of which the
    formula makes the period."""

    begin_step: int = 1
    """Up to this step workers synchronize after each step (post-local SGD); 0 for never."""

    interval: IntervalRule = "fixed"
    """Whether ``k_steps`` stays, or follows a formula of ``core.intervals``."""

    max_k_steps: int = 16
    """The most that the formula may choose."""

    outer_optimizer: OuterName = "none"
    """What makes new values of the mean of what the workers learned; ``none`` averages."""

    outer_lr: float = 1.0
    """Learning rate of the outer optimizer."""

    outer_momentum: float = 0.0
    """Momentum of the outer optimizer."""

    optimizer_state: StateRule = "keep"
    """What becomes of momenta at a synchronization: each worker keeps its own, all get the
    mean, or they begin anew."""

    wire_dtype: WireDtype = "float32"
    """How the exchanged numbers travel; what narrow ones lose is sent the next time."""

    fragments: int = 1
    """In how many parts, at different times of a period, the model is exchanged."""

    overlap_steps: int = 0
    """Steps that an exchange may take while training goes on; it ends at the latest when
    the next one of its fragment begins."""

    mixing: float | None = None
    """After an overlapped exchange: the share of the worker's own values, the rest is the new
    ones'; None keeps all of the progress made meanwhile on top of the new values."""

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_ranges()
        self._check_together()

    def _check_choices(self) -> None:
        for key, kind in (
            ("interval", IntervalRule),
            ("outer_optimizer", OuterName),
            ("optimizer_state", StateRule),
            ("wire_dtype", WireDtype),
        ):
            if getattr(self, key) not in get_args(kind):
                raise self._error(key, f"one of {', '.join(get_args(kind))}")

    def _check_ranges(self) -> None:
        for key, least, most in (
            ("k_steps", 1, _MAX_STEPS),
            ("begin_step", 0, _MAX_STEPS),
            ("max_k_steps", 1, _MAX_STEPS),
            ("fragments", 1, _MAX_FRAGMENTS),
            ("overlap_steps", 0, _MAX_STEPS),
        ):
            value = getattr(self, key)
            if type(value) is not int or not least <= value <= most:
                raise self._error(key, f"a whole number, at least {least} and at most {most}")
        if not (_is_number(self.outer_lr) and 0 < self.outer_lr <= MAX_LEARNING_RATE):
            raise self._error("outer_lr", f"more than 0 and at most {MAX_LEARNING_RATE:g}")
        if not (_is_number(self.outer_momentum) and 0 <= self.outer_momentum < 1):
            raise self._error("outer_momentum", "at least 0 and less than 1")
        if self.mixing is not None and not (_is_number(self.mixing) and 0 <= self.mixing < 1):
            raise self._error("mixing", "at least 0 and less than 1")

    def _check_together(self) -> None:
        if self.interval != "fixed" and self.fragments > 1:
            raise self._error("interval", f"fragments = {self.fragments} need a fixed period")
        if self.outer_optimizer == "none" and (self.outer_lr, self.outer_momentum) != (
            1.0,
            0.0,
        ):
            key = "outer_lr" if self.outer_lr != 1.0 else "outer_momentum"
            raise self._error(key, "outer_optimizer = 'none' has neither rate nor momentum")
        if self.outer_optimizer == "nesterov" and not self.outer_momentum:
            raise self._error(
                "outer_momentum", "outer_optimizer = 'nesterov' needs one above 0"
            )
        if self.outer_optimizer != "none" and self.begin_step > 1:
            rule = f"outer_optimizer = {self.outer_optimizer!r} would step after each of them"
            raise self._error("begin_step", rule)
        if self.overlap_steps and self.optimizer_state != "keep":
            rule = f"optimizer_state = {self.optimizer_state!r} needs workers that wait"
            raise self._error("overlap_steps", rule)
        if self.mixing is not None and not self.overlap_steps:
            raise self._error("mixing", "without overlap_steps there is nothing to mix")

    def _error(self, key: str, rule: str) -> LocalSgdSettingsError:
        return LocalSgdSettingsError(key=key, value=shown(getattr(self, key)), rule=rule)
