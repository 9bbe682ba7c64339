"""Errors of sums over the workers of a step; see ``served_errors``."""

from paramfleet_shared.errors import ContractError, UnavailableError

__all__ = [
    "NormFailedError",
    "NormMismatchError",
    "NormNotSharedError",
    "TotalIncompleteError",
    "TotalMismatchError",
    "TotalsTooLargeError",
]


class TotalIncompleteError(UnavailableError):
    """A worker waited in vain for the others' parts of a sum over the workers of a step."""

    code = "unavailable.total_incomplete"

    def __init__(
        self,
        *,
        name: str,
        step: int,
        missing: list[int],
        waited_s: float,
        places: list[str] | None = None,
    ) -> None:
        known = dict(zip(missing, places or (), strict=False))
        ranks = ", ".join(
            f"{rank} ({known[rank]})" if known.get(rank) else str(rank) for rank in missing
        )
        super().__init__(
            f"{name!r} of step {step} wasn't whole within {waited_s:.1f} s: it waits for "
            f"worker(s) {ranks}; every worker must call the model, backward, "
            "clip_grad_norm_ and fleet.remove_rows as often in a step, in the same order",
            name=name,
            step=step,
            missing=list(missing),
            waited_s=waited_s,
            places=list(places or ()),
        )
        self.step = step
        self.missing = list(missing)


class TotalMismatchError(ContractError):
    """Two workers' parts of a sum have different lengths."""

    code = "contract.total_mismatch"
    name: str
    rank: int
    got: int
    other: int
    have: int
    sentence = (
        "{name!r}: worker {rank} has {got} numbers, and worker {other} has {have}: make "
        "the same model in every worker"
    )


class TotalsTooLargeError(ContractError):
    """A step has more sums over the workers than a pserver keeps."""

    code = "contract.totals_too_large"
    name: str
    rank: int
    limit: int
    sentence = (
        "{name!r} of worker {rank}: a step's sums have more than {limit:,} bytes, or are "
        "too many: take the steps that backward belongs to"
    )


class NormFailedError(ContractError):
    """A pserver couldn't compute a norm from the parts that it had."""

    code = "contract.norm_failed"
    step: int
    number: int
    """Of the call in the step, from 1."""
    reason: str
    sentence = (
        "clip_grad_norm_ of step {step}: the pserver couldn't compute the norm of call "
        "{number} ({reason}): its log has the details"
    )


class NormMismatchError(ContractError):
    """Two workers clip other gradients in the same call of a step."""

    code = "contract.norm_mismatch"
    rank: int
    other: int
    what: str
    sentence = (
        "clip_grad_norm_: workers {rank} and {other} clip other gradients ({what}): make the "
        "same calls in every worker, in the same order"
    )


class NormNotSharedError(ContractError):
    """A worker has taken a step without clipping its gradients, and others clip theirs."""

    code = "contract.norm_not_shared"
    rank: int
    step: int
    number: int
    """Of the call in the step, from 1."""
    sentence = (
        "clip_grad_norm_ of step {step}: worker {rank} has taken the step without call "
        "{number}, so the norm of the merged gradient can't be known: call it as often in "
        "every worker before each optimizer.step()"
    )
