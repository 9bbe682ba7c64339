"""All rules for parts of a row. To add one is to write its module and to name it here."""

from paramfleet_shared.tables.rules.ctr.adagrad import ADAGRAD
from paramfleet_shared.tables.rules.ctr.adagrad_v2 import ADAGRAD_V2
from paramfleet_shared.tables.rules.ctr.adam import ADAM
from paramfleet_shared.tables.rules.ctr.naive import NAIVE
from paramfleet_shared.tables.rules.ctr.record import PartRule
from paramfleet_shared.tables.rules.ctr.shared_adam import SHARED_ADAM
from paramfleet_shared.tables.rules.ctr.std_adagrad import STD_ADAGRAD

__all__ = ["PART_RULES"]

PART_RULES: dict[str, PartRule] = {
    rule.name: rule for rule in (NAIVE, ADAGRAD, STD_ADAGRAD, ADAM, SHARED_ADAM, ADAGRAD_V2)
}
"""By name."""
