"""How a table's rows are divided into files, and how these are called."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet_pserver.checkpoint.storage import _stem, plan_chunks
from paramfleet_shared.checkpoint.manifest import SavedFile
from paramfleet_shared.values.texts import is_name


def test_blocks_share_files_until_they_are_full() -> None:
    assert plan_chunks([3, 0, 5], 4) == [[(0, 0, 3), (2, 0, 1)], [(2, 1, 4)]]


def test_a_table_without_rows_needs_no_file() -> None:
    assert plan_chunks([0, 0], 4) == []


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 12))
def test_every_row_is_in_one_file_and_only_the_last_is_not_full(
    rows: list[int], chunk_rows: int
) -> None:
    chunks = plan_chunks(rows, chunk_rows)

    held = [
        (segment.block, row)
        for chunk in chunks
        for segment in chunk
        for row in range(segment.start, segment.start + segment.num_rows)
    ]
    assert held == [(block, row) for block, num in enumerate(rows) for row in range(num)]
    sizes = [sum(segment.num_rows for segment in chunk) for chunk in chunks]
    assert all(size == chunk_rows for size in sizes[:-1])
    assert all(size > 0 for size in sizes)


NAMES = st.text("aAbB0_-. /:ü", min_size=1, max_size=80).filter(is_name)


@given(names=st.lists(NAMES, min_size=2, unique=True))
def test_every_name_of_a_table_makes_a_harmless_file_name_of_its_own(names: list[str]) -> None:
    stems = [_stem(name) for name in names]

    # Also where case counts for nothing.
    assert len({stem.lower() for stem in stems}) == len(names)
    for stem in stems:
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,80}", stem)
        assert saved_as(f"{stem}.server0.00000.safetensors").table == "t"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "a/b", "a\\b", "a\x00b", "a..b", "a\nb", "-rf", "x" * 201],
)
def test_a_manifest_names_no_file_that_no_save_would_have_made(name: str) -> None:
    with pytest.raises(ValueError, match="leads out of the folder"):
        saved_as(name)


def saved_as(name: str) -> SavedFile:
    return SavedFile.from_wire(
        {"name": name, "sha256": "", "bytes": 0, "rows": 0, "table": "t", "kind": "dense"}
    )
