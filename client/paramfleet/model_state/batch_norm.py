"""BatchNorm over the batches of all workers of a step: ``strategy.sync_batch_norm``."""

import logging
from collections.abc import Iterator
from typing import Protocol, TypeAlias

import torch
from typing_extensions import override

from paramfleet.config.strategy_keys import StrategyError
from paramfleet_shared.errors import ContractError

__all__ = [
    "BatchTotals",
    "SyncBatchNormError",
    "ages_of",
    "check_sync_batch_norm",
    "note_local_statistics",
    "share_statistics",
]

log = logging.getLogger(__name__)

_Norm: TypeAlias = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - what torch's share


class SyncBatchNormError(ContractError):
    """A layer of torch's SyncBatchNorm has no process group that it could use."""

    code = "contract.sync_batch_norm"
    layer: str
    remedy: str
    sentence = (
        "layer {layer!r} is torch.nn.SyncBatchNorm, which would use the batch of this worker "
        "alone: {remedy}"
    )


class BatchTotals(Protocol):
    """Adds up what workers have of the same name; see ``StepTotals``."""

    is_over: bool
    """Whether this worker takes no more steps: it normalizes by its own batches then."""

    def over_workers(self, values: torch.Tensor, name: str) -> torch.Tensor:
        """Return the workers' sum, with its gradient."""
        ...


class _Shared(_Norm):
    """What torch's BatchNorm becomes. Its values, and its ``state_dict``, stay."""

    totals: BatchTotals | None
    path: str

    @override
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the input, normalized, as torch's layer of this kind does.

        Raises:
            ValueError: if all workers together have one value a channel.
        """
        totals = self.totals
        if not self.training or totals is None or totals.is_over:
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        wide = input.float() if input.dtype.itemsize < 4 else input
        mean, var, count = self._statistics(wide, totals)
        self._track(mean.detach(), var.detach(), count)
        shape = [1, -1] + [1] * (input.dim() - 2)
        scale = torch.rsqrt(var + self.eps).to(wide.dtype)
        if self.weight is not None:
            scale = scale * self.weight
        normed = (wide - mean.to(wide.dtype).view(shape)) * scale.view(shape)
        if self.bias is not None:
            normed = normed + self.bias.view(shape)
        return normed.to(input.dtype)

    def _statistics(
        self, x: torch.Tensor, totals: BatchTotals
    ) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Return mean and variance of each channel over all workers' batches, and their size.

        Each worker's own mean and variance are computed as torch does it; in the sums of
        their moments nothing is lost, which are float64.

        Raises:
            ValueError: if there is one value a channel.
        """
        axes = [axis for axis in range(x.dim()) if axis != 1]
        size = x.numel() // x.shape[1]
        count = x.new_tensor([size], dtype=torch.float64)
        if size:
            own_var, own_mean = (
                each.double() for each in torch.var_mean(x, axes, correction=0)
            )
        else:
            own_var = own_mean = x.sum(axes).double()
        moments = torch.cat([count, own_mean * size, (own_var + own_mean**2) * size])
        total = totals.over_workers(moments, f"BatchNorm {self.path!r}")
        whole, channels = float(total[0].detach()), x.shape[1]
        if whole < 2:
            message = "Expected more than 1 value per channel when training, over all workers"
            raise ValueError(message)
        mean, square = (total[1:] / whole).view(2, channels)
        return mean, (square - mean**2).clamp(min=0), whole

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, var: torch.Tensor, count: float) -> None:
        """Take the statistics into the running ones, as torch does."""
        if self.running_mean is None or self.running_var is None:
            return
        share = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if share is None:
                share = 1.0 / float(self.num_batches_tracked)
        unbiased = var * (count / (count - 1))
        for running, value in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.lerp_(value.to(running.dtype), share or 0.0)


class _Shared1d(_Shared, torch.nn.BatchNorm1d):
    pass


class _Shared2d(_Shared, torch.nn.BatchNorm2d):
    pass


class _Shared3d(_Shared, torch.nn.BatchNorm3d):
    pass


_KINDS: dict[type[torch.nn.Module], type[_Shared]] = {
    torch.nn.BatchNorm1d: _Shared1d,
    torch.nn.BatchNorm2d: _Shared2d,
    torch.nn.BatchNorm3d: _Shared3d,
}


def share_statistics(model: torch.nn.Module, totals: BatchTotals) -> int:
    """Make the model's BatchNorm layers use the batches of all workers, in place.

    They stay the same objects, with the same parameters, buffers and hooks.

    Args:
        model: Whose layers.
        totals: Adds up over the workers.

    Returns:
        How many there are.

    Raises:
        StrategyError: if a layer has a forward of its own, or no sizes yet; nothing was
            changed.
    """
    found: list[tuple[str, _Norm, type[_Shared]]] = []
    for path, layer in model.named_modules():
        if not isinstance(layer, _Norm):
            continue
        kind = type(layer) if isinstance(layer, _Shared) else _KINDS.get(type(layer))
        if kind is None:
            name = type(layer).__name__
            rule = (
                f"layer {path!r} is a {name}: only torch's BatchNorm1d, 2d and 3d can be shared"
            )
            if name.startswith("Lazy"):
                rule += "; call the model once before, and it becomes one"
            raise StrategyError(key="sync_batch_norm", value="True", rule=rule)
        found.append((path, layer, kind))
    for path, layer, kind in found:
        layer.__class__ = kind
        assert isinstance(layer, _Shared), "it has just become one"
        layer.totals, layer.path = totals, path
    return len(found)


def check_sync_batch_norm(model: torch.nn.Module, *, remedy: str) -> None:
    """Check that a model has no layer of torch's SyncBatchNorm.

    Raises:
        SyncBatchNormError: naming the first one.
    """
    for path, layer in model.named_modules():
        if isinstance(layer, torch.nn.SyncBatchNorm):
            raise SyncBatchNormError(layer=path, remedy=remedy)


def note_local_statistics(model: torch.nn.Module, *, remedy: str) -> None:
    """Warn of layers that normalize by the batches of one worker."""
    layers = [
        path
        for path, layer in model.named_modules()
        if isinstance(layer, _Norm) and layer.training
    ]
    if layers:
        reason = "each worker normalizes by its own part of a batch"
        facts = {"layers": layers, "reason": reason, "remedy": remedy}
        log.warning("worker.local_batch_norm", extra=facts)


def ages_of(model: torch.nn.Module) -> Iterator[tuple[str, int]]:
    """Yield the names of running statistics over all workers, and how many batches they saw.

    A worker that has left doesn't follow them: those of the greatest age are the newest.
    """
    for prefix, layer in model.named_modules():
        if isinstance(layer, _Shared) and layer.num_batches_tracked is not None:
            age = int(layer.num_batches_tracked)
            for name, _ in layer.named_buffers(prefix, recurse=False):
                yield name, age
