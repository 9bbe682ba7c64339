"""Lookups in both forms, what else is asked, and what is refused by name."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.serving.streams import UNIVERSE, Served, Stream, until

from paramfleet_serving.api import answering
from paramfleet_serving.api import routes as api_routes
from paramfleet_shared.deltas.records import StreamTable
from paramfleet_shared.files.tensorfile import parse_tensors, tensor_pieces

RAW = "application/x-safetensors"


def raw(tensors: dict[str, NDArray[Any]]) -> bytes:
    return b"".join(tensor_pieces(tensors, {}))


async def post(
    served: Served, body: bytes, kind: str = RAW, **headers: str
) -> tuple[int, Any, bytes]:
    url = f"{served.url}/v1/lookup"
    headers = {"Content-Type": kind, **headers}
    async with served.http.post(url, data=body, headers=headers) as got:
        return got.status, got.headers, await got.read()


async def test_the_raw_form_has_any_shape(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder)
    await served.reach(stream.publish())
    asked = {
        "words": UNIVERSE[:24].reshape(2, 3, 4),
        "users": np.array(7, np.int64),
    }

    status, headers, body = await post(served, raw(asked))

    assert status == 200
    found = parse_tensors(body).tensors
    for name, ids in asked.items():
        rows = stream.reference.lookup(name, ids.reshape(-1))
        assert np.array_equal(found[name], rows.reshape(*ids.shape, -1))
    assert headers["Paramfleet-Number"] == "1"
    assert headers["Paramfleet-Stream"] == stream.identity
    assert 0 <= float(headers["Paramfleet-Age"]) < 60


async def test_long_lookups_are_done_in_parts(
    stream: Stream, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_routes, "PART_IDS", 7)
    monkeypatch.setattr(answering, "_PART_NUMBERS", 9)
    served = await serve(stream.folder)
    await served.reach(0)

    await served.agrees(stream.reference)
    _, _, body = await post(served, raw({"words": UNIVERSE}))

    found = parse_tensors(body).tensors["words"]
    assert np.array_equal(found, stream.reference.lookup("words", UNIVERSE))


async def test_wide_rows_are_made_json_in_parts(stream: Stream, serve: Any) -> None:
    wide = StreamTable(name="wide", dim=answering._PART_NUMBERS * 2 + 5, zero_unknown=True)
    ids = np.arange(3)
    rows = np.random.default_rng(1).normal(size=(3, wide.dim)).astype(np.float32)
    stream.writer.begin([wide], [("wide", ids, rows)], {}, moment=0.0)
    served = await serve(stream.folder)
    await served.reach(0)

    assert np.array_equal(await served.rows("wide", ids), rows)


async def test_updates_do_not_wait_for_an_answer_that_is_read_slowly(
    stream: Stream, serve: Any
) -> None:
    served = await serve(stream.folder)
    await served.reach(0)
    body = json.dumps({"tables": {"words": np.tile(UNIVERSE, 150).tolist()}}).encode()
    url, headers = f"{served.url}/v1/lookup", {"Content-Type": "application/json"}

    async with served.http.post(url, data=body, headers=headers) as got:
        assert got.status == 200  # it has begun, and the rest isn't read as yet
        for _ in range(3):
            await served.reach(stream.publish())
        answer = await got.json()

    assert answer["version"]["number"] == 0
    expected = np.tile(stream.history[0].lookup("words", UNIVERSE), (150, 1))
    assert np.array_equal(np.array(answer["tables"]["words"], np.float32), expected)


async def test_an_answer_in_json_takes_little_memory_and_no_turn_of_the_loop() -> None:
    table = np.random.default_rng(0).normal(size=(20_000, 32)).astype(np.float32)
    pieces = answering._json_pieces({"age_s": 0.0}, {"a": table, "b": table[:0]})
    longest, text = 0, ""

    for piece in pieces:
        longest, text = max(longest, len(piece)), text + piece

    assert longest < 28 * answering._PART_NUMBERS
    found = json.loads(text)["tables"]
    assert np.array_equal(np.array(found["a"], np.float32), table)
    assert found["b"] == []


async def test_an_answer_in_json_is_bounded_by_its_text(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder, max_answer_bytes=1024)
    await served.reach(0)

    status, answer = await served.ask("/v1/lookup", {"tables": {"words": [1] * 10}})

    assert (status, answer["error"]["code"]) == (413, "contract.lookup_too_large")
    assert (await post(served, raw({"words": UNIVERSE[:10]})))[0] == 200


async def test_dense_parameters_are_made_bytes_once(
    stream: Stream, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(tensors: Any) -> bytearray:
        made.append(len(tensors))
        return answering.tensor_bytes(tensors)

    monkeypatch.setattr(api_routes, "tensor_bytes", counted)
    served = await serve(stream.folder)
    await served.reach(0)

    async def dense() -> bytes:
        async with served.http.get(f"{served.url}/v1/dense") as got:
            return bytes(await got.read())

    bodies = await asyncio.gather(*(dense() for _ in range(8)))

    assert (len(made), len(set(bodies))) == (1, 1)
    while stream.reference.dense["bias"] is stream.history[0].dense["bias"]:
        await served.reach(stream.publish())
    assert await dense() != bodies[0]
    assert len(made) == 2


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "body: is no JSON"),
        (b"[1]", 400, "must be a JSON object"),
        (b"{}", 400, "key 'tables': must be given, as an object"),
        (b'{"tables": {}, "table": 1}', 400, "unknown key 'table'"),
        (b'{"tables": {"words": 1}}', 400, "ids of table 'words': must be a list"),
        (b'{"tables": {"words": [1.0]}}', 400, "[0] must be a whole number"),
        (b'{"tables": {"words": [1, true]}}', 400, "[1] must be a whole number"),
        (b'{"tables": {"words": [9223372036854775808]}}', 400, "of 64 bits"),
        (b'{"tables": {"word": [1]}}', 404, "there are: users, words"),
        (b"[" * 5000, 400, "body: is no JSON"),
        (json.dumps({"tables": {"words": [1] * 101}}).encode(), 413, "101 ids"),
    ],
)
async def test_malformed_json_is_named(
    stream: Stream, serve: Any, body: bytes, status: int, words: str
) -> None:
    served = await serve(stream.folder, max_ids=100)
    await served.reach(0)

    found, _, answer = await post(served, body, "application/json")

    assert (found, words in json.loads(answer)["error"]["message"]) == (status, True), answer


async def test_malformed_bytes_and_other_requests_are_named(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder, max_answer_bytes=1024, max_body_bytes=4096)
    await served.reach(0)
    good = raw({"words": UNIVERSE[:3]})

    for body, kind, status, words in (
        (good[:-1], RAW, 400, "is no safetensors"),
        (b"\xff" * 100, RAW, 400, "is no safetensors"),
        (raw({"words": np.ones(3, np.float32)}), RAW, 400, "must be int64, not float32"),
        (raw({"words": UNIVERSE[:65]}), RAW, 413, "1040 bytes of rows"),
        (good, "text/plain", 400, "must be application/json or"),
        (b"x" * 5000, RAW, 413, "POST /v1/lookup"),
    ):
        found, _, answer = await post(served, body, kind)
        message = json.loads(answer)["error"]["message"]
        assert (found, words in message) == (status, True), message
    for method, path, status in (
        ("GET", "/v1/lookup", 405),
        ("POST", "/v1/version", 405),
        ("GET", "/v1/nothing", 404),
    ):
        async with served.http.request(method, served.url + path) as got:
            assert (got.status, (await got.json())["error"]["code"]) == (
                status,
                "contract.lookup_request",
            )
    status, answer = await served.ask("/v1/rollback", {"number": True})
    assert (status, answer["error"]["code"]) == (400, "contract.lookup_request")


async def test_dense_parameters_come_once(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder)
    await served.reach(0)

    async def dense(known: str) -> tuple[int, str, bytes]:
        headers = {"If-None-Match": known}
        async with served.http.get(f"{served.url}/v1/dense", headers=headers) as got:
            return got.status, got.headers["ETag"], await got.read()

    status, tag, body = await dense('"another"')
    assert status == 200
    found = parse_tensors(body).tensors
    assert found.keys() == stream.reference.dense.keys()
    assert all(np.array_equal(found[n], each) for n, each in stream.reference.dense.items())
    assert (await dense(tag))[:2] == (304, tag)
    while stream.reference.dense["bias"] is stream.history[0].dense["bias"]:
        await served.reach(stream.publish())
    status, other, _ = await dense(tag)
    assert status == 200
    assert other != tag


async def test_tables_status_and_metrics_are_shown(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder)
    await served.reach(stream.publish())
    await served.rows("words", UNIVERSE[:5])

    _, answer = await served.ask("/v1/tables")
    assert [(each["name"], each["dim"]) for each in answer["tables"]] == [
        ("users", 2),
        ("words", 4),
    ]
    _, status = await served.ask("/status")
    assert status["version"]["number"] == 1
    assert status["overlay_rows"] > 0

    async def text() -> str:
        async with served.http.get(f"{served.url}/metrics") as got:
            said: str = await got.text()
            return said

    said = ""
    async with asyncio.timeout(10):
        while "paramfleet_serving_number 1.0" not in said:
            said = await text()
    for line in (
        'paramfleet_serving_lookups_total{form="json"} 1.0',
        'paramfleet_serving_rows_total{table="words"} 5.0',
        "paramfleet_serving_lookup_seconds_count 1.0",
        "paramfleet_serving_changes_total 1.0",
        "paramfleet_serving_swaps_total 1.0",
    ):
        assert line in said


async def test_further_requests_are_sent_away_while_many_are_in_work(
    stream: Stream, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_routes, "PART_IDS", 1)
    served = await serve(stream.folder, max_requests=1)
    await served.reach(0)
    long = raw({"words": np.tile(UNIVERSE, 50)})
    first = asyncio.get_running_loop().create_task(post(served, long))
    in_work = served.server.api.in_work_now
    await until(lambda: in_work() == 1)

    status, headers, body = await post(served, raw({"words": UNIVERSE}))

    assert (status, headers["Retry-After"]) == (503, "1")
    assert json.loads(body)["error"]["code"] == "unavailable.server_busy"
    assert (await first)[0] == 200
    assert (await post(served, raw({"words": UNIVERSE})))[0] == 200


async def test_a_body_that_does_not_come_is_not_waited_for(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder, body_timeout_s=0.1)
    await served.reach(0)

    async def slowly() -> Any:
        yield b"{"
        await asyncio.sleep(30)

    headers = {"Content-Type": "application/json", "Content-Length": "100"}
    url = f"{served.url}/v1/lookup"
    async with served.http.post(url, data=slowly(), headers=headers) as got:
        answer = await got.json()

    assert got.status == 408
    assert "took too long" in answer["error"]["message"]
