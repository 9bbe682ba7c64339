"""FTRL-Proximal (McMahan et al., "Ad Click Prediction: a View from the Trenches", 2013).

The paper keeps z, the sum of the gradients less what moved the value, and n, the sum of their
squares, for each value w::

    sigma = (sqrt(n + g^2) - sqrt(n)) / alpha;  z += g - sigma w;  n += g^2
    w = 0 if |z| <= l1, else -(z - sign(z) l1) / ((beta + sqrt(n)) / alpha + l2)

Where w isn't 0 it says by itself what z is beyond l1. So z is kept cut to -l1..l1 here, and the
rest of it computed from w: the same numbers where w begins as 0 and alpha never changes. Where
w was set otherwise, training goes on from there: first values that aren't 0, a rate that a
scheduler changed, rounding to 16 bits, what other workers added in GEO.
"""

from collections.abc import Mapping
from typing import Any

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

__all__ = ["FTRL"]

MOST = 3e38
"""Magnitudes of products stay below: so a value near float32's largest one stays finite. Any
value but the smallest ones is beyond every l1 if multiplied by it."""

LEAST_RATE = 1e-30
"""A rate below has no inverse in float32; z stays as it is."""


def _update(step: Any, value: Any, states: Any, grad: Any, functions: Any) -> Any:
    square_root, cut = functions
    beta, l1, rate_l1, rate_l2, inverse, most = step.constants
    total = states[1] + grad * grad
    scale = square_root(total) + (beta + rate_l2)
    # z has the sign that the value hasn't; where the value is 0, the one that it was kept with.
    pull = cut(states[0] - value * most, l1) + grad
    moved = cut(pull * step.rate - value * scale, most)
    beyond = cut(moved, rate_l1) - moved
    return cut(beyond / scale, most), (cut(pull - value * scale * inverse, l1), total)


def _numbers(constants: Constants, moment: Moment) -> Numbers:
    rate, l1 = moment.lr, constants["l1"]
    inverse = 1.0 / rate if rate >= LEAST_RATE else 0.0
    kept = constants["beta"], l1, rate * l1, rate * constants["l2"], inverse, MOST
    return Numbers(rate, 0.0, kept)


def _of_torch(group: Mapping[str, Any]) -> Constants:
    return {name: float(group[name]) for name in ("beta", "l1", "l2")}


FTRL = Rule(
    name="ftrl",
    constants=(
        Constant(name="beta", default=1.0, least=1e-6, most=1e6),
        Constant(name="l1", default=0.0, most=1e6),
        Constant(name="l2", default=0.0, most=1e6),
    ),
    columns=(
        Column(name="z", log2=20),
        Column(name="n", not_negative=True, merge="sum"),
    ),
    formulas=(Formula(update=_update, numbers=_numbers),),
    pace="first_gradients",
    torch=TorchForm(classes=("paramfleet.optim.FTRL",), constants=_of_torch),
)
