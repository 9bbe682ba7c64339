"""Row-wise Adagrad: one sum a row, of the mean squares of its gradients.

It is what FBGEMM and TorchRec call EXACT_ROWWISE_ADAGRAD. A dense table is rows of one value:
there it is Adagrad.
"""

from collections.abc import Mapping
from typing import Any

from paramfleet_shared.tables.rules.adagrad import ADAGRAD
from paramfleet_shared.tables.rules.first_wire import LARGEST
from paramfleet_shared.tables.rules.record import (
    Column,
    Constant,
    Constants,
    Formula,
    Moment,
    Numbers,
    Rule,
    TorchForm,
)
from paramfleet_shared.tables.rules.sgd import SGD

__all__ = ["ROWWISE_ADAGRAD"]


def _row_rate(step: Any, state: Any, mean_square: Any, functions: Any) -> Any:
    square_root, _cut = functions
    total = state + mean_square
    return step.rate / (square_root(total) + step.constants[0]), total


def _numbers(constants: Constants, moment: Moment) -> Numbers:
    return Numbers(moment.lr, 0.0, (constants["eps"],))


def _choose(_constants: Constants, sparse: bool) -> int:  # noqa: FBT001 - of Rule.choose
    return int(sparse)


def _of_torch(group: Mapping[str, Any]) -> Constants:
    return {name: float(group[name]) for name in ("initial_accumulator_value", "eps")}


ROWWISE_ADAGRAD = Rule(
    name="rowwise_adagrad",
    constants=(
        Constant(name="initial_accumulator_value", default=0.0, most=LARGEST),
        Constant(name="eps", default=1e-8, least=1e-30, most=1e6),
    ),
    columns=(Column(name="sum", per_row=True, not_negative=True, merge="sum"),),
    first_state="initial_accumulator_value",
    formulas=(
        Formula(update=ADAGRAD.formulas[0].update, numbers=_numbers),
        Formula(update=SGD.formulas[0].update, row_rate=_row_rate, numbers=_numbers),
    ),
    choose=_choose,
    pace="first_gradients",
    torch=TorchForm(
        classes=("paramfleet.optim.RowwiseAdagrad",),
        constants=_of_torch,
        kernels_only=True,
    ),
)
