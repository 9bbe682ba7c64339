"""Whatever is sent is answered with rows, or with an error that names what was wrong."""

import json
import random
from typing import Any

import numpy as np
import pytest
from tests.unit.serving.streams import UNIVERSE, Stream

from paramfleet_serving.api.answering import error_answer
from paramfleet_serving.api.reading import JSON, RAW, check_size, read_lookup
from paramfleet_serving.store.model import Model
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.serving import LookupRequestError, LookupTooLargeError
from paramfleet_shared.files.tensorfile import tensor_pieces

SEED, MANY, FEW = 5, 10_000, 200

VALUES: list[Any] = [
    None,
    True,
    -1,
    0.5,
    "words",
    [],
    {},
    [[]],
    1 << 70,
    [1 << 63],
    ["1"],
    "\x00",
]
GOOD = {
    JSON: [
        b'{"tables": {"words": [1, 2, 3], "users": []}}',
        b'{"tables": {"users": [-9223372036854775808, 9223372036854775807]}}',
    ],
    RAW: [
        b"".join(
            tensor_pieces({"words": UNIVERSE[:6].reshape(2, 3), "users": UNIVERSE[:0]}, {})
        ),
        b"".join(tensor_pieces({"users": np.array(5)}, {"a": "b"})),
    ],
}


def malformed(numbers: random.Random) -> tuple[bytes, str]:
    """Return a body that may be wrong in some way, and of which kind it says to be."""
    kind = numbers.choice([JSON, RAW])
    body = bytearray(numbers.choice(GOOD[numbers.choice([kind, kind, kind, JSON, RAW])]))
    way = numbers.randrange(5)
    if way == 0:
        for _ in range(numbers.randint(1, 2)):
            body[numbers.randrange(len(body))] = numbers.randrange(256)
    elif way == 1:
        del body[numbers.randrange(len(body)) :]
    elif way == 2:
        start = numbers.randrange(len(body))
        body[start : start + numbers.randrange(9)] = numbers.randbytes(numbers.randrange(9))
    elif way == 3:
        document: Any = numbers.choice(VALUES)
        for name in numbers.choices(["tables", "words", "users", "x"], k=numbers.randint(0, 3)):
            document = {name: document}
        body = bytearray(json.dumps(document).encode())
    else:
        header = json.dumps(
            {
                numbers.choice(["words", "", "\x00", "__metadata__"]): {
                    "dtype": numbers.choice(["I64", "F32", "U64", 5]),
                    "shape": numbers.choice([[1], [-1], [1 << 62], [2, 1], "x", [0.5], []]),
                    "data_offsets": numbers.choice(
                        [[0, 8], [8, 0], [-8, 0], [0], [0, 1 << 63]]
                    ),
                }
            }
        ).encode()
        body = bytearray(len(header).to_bytes(8, "little") + header + b"\x00" * 8)
    return bytes(body), kind


def test_ten_thousand_bodies_are_read_or_refused_by_name(stream: Stream) -> None:
    numbers = random.Random(SEED)
    model = Model.of_base(StreamReader(stream.folder).base())
    outcomes: dict[int, int] = {}

    for _ in range(MANY):
        body, kind = malformed(numbers)
        try:
            asked = read_lookup(body, kind, max_ids=1000)
            with model.view() as view:
                widths = {name: view.table(name).dim for name in asked.ids}
                check_size(asked, widths, max_bytes=10_000)
                for name, ids in asked.ids.items():
                    assert view.lookup(name, ids).shape == (len(ids), widths[name])
            status = 200
        except FleetError as error:
            answer = error_answer(error)
            status = answer.status
            assert isinstance(answer.body, bytes)
            assert json.loads(answer.body)["error"]["message"]
        outcomes[status] = outcomes.get(status, 0) + 1

    assert outcomes.keys() <= {200, 400, 404, 413}
    assert min(outcomes[200], outcomes[400], outcomes[404]) > 20


def test_too_many_ids_are_refused_before_one_is_looked_at() -> None:
    body = json.dumps({"tables": {"words": [1] * 8 + ["x"], "users": [2] * 2}}).encode()

    with pytest.raises(LookupTooLargeError, match="11 ids"):
        read_lookup(body, JSON, max_ids=10)


@pytest.mark.parametrize("shape", [[0, 2**53], [1] * 32, [2**53, 0]])
def test_a_shape_that_no_array_of_rows_has_is_named(shape: list[int]) -> None:
    count = int(shape == [1] * 32)
    header = {"wide": {"dtype": "I64", "shape": shape, "data_offsets": [0, 8 * count]}}
    text = json.dumps(header).encode()
    body = len(text).to_bytes(8, "little") + text + bytes(8 * count)

    asked = read_lookup(body, RAW, max_ids=10)

    with pytest.raises(LookupRequestError, match=r"ids of table 'wide': (shape|must have)"):
        check_size(asked, {"wide": 256}, max_bytes=1 << 20)


async def test_the_server_answers_all_of_them(stream: Stream, serve: Any) -> None:
    numbers = random.Random(SEED)
    served = await serve(stream.folder)
    await served.reach(0)

    for _ in range(FEW):
        body, kind = malformed(numbers)
        headers = {"Content-Type": kind}
        url = f"{served.url}/v1/lookup"
        async with served.http.post(url, data=body, headers=headers) as got:
            assert got.status in {200, 400, 404, 413}
            if got.status != 200:
                assert (await got.json())["error"]["message"]
    await served.agrees(stream.reference)
