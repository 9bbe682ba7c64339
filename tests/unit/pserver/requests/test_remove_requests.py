"""What a request to remove rows may say."""

from typing import Any

import numpy as np
import pytest

from paramfleet_pserver.requests.row_requests import remove_request
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.served import UnknownTableError
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.rowstore import RowShapeError
from paramfleet_shared.tables.spec import TableSpec

SHARDS = 4
_ROUTED = route(np.array([3, 8, 5]), SHARDS)
IDS, BOUNDS = _ROUTED.ids, _ROUTED.offsets
FIELDS = {"rank": 2, "incarnation": 3, "sequence": 4, "step": 5, "table": "rows"}


@pytest.fixture(scope="module")
def store() -> TableStore:
    made = TableStore(shards=range(SHARDS), num_shards=SHARDS, num_owners=2)
    specs = (
        TableSpec(name="rows", kind="sparse", dim=2, num_shards=SHARDS),
        TableSpec(name="flat", kind="dense", size=8, num_shards=SHARDS),
    )
    made.put(made.build(spec) for spec in specs)
    return made


def message(*, ids: Any = IDS, offsets: Any = BOUNDS, **fields: Any) -> Message:
    tensors = {"0.ids": np.asarray(ids), "0.offsets": np.asarray(offsets)}
    return Message(fields={**FIELDS, **fields}, tensors=tensors)


def test_a_request_says_whose_it_is_and_which_rows_go(store: TableStore) -> None:
    request = remove_request(message(), store)

    assert (request.rank, request.step, request.table) == (2, 5, store.find("rows"))
    assert request.identity == (2, 3, 4)
    np.testing.assert_array_equal(request.rows.ids, IDS)
    np.testing.assert_array_equal(request.rows.offsets, BOUNDS)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"table": "flat"}, MalformedMessageError, "must name a sparse table"),
        ({"table": "rose"}, UnknownTableError, "rose"),
        ({"rank": -1}, MalformedMessageError, "'rank'"),
        ({"incarnation": None}, MalformedMessageError, "'incarnation'"),
        ({"sequence": 0}, MalformedMessageError, "must be a whole number >= 1"),
        ({"step": "now"}, MalformedMessageError, "'step'"),
        ({"ids": IDS.astype(np.int32)}, RowShapeError, "int64"),
        ({"ids": IDS.reshape(1, 3)}, RowShapeError, r"\[any\]"),
        ({"offsets": [0, 1, 1, 4, 4]}, MalformedMessageError, "must rise from 0"),
        ({"offsets": [0, 3]}, RowShapeError, r"\[5\]"),
    ],
)
def test_what_can_not_be_removed_is_refused(
    store: TableStore, change: dict[str, Any], error: type[FleetError], says: str
) -> None:
    with pytest.raises(error, match=says):
        remove_request(message(**change), store)


def test_ids_that_are_missing_are_named(store: TableStore) -> None:
    with pytest.raises(MalformedMessageError, match=r"'0\.offsets'"):
        remove_request(Message(fields=FIELDS), store)
