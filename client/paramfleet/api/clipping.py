"""``fleet.clip_grad_norm_``: gradients of all workers, clipped by their norm."""

from collections.abc import Iterable
from contextlib import nullcontext

import torch

from paramfleet.session.session import Session

__all__ = ["GradientClipping"]


class GradientClipping:
    """Clips the gradients of one session's worker.

    Args:
        session: Whose worker.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def clip_grad_norm_(
        self,
        parameters: torch.Tensor | Iterable[torch.Tensor],
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        *,
        examples: int | None = None,
    ) -> torch.Tensor:
        """Scale gradients so that their norm is at most ``max_norm``; return the norm before.

        It is ``torch.nn.utils.clip_grad_norm_``, which does the same in a job:

        * sync: the norm is that of the gradient that the step makes of all workers' gradients,
          of dense parameters and of rows, the same in every worker. Every worker calls it as
          often in a step, with the same parameters; each call sends the gradients once more.
        * async, GEO, LocalSGD, gpubox: the norm is that of this worker's own gradient. gpubox
          with several workers warns of it (``worker.clips_own_gradient``).
        * collective mode: ``backward`` has combined the gradients before.

        Args:
            parameters: Whose gradients, as of torch's function.
            max_norm: The largest norm.
            norm_type: The order of the norm: above 0, or infinity.
            error_if_nonfinite: Whether a norm that is NaN or infinite is an error.
            examples: Of this worker's batch, if ``step`` is told others than the model was
                called with.

        Raises:
            NormTypeError: in sync, if there is no such norm.
            ClipMixedError: in sync, if some of the parameters aren't the optimizer's.
            NormMismatchError: in sync, if another worker clips other gradients.
            NormNotSharedError: in sync, if another worker has taken the step without clipping.
            TotalIncompleteError: in sync, if another worker doesn't call it in time.
            RuntimeError: if the norm isn't finite, and is to be.
            FleetError: if the job failed or a pserver didn't answer in time.
        """
        clipping = self._session.backend.clipping
        counting = nullcontext() if clipping is None else clipping.counting(examples)
        with counting:
            return torch.nn.utils.clip_grad_norm_(
                parameters, max_norm, norm_type, error_if_nonfinite
            )
