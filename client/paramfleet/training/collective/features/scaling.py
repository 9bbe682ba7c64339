"""Mixed precision: the forward pass in 16 bits, and a scaled loss where it is float16."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from typing_extensions import override

from paramfleet.config.errors import CallOrderError

__all__ = ["LossScale", "ScaledOptimizer", "in_half"]

_NEVER = 2**31 - 1
"""Growth interval of torch's scaler: ours says when it changes."""


class LossScale:
    """What the loss is multiplied by, after Fleet's rules.

    Args:
        configs: The keys of ``amp_configs``.
    """

    def __init__(self, configs: Mapping[str, Any]) -> None:
        self.value: float = configs["init_loss_scaling"]
        self._dynamic: bool = configs["use_dynamic_loss_scaling"]
        self._grow_after: int = configs["incr_every_n_steps"]
        self._shrink_after: int = configs["decr_every_n_nan_or_inf"]
        self._growth: float = configs["incr_ratio"]
        self._shrinkage: float = configs["decr_ratio"]
        self.good = 0
        """Steps in a row whose gradients were finite."""
        self.bad = 0
        """Steps in a row whose weren't."""

    def note(self, *, finite: bool) -> None:
        """Count a step, and change the value when it is time."""
        self.good, self.bad = (self.good + 1, 0) if finite else (0, self.bad + 1)
        if not self._dynamic:
            return
        if self.good == self._grow_after:
            self.value, self.good = self.value * self._growth, 0
        elif self.bad == self._shrink_after:
            self.value, self.bad = max(1.0, self.value * self._shrinkage), 0


class ScaledOptimizer(torch.optim.Optimizer):
    """Steps another optimizer with gradients of a scaled loss, where they are finite.

    Args:
        inner: The other; parameter groups and state are shared.
        configs: The keys of ``amp_configs``.
        device: The type of the parameters' device.
    """

    def __init__(
        self, inner: torch.optim.Optimizer, configs: Mapping[str, Any], device: str
    ) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        self.state = inner.state
        self.scale = LossScale(configs)
        self._scaler = torch.amp.GradScaler(
            device, init_scale=self.scale.value, growth_interval=_NEVER
        )
        self._is_scaled = False
        self._has_stepped = False
        inner.register_step_post_hook(self._note)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss whose gradients ``step`` takes."""
        self._is_scaled = True
        return self._scaler.scale(loss)

    def unscale(self) -> None:
        """Make the gradients those of the loss itself, to clip them before ``step``."""
        self._scaler.unscale_(self.inner)

    @override
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # torch's overloads
        """Step, unless a gradient is NaN or infinite; then the scale may shrink.

        Raises:
            CallOrderError: if the gradients aren't of a scaled loss.
        """
        assert closure is None, "the distributed optimizer calls it"
        if not self._is_scaled:
            remedy = (
                "amp in float16 needs a scaled loss: optimizer.minimize(loss), or "
                "optimizer.scale(loss).backward() before it"
            )
            raise CallOrderError(function="distributed_optimizer().step", remedy=remedy)
        self._has_stepped = self._is_scaled = False
        self._scaler.step(self.inner)
        self.scale.note(finite=self._has_stepped)
        self._scaler.update(self.scale.value)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state, and the scale's."""
        scale = self.scale
        said = {"value": scale.value, "good": scale.good, "bad": scale.bad}
        return {**self.inner.state_dict(), "loss_scale": said}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        rest = dict(state_dict)
        said = rest.pop("loss_scale")
        self.scale.value, self.scale.good = said["value"], said["good"]
        self.scale.bad = said["bad"]
        self.inner.load_state_dict(rest)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
        self._scaler.load_state_dict(
            {
                "scale": self.scale.value,
                "growth_factor": 2.0,
                "backoff_factor": 0.5,
                "growth_interval": _NEVER,
                "_growth_tracker": 0,
            }
        )

    def _note(self, *_: object) -> None:
        self._has_stepped = True


def in_half(
    forward: Callable[..., Any], *, device: str, dtype: torch.dtype
) -> Callable[..., Any]:
    """Return ``forward`` under autocast; what it returns is float32, so that losses are."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype=dtype):
            found = forward(*args, **kwargs)
        return _whole(found)

    return run


def _whole(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_whole, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_whole, value))
    return value
