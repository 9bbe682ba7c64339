"""Tables that a pserver can't hold are refused with the arithmetic, before they are made."""

from typing import Any

import pytest

from paramfleet_pserver.core.limits import TableLimits, check_bytes, check_tables
from paramfleet_shared.errors.tables import TableLimitError, TableMemoryError
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.values.amounts import Memory

GB = 10**9
MEMORY = Memory(total=24 * GB, free=8 * GB)
LIMITS = TableLimits(max_tables=3, max_dim=64, memory_share=0.75)


def dense(name: str, rule: Any, size: int) -> tuple[TableSpec, int]:
    return (
        TableSpec(name=name, kind="dense", size=size, optimizer=OptimizerSpec(rule=rule)),
        size,
    )


def check(*new: tuple[TableSpec, int], num_tables: int = 0, memory: Memory = MEMORY) -> None:
    check_tables(new, num_tables=num_tables, limits=LIMITS, memory=memory)


def test_a_table_beyond_the_memory_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(TableMemoryError) as caught:
        check(dense("w", "adam", 1_000_000_000))

    assert str(caught.value).startswith(
        "table 'w': 1,000,000,000 values x (4 value + 8 adam state) bytes = 12.0 GB on this "
        "server; it has 8.0 GB free of 24.0 GB, and 6.0 GB of them stay free"
    )
    assert "PARAMFLEET_PSERVER__MEMORY_SHARE" in str(caught.value)


def test_what_stays_free_is_not_given_away() -> None:
    check(dense("w", "sgd", 500_000_000))  # all of the 2 GB
    with pytest.raises(TableMemoryError, match=r"500,000,001 values x 4 bytes = 2\.0 GB"):
        check(dense("w", "sgd", 500_000_001))


def test_tables_of_one_declaration_count_together() -> None:
    with pytest.raises(TableMemoryError, match="and 1,200,000,000 bytes of the tables before"):
        check(dense("a", "sgd", 300_000_000), dense("b", "sgd", 300_000_000))


@pytest.mark.parametrize("size", [1 << 62, (1 << 63) - 1])
def test_no_number_is_too_large_to_be_judged(size: int) -> None:
    with pytest.raises(TableMemoryError):
        check(dense("w", "adam", size))


def test_a_row_too_wide_is_refused_by_name() -> None:
    check((TableSpec(name="e", kind="sparse", dim=64), 0))
    with pytest.raises(TableLimitError, match=r"'e': dim = 2,147,483,648 .* 64: .*__MAX_DIM"):
        check((TableSpec(name="e", kind="sparse", dim=1 << 31), 0))


def test_too_many_tables_are_refused_by_name() -> None:
    new = [(TableSpec(name=f"e{i}", kind="sparse"), 0) for i in range(2)]

    check(*new, num_tables=1)
    with pytest.raises(TableLimitError, match=r"'e1': the number of tables = 4 .*__MAX_TABLES"):
        check(*new, num_tables=2)


def test_less_free_than_stays_free_leaves_nothing() -> None:
    with pytest.raises(TableMemoryError):
        check_bytes("t", "1 byte", 1, limits=LIMITS, memory=Memory(24 * GB, GB))
