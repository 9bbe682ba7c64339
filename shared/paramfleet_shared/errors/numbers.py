"""Errors of numbers that tables can't take; a part of ``served_errors``."""

from typing_extensions import override

from paramfleet_shared.errors import ContractError
from paramfleet_shared.values.bounds import LARGEST_GRADIENT, MAX_LEARNING_RATE, MAX_WEIGHT

__all__ = [
    "BadWeightError",
    "LearningRateRefusedError",
    "NonFiniteGradientError",
    "NonFiniteValuesError",
    "ShowCountError",
]


class BadWeightError(ContractError):
    """A push carries a weight that no mean can use."""

    code = "contract.bad_weight"
    rank: int
    step: int
    weight: float

    @override
    def describe(self) -> str:
        weight = f"weight {self.weight} must be from 0 to {MAX_WEIGHT:g}"
        return f"worker {self.rank}, step {self.step}: {weight}"


class NonFiniteGradientError(ContractError):
    """A push holds NaN, infinity or numbers too large; the tables are as they were."""

    code = "contract.non_finite_gradient"
    table: str
    rank: int
    step: int
    count: int
    limit: float = LARGEST_GRADIENT
    sentence = (
        "worker {rank}, step {step}: {count} of the numbers pushed to table {table!r} "
        "are NaN, infinite or not below {limit:.3g} in size; nothing was applied"
    )


class NonFiniteValuesError(ContractError):
    """Values of a table are NaN, infinite or too large; the table is as it was."""

    code = "contract.non_finite_values"
    table: str
    rank: int
    count: int
    sentence = (
        "worker {rank}: {count} of the values for table {table!r} are NaN, infinite or too "
        "large; nothing was changed: look at how the model is initialized or changed"
    )


class ShowCountError(ContractError):
    """Rows are pushed with counts that no use of them makes; nothing was applied."""

    code = "contract.show_count"
    table: str
    rank: int
    step: int
    count: int
    sentence = (
        "worker {rank}, step {step}: {count} of the rows pushed to table {table!r} have no "
        "show, or fewer than 0 clicks; nothing was applied: give show and click with the ids, "
        "or, with cvm=True, let every lookup of the table go through "
        "fleet.nn.continuous_value_model"
    )


class LearningRateRefusedError(ContractError):
    """A push carries a learning rate that no step can use; nothing was applied."""

    code = "contract.learning_rate_refused"
    table: str
    rank: int
    rate: float

    @override
    def describe(self) -> str:
        return (
            f"worker {self.rank}: the learning rate {self.rate} of table {self.table!r} must "
            "be a number "
            f"from 0 to {MAX_LEARNING_RATE:g}; nothing was applied: look at the scheduler"
        )
