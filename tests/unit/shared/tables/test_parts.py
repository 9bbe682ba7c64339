"""Which kernels are compiled together, and which of them a job needs."""

import pytest

from paramfleet_shared.tables.codecs.catalog import WIRE_DTYPES
from paramfleet_shared.tables.kernels.basics.parts import ALL_PARTS, USUAL, parts_of
from paramfleet_shared.tables.warm import chosen


def test_rows_of_float32_that_travel_as_such_need_the_usual_kernels_alone() -> None:
    assert parts_of({"float32"}, "float32") == ()
    assert parts_of((), "float32") == ()


def test_rows_of_16_bits_and_numbers_in_few_bits_need_more() -> None:
    assert parts_of({"bfloat16", "float32"}, "float32") == ("bfloat16",)
    assert parts_of((), "int8") == ("wire",)
    assert parts_of({"float16", "float32"}, "bfloat16") == (
        "wire",
        "float16",
        "coded-float16",
        "coded-float32",
    )


@pytest.mark.parametrize("wire", WIRE_DTYPES)
def test_what_a_job_needs_is_known_to_who_compiles(wire: str) -> None:
    found = parts_of(("float32", "float16", "bfloat16"), wire)

    assert set(found) <= {*ALL_PARTS}
    in_order = tuple(part for part in ALL_PARTS if part in found)
    assert chosen(found) == (in_order or (USUAL,))


def test_parts_are_chosen_by_name() -> None:
    assert chosen([]) == (USUAL,)
    assert chosen(["all"]) == ALL_PARTS
    assert chosen(["wire", "float16"]) == ("float16", "wire")


def test_a_part_that_there_is_not_is_refused_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        chosen(["float61"])

    assert "float61" in capsys.readouterr().err
