"""The constants of the first five rules.

The wire and checkpoints describe each of these rules with the constants of all of them. A
rule that came later has its own.
"""

from paramfleet_shared.tables.rules.record import Broken, Constant, Constants

__all__ = ["CONSTANTS", "LARGEST", "check", "weight_decay_broken"]

LARGEST = 1e30
"""Of the numbers that first values and states are made of."""

CONSTANTS = (
    Constant(name="momentum", default=0.9),
    Constant(name="dampening", default=0.0),
    Constant(name="nesterov", default=False),
    Constant(name="weight_decay", default=0.0, most=1e6),
    Constant(name="lr_decay", default=0.0, most=1e6),
    Constant(name="initial_accumulator_value", default=0.0, most=LARGEST),
    Constant(name="eps", default=1e-8, least=1e-30, most=1e6),
    Constant(name="beta1", default=0.9, below_most=True),
    Constant(name="beta2", default=0.999, below_most=True),
)


def check(constants: Constants) -> Broken | None:
    """Return what is wrong with a flag that momentum alone reads; None if nothing is."""
    begins = constants["momentum"] > 0.0 and constants["dampening"] == 0.0
    if constants["nesterov"] and not begins:
        return Broken("nesterov", "needs a momentum above 0 and no dampening")
    return None


def weight_decay_broken(constants: Constants) -> Broken | None:
    """Return what is wrong with a weight decay of rows; None if there is none."""
    if constants["weight_decay"] == 0.0:
        return None
    rule = "must be 0 for a sparse table: rows that no batch touches can't decay"
    return Broken("weight_decay", rule)
