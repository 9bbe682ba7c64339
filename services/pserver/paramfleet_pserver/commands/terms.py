"""What the workers agreed on at their first ``declare``."""

from dataclasses import dataclass

from paramfleet_pserver.core.pacing import AsyncRate
from paramfleet_pserver.requests.checked import (
    DeclareRequest,
    LossReduction,
    Mode,
    OnWorkerLoss,
)
from paramfleet_shared.errors.served import ModeMismatchError

__all__ = ["Terms"]

_COMMON_FIELDS = (
    "mode", "max_staleness", "async_rate", "sync_batch_norm", "on_worker_loss",
    "loss_reduction",
)  # fmt: skip
_FIELDS = (*_COMMON_FIELDS, "worker_num")


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What holds for the whole job."""

    mode: Mode
    worker_num: int
    max_staleness: int | None
    """Steps a worker may lead the slowest by; None for any number."""
    async_rate: AsyncRate = "full"
    """Whether async takes the whole rate at every update."""

    on_worker_loss: OnWorkerLoss = "wait"
    """What becomes of sync when a worker died and nobody takes its place."""

    loss_reduction: LossReduction = "mean"
    """Whether a step of sync has the mean of the workers' gradients by their examples, or the
    sum."""

    sync_batch_norm: bool
    """Whether each worker adds its batch statistics to those of all."""

    @classmethod
    def of(cls, request: DeclareRequest) -> "Terms":
        """Return what a worker declares."""
        return cls(
            mode=request.mode,
            worker_num=request.worker_num,
            max_staleness=request.max_staleness,
            sync_batch_norm=request.sync_batch_norm,
            async_rate=request.async_rate,
            on_worker_loss=request.on_worker_loss,
            loss_reduction=request.loss_reduction,
        )

    def check_same(self, got: "Terms", *, elastic: bool) -> None:
        """Compare with what another worker declares.

        Args:
            got: That.
            elastic: Whether each worker may know of another number of them.

        Raises:
            ModeMismatchError: if a field differs; it names the first.
        """
        for field in _COMMON_FIELDS if elastic else _FIELDS:
            have_value, got_value = getattr(self, field), getattr(got, field)
            if have_value != got_value:
                raise ModeMismatchError(field=field, have=have_value, got=got_value)
