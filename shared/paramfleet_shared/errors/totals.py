"""Errors of sums over the workers of a step; see ``served_errors``."""

from paramfleet_shared.errors import ContractError, UnavailableError

__all__ = ["TotalIncompleteError", "TotalMismatchError", "TotalsTooLargeError"]


class TotalIncompleteError(UnavailableError):
    """A worker waited in vain for the others' parts of a sum over the workers of a step."""

    code = "unavailable.total_incomplete"

    def __init__(self, *, name: str, step: int, missing: list[int], waited_s: float) -> None:
        ranks = ", ".join(map(str, missing))
        super().__init__(
            f"{name!r} of step {step} wasn't whole within {waited_s:.1f} s: it waits for "
            f"worker(s) {ranks}; every worker must call the model, backward and "
            "fleet.remove_rows as often in a step, in the same order",
            name=name,
            step=step,
            missing=list(missing),
            waited_s=waited_s,
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
