"""Fleet's CTR accessor: rows that count shows and clicks, and grow when they are worth it.

A row's values are ``show, click, embed, embedx[m]``. What is pushed for a row has the same
shape: how often its id was shown and clicked in a step, and its gradients. One step::

    show, click *= show_click_decay_rate ** days since seen_day;  seen_day = today
    show += s;  click += c;  delta_score += score(s, c)
    embed and embedx step by their rules, with gradients / s where a rule is ``per_show``
    score(show, click) = (show - click) * nonclk_coeff + click * click_coeff

A row begins short: its embedx is 0 and doesn't learn. It is made from the table's initializer
after the step at whose end the score is ``embedx_threshold`` or more, and stays for ever.

Days are counted from 1970, and 0 is none: without a date nothing fades. A row has expired if
its score, faded up to today, is less than ``delete_threshold``, or it was seen longer ago than
``delete_after_unseen_days``. Fleet multiplies all rows once a day instead, and counts the days
of each up; its newer accessor has a clock, as here.

Source: Paddle, ``paddle/fluid/distributed/ps/table/ctr_accessor.cc``, ``ctr_dymf_accessor.cc``.
"""

from typing import Any

from paramfleet_shared.tables.rules.ctr.catalog import PART_RULES
from paramfleet_shared.tables.rules.record import (
    Broken,
    Column,
    Constant,
    Constants,
    Rule,
    Statistics,
)

__all__ = ["CTR", "NUM_COUNTS", "NUM_SHORT", "PARTS", "STATISTICS", "without_rules"]

NUM_COUNTS = 2
"""show and click."""

NUM_SHORT = 3
"""A row's values before embedx."""

PARTS = ("embed", "embedx")
"""The parts of a row, and how the names of their constants and columns begin."""

STATISTICS = ("delta_score", "seen_day", "is_extended")
"""The columns of a row behind the states of its rules; each is a number."""

_FAR = 1e30

_OF_A_RULE = tuple(
    {each.name: each for rule in PART_RULES.values() for each in rule.constants}.values()
)
"""The constants that rules have, each once."""


def _of_part(part: str) -> tuple[Constant, ...]:
    own = (
        Constant(name="rule", default="SparseAdaGradSGDRule", choices=tuple(PART_RULES)),
        Constant(name="scheduled", default=False),
        Constant(name="learning_rate", default=0.05, most=1e6),
        Constant(name="min_bound", default=-10.0, least=-_FAR, most=_FAR),
        Constant(name="max_bound", default=10.0, least=-_FAR, most=_FAR),
        *_OF_A_RULE,
    )
    return tuple(
        Constant(
            name=f"{part}_{each.name}",
            default=each.default,
            least=each.least,
            most=each.most,
            below_most=each.below_most,
            choices=each.choices,
        )
        for each in own
    )


def _check(constants: Constants) -> Broken | None:
    for part in PARTS:
        if not constants[f"{part}_min_bound"] < constants[f"{part}_max_bound"]:
            name = f"{part}_max_bound"
            return Broken(name, f"must be more than {part}_min_bound")
    return None


def _columns(constants: Constants) -> tuple[Column, ...]:
    columns: list[Column] = []
    for part in PARTS:
        rule = PART_RULES[constants[f"{part}_rule"]]
        for state in (*rule.of_weights, *rule.of_part):
            first = 0.0 if state.first is None else float(constants[f"{part}_{state.first}"])
            column = Column(
                name=f"{part}_{state.name}",
                per_row=part == "embed" or state in rule.of_part,  # embed is one weight
                skips=NUM_SHORT,
                first=first,
                not_negative=state.not_negative,
                merge=state.merge,
            )
            columns.append(column)
    return (*columns, *(Column(name=name, per_row=True) for name in STATISTICS))


def _unscaled(constants: Constants, dim: int) -> int:
    """Gradients that are sums over instances are summed over workers, too."""
    return dim if constants["grad_scale"] == "show" else NUM_COUNTS


def _drawn(constants: Constants, dim: int) -> int:
    """A row without embedx has no other value that could differ from row to row."""
    return int(dim == NUM_SHORT or not constants["zero_init"])


def without_rules(constants: Constants) -> dict[str, Any]:
    """Return the constants of rows that other processes step: what they send is added.

    The rows keep what they count, and no states: each of the others has its own.
    """
    own = {each.name for part in PARTS for each in _of_part(part)}
    plain = {name: value for name, value in constants.items() if name not in own}
    for part in PARTS:
        plain[f"{part}_rule"] = "SparseNaiveSGDRule"
        for bound in ("min_bound", "max_bound"):
            plain[f"{part}_{bound}"] = constants[f"{part}_{bound}"]
    return plain | {"grad_scale": "mean"}  # no difference is a sum over instances


CTR = Rule(
    name="ctr",
    constants=(
        Constant(name="nonclk_coeff", default=0.1, least=-1e6, most=1e6),
        Constant(name="click_coeff", default=1.0, least=-1e6, most=1e6),
        Constant(name="embedx_threshold", default=10.0, least=-_FAR, most=_FAR),
        Constant(name="show_click_decay_rate", default=0.98, least=1e-6),
        Constant(name="delete_threshold", default=0.8, least=-_FAR, most=_FAR),
        Constant(name="delete_after_unseen_days", default=30, most=1e6),
        Constant(name="base_threshold", default=1.5, least=-_FAR, most=_FAR),
        Constant(name="delta_threshold", default=0.25, least=-_FAR, most=_FAR),
        Constant(name="delta_keep_days", default=16, most=1e6),
        Constant(name="show_scale", default=True),
        Constant(name="zero_init", default=True),
        Constant(name="grad_scale", default="show", choices=("show", "mean")),
        *_of_part("embed"),
        *_of_part("embedx"),
    ),
    statistics=Statistics(
        num_counts=NUM_COUNTS, columns=_columns, drawn=_drawn, unscaled=_unscaled
    ),
    check=_check,
)
