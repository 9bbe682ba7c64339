"""Errors of numbers that tables can't take; a part of ``served_errors``."""

from paramfleet_shared.errors import ContractError
from paramfleet_shared.values.bounds import LARGEST_GRADIENT, MAX_LEARNING_RATE, MAX_WEIGHT

__all__ = [
    "BadWeightError",
    "LearningRateRefusedError",
    "NonFiniteGradientError",
    "NonFiniteValuesError",
]


class BadWeightError(ContractError):
    """A push carries a weight that no mean can use."""

    code = "contract.bad_weight"

    def __init__(self, *, rank: int, step: int, weight: float) -> None:
        super().__init__(
            f"worker {rank}, step {step}: weight {weight} must be from 0 to {MAX_WEIGHT:g}",
            rank=rank,
            step=step,
            weight=weight,
        )
        self.rank = rank
        self.step = step
        self.weight = weight


class NonFiniteGradientError(ContractError):
    """A push holds NaN, infinity or numbers too large; the tables are as they were."""

    code = "contract.non_finite_gradient"

    def __init__(
        self,
        *,
        table: str,
        rank: int,
        step: int,
        count: int,
        limit: float = LARGEST_GRADIENT,
    ) -> None:
        super().__init__(
            f"worker {rank}, step {step}: {count} of the numbers pushed to table {table!r} "
            f"are NaN, infinite or not below {limit:.3g} in size; nothing was applied",
            table=table,
            rank=rank,
            step=step,
            count=count,
            limit=limit,
        )
        self.table = table
        self.rank = rank
        self.step = step
        self.count = count


class NonFiniteValuesError(ContractError):
    """First values hold NaN or infinity; the table is as it was."""

    code = "contract.non_finite_values"

    def __init__(self, *, table: str, rank: int, count: int) -> None:
        super().__init__(
            f"worker {rank}: {count} of the first values of table {table!r} are NaN or "
            "infinite; nothing was changed: look at how the model is initialized",
            table=table,
            rank=rank,
            count=count,
        )
        self.table = table
        self.rank = rank
        self.count = count


class LearningRateRefusedError(ContractError):
    """A push carries a learning rate that no step can use; nothing was applied."""

    code = "contract.learning_rate_refused"

    def __init__(self, *, table: str, rank: int, rate: float) -> None:
        super().__init__(
            f"worker {rank}: the learning rate {rate} of table {table!r} must be a number "
            f"from 0 to {MAX_LEARNING_RATE:g}; nothing was applied: look at the scheduler",
            table=table,
            rank=rank,
            rate=rate,
        )
        self.table = table
        self.rank = rank
        self.rate = rate
