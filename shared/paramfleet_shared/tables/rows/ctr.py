"""Where the numbers of a row with an accessor are, as its kernel takes them."""

from paramfleet_shared.tables.kernels.stepping.ctr import CtrLayout
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rules.ctr.catalog import PART_RULES
from paramfleet_shared.tables.spec import OptimizerSpec

__all__ = ["ctr_layout_of"]


def ctr_layout_of(spec: OptimizerSpec, layout: RowLayout) -> CtrLayout:
    """Return where the numbers of a row are.

    Args:
        spec: Its rule.
        layout: Of the row, which has the columns of the rule and may have others.
    """
    spans = layout.spans

    def places_of(part: str) -> tuple[int, int]:
        rule = PART_RULES[spec.constants[f"{part}_rule"]]
        first, second = (
            int(spans[f"{part}_{states[0].name}"].start) if states else 0
            for states in (rule.of_weights, rule.of_part)
        )
        return first, second

    return CtrLayout(
        layout.columns[0].width,
        layout.pitch,
        places_of("embed"),
        places_of("embedx"),
        spans["delta_score"].start,
        spans["seen_day"].start,
        spans["is_extended"].start,
    )
