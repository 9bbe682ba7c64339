"""What a table does beside training its rows: ``CtrAccessor``, with Fleet's names and numbers.

One set of defaults holds: those of Fleet's ``sparse_table_configs``. What isn't given has its
default, whatever else is given.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.rules.ctr.accessor import NUM_COUNTS, without_rules
from paramfleet_shared.tables.rules.ctr.catalog import PART_RULES
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpecError
from paramfleet_shared.values.texts import nearest, shown

__all__ = ["FLEETS", "AccessorOptionError", "CtrAccessor", "SparseRule"]

FLEETS = (
    "nonclk_coeff",
    "click_coeff",
    "embedx_threshold",
    "show_click_decay_rate",
    "delete_threshold",
    "delete_after_unseen_days",
    "base_threshold",
    "delta_threshold",
    "delta_keep_days",
    "show_scale",
    "zero_init",
)
"""Options of an accessor that Fleet has, too, by these names."""

_ADAMS = ("SparseAdamSGDRule", "SparseSharedAdamSGDRule")

_RATES = {name: 0.001 if name in _ADAMS else 0.05 for name in PART_RULES}
"""Fleet's learning rates."""


class AccessorOptionError(ContractError):
    """An option of an accessor is unknown, or its value is not allowed."""

    code = "contract.accessor_option"
    option: str
    value: str
    rule: str
    sentence = "{option} = {value}: {rule}"


@dataclass(frozen=True, init=False)
class SparseRule:
    """The rule by which one part of a row is trained: the first weight, or the others.

    Args:
        name: One of Fleet's rules: ``SparseNaiveSGDRule``, ``SparseAdaGradSGDRule``,
            ``StdAdaGradSGDRule``, ``SparseAdamSGDRule``, ``SparseSharedAdamSGDRule`` or
            ``SparseAdaGradV2SGDRule``.
        learning_rate: A number, or ``"optimizer"`` for the rate of the optimizer's parameter
            group, which schedulers change. The defaults are Fleet's: 0.05, and 0.001 for both
            Adam rules.
        initial_range: First values of weights are random between minus and plus this number.
        weight_bounds: The smallest and the largest weight.
        constants: Constants of the rule: ``initial_g2sum`` (3.0) of the Adagrad rules;
            ``beta1_decay_rate`` (0.9), ``beta2_decay_rate`` (0.999) and ``ada_epsilon``
            (1e-8) of the Adam rules.

    Raises:
        AccessorOptionError: if the rule or an option is unknown; the message has the nearest
            known name.
    """

    name: str
    learning_rate: float | Literal["optimizer"]
    initial_range: float
    weight_bounds: tuple[float, float]
    constants: tuple[tuple[str, float], ...]

    def __init__(
        self,
        name: str = "SparseAdaGradSGDRule",
        *,
        learning_rate: Any = None,
        initial_range: float = 1e-4,
        weight_bounds: Any = (-10.0, 10.0),
        **constants: float,
    ) -> None:
        if name not in list(PART_RULES):  # it may be no text
            raise AccessorOptionError(
                option="rule", value=shown(name), rule=_one_of(name, list(PART_RULES))
            )
        known = [each.name for each in PART_RULES[name].constants]
        for option, value in constants.items():
            if option not in known:
                rule = f"{name} has no such constant; {_one_of(option, known)}"
                raise AccessorOptionError(option=option, value=shown(value), rule=rule)
        if isinstance(learning_rate, str) and learning_rate != "optimizer":
            rule = 'must be a number or "optimizer"'
            raise AccessorOptionError(
                option="learning_rate", value=shown(learning_rate), rule=rule
            )
        if isinstance(initial_range, bool) or not isinstance(initial_range, int | float):
            raise AccessorOptionError(
                option="initial_range", value=shown(initial_range), rule="must be a number"
            )
        if not (isinstance(weight_bounds, tuple | list) and len(weight_bounds) == 2):
            rule = "must be two numbers, the least and the greatest weight"
            raise AccessorOptionError(
                option="weight_bounds", value=shown(weight_bounds), rule=rule
            )
        rate = _RATES[name] if learning_rate is None else learning_rate
        set_ = object.__setattr__
        set_(self, "name", name)
        set_(self, "learning_rate", rate)
        set_(self, "initial_range", initial_range)
        set_(self, "weight_bounds", tuple(weight_bounds))
        set_(self, "constants", tuple(sorted(constants.items())))

    def of_part(self, part: str) -> dict[str, Any]:
        """Return the rule as constants of a table's rule, each named after a part."""
        least, most = self.weight_bounds
        follows = self.learning_rate == "optimizer"
        own = {
            "rule": self.name,
            "scheduled": follows,
            "min_bound": least,
            "max_bound": most,
            **dict(self.constants),
        }
        if not follows:
            own["learning_rate"] = self.learning_rate
        return {f"{part}_{name}": value for name, value in own.items()}


@dataclass(frozen=True, kw_only=True)
class CtrAccessor:
    """Rows that count shows and clicks, and get most of their weights at a given score.

    A row has its first weight from its first push on. Its other weights are 0 and are not
    trained until the score of the row reaches ``embedx_threshold``. Then they get random first
    values, and the row keeps them::

        score = (show - click) * nonclk_coeff + click * click_coeff

    Give shows and clicks with the ids: ``embedding(ids, show=..., click=...)``; by default each
    instance counts as one show without a click. Or, with ``cvm``, give them as in Fleet's
    networks through ``fleet.nn.continuous_value_model``: then rows begin with two more columns,
    their show and click.

    With ``grad_scale="show"`` the gradient of a mean loss is multiplied by the number of
    instances in the batch before it is sent. So a rule gets the sum of the gradients of all
    instances, and an Adagrad rule, which divides by the shows, steps by the mean gradient of a
    show. This is what Fleet does. With ``grad_scale="mean"`` rules get the gradients of
    autograd unchanged.

    Args:
        nonclk_coeff: Weight of a show without a click in the score.
        click_coeff: Weight of a click in the score.
        embedx_threshold: The score at which a row gets its other weights.
        show_click_decay_rate: Factor for show and click at the end of a day
            (``fleet.set_date``).
        delete_threshold: ``fleet.shrink`` removes rows with a lower score.
        delete_after_unseen_days: ``fleet.shrink`` also removes rows that were not seen for more
            days.
        base_threshold: Bases and deltas of ``fleet.save_inference_model`` leave out rows with
            a lower score.
        delta_threshold: Deltas leave out rows whose score grew by less since they were last
            written.
        delta_keep_days: Bases and deltas leave out rows that were not seen for more days.
        days_by: ``"date"``: days are those of ``fleet.set_date``. ``"saves"``: each
            ``fleet.save_persistables(..., mode=3)`` ends a day, as with Fleet's counters, and
            ``set_date`` does not change the table.
        show_scale: Whether Adagrad rules divide gradients by the shows of the step.
        zero_init: Whether first weights start at 0.
        grad_scale: ``"show"`` or ``"mean"``.
        cvm: Whether show and click are the first two columns of the rows in the model.
        embed: The rule of the first weight.
        embedx: The rule of the other weights.

    Raises:
        AccessorOptionError: if an option is unknown (the message has the nearest known name),
            or its value is not allowed.
    """

    nonclk_coeff: float = 0.1
    click_coeff: float = 1.0
    embedx_threshold: float = 10.0
    show_click_decay_rate: float = 0.98
    delete_threshold: float = 0.8
    delete_after_unseen_days: int = 30
    base_threshold: float = 1.5
    delta_threshold: float = 0.25
    delta_keep_days: int = 16
    show_scale: bool = True
    zero_init: bool = True
    grad_scale: Literal["show", "mean"] = "show"
    cvm: bool = False
    days_by: Literal["date", "saves"] = "date"
    embed: SparseRule = field(default_factory=SparseRule)
    embedx: SparseRule = field(default_factory=SparseRule)
    rule: OptimizerSpec = field(init=False, repr=False, compare=False)
    """As pservers and checkpoints know it."""

    def __new__(cls, *_args: Any, **given: Any) -> Self:
        """Name the nearest option where one isn't known; else as ``object`` does.

        Raises:
            AccessorOptionError: if an option isn't known.
        """
        known = [each.name for each in fields(cls) if each.init]
        for option in given.keys() - set(known):
            rule = f"CtrAccessor has no such option; {_one_of(option, known)}"
            raise AccessorOptionError(option=option, value=shown(given[option]), rule=rule)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for option in ("embed", "embedx"):
            value = getattr(self, option)
            if not isinstance(value, SparseRule):
                made = "must be made by fleet.nn.SparseRule(...)"
                raise AccessorOptionError(option=option, value=shown(value), rule=made)
        if self.days_by not in {"date", "saves"}:
            known = 'must be "date" or "saves"'
            raise AccessorOptionError(option="days_by", value=shown(self.days_by), rule=known)
        constants = {name: getattr(self, name) for name in (*FLEETS, "grad_scale")}
        constants |= self.embed.of_part("embed") | self.embedx.of_part("embedx")
        try:
            rule = OptimizerSpec(rule="ctr", **constants)
        except TableSpecError as error:
            option = error.field.removeprefix("optimizer.")
            raise AccessorOptionError(
                option=option, value=shown(constants.get(option)), rule=error.rule
            ) from error
        object.__setattr__(self, "rule", rule)

    @property
    def first_day(self) -> int:
        """Return which day it is before anything said so; 0 for none."""
        return int(self.days_by == "saves")

    @property
    def rule_apart(self) -> OptimizerSpec:
        """Return the rule of pservers that add up what workers have counted and learned."""
        return OptimizerSpec(rule="ctr", **without_rules(self.rule.constants))

    @property
    def num_counts(self) -> int:
        """Return how many columns of a row are counts: show and click."""
        return NUM_COUNTS

    @property
    def num_hidden(self) -> int:
        """Return how many columns of a row the model doesn't see, the first ones."""
        return 0 if self.cvm else NUM_COUNTS

    @property
    def initializer(self) -> InitializerSpec:
        """Return what makes the first weights."""
        span = abs(self.embedx.initial_range)
        return InitializerSpec(kind="uniform", low=-span, high=span)

    @property
    def sums_gradients(self) -> bool:
        """Return whether rules get the sum of the gradients of all instances of a batch."""
        return self.grad_scale == "show"


def _one_of(name: str, known: list[str]) -> str:
    """Return what a name must be, and which may be meant."""
    near = nearest(str(name), known, cutoff=0.5)
    meant = f"; did you mean {near}?" if near else ""
    return f"must be one of {', '.join(known)}{meant}" if known else "it has none"
