"""All rules. To add one is to write its module and to name it here."""

from paramfleet_shared.tables.rules.adagrad import ADAGRAD
from paramfleet_shared.tables.rules.adam import ADAM
from paramfleet_shared.tables.rules.adamw import ADAMW
from paramfleet_shared.tables.rules.ctr.accessor import CTR
from paramfleet_shared.tables.rules.ftrl import FTRL
from paramfleet_shared.tables.rules.momentum import MOMENTUM
from paramfleet_shared.tables.rules.record import Rule
from paramfleet_shared.tables.rules.rowwise_adagrad import ROWWISE_ADAGRAD
from paramfleet_shared.tables.rules.sgd import SGD
from paramfleet_shared.tables.rules.sum import SUM

__all__ = ["RULES"]

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (SGD, MOMENTUM, ADAGRAD, ADAM, SUM, ADAMW, ROWWISE_ADAGRAD, FTRL, CTR)
}
"""By name."""
