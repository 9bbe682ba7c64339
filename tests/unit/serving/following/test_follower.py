"""What is served follows its folder, and is never anything but one version of it."""

import asyncio
import shutil
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from tests.unit.serving.streams import UNIVERSE, USERS, WORDS, Served, Stream, now, until

from paramfleet_serving.following.follower import Follower, FollowRules
from paramfleet_serving.measures import Measures
from paramfleet_serving.store.model import Model
from paramfleet_shared.deltas.records import Change, OpenedBase, StreamTable, TableChange
from paramfleet_shared.errors.serving import NumberNotKeptError
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry
from paramfleet_shared.testing.patience import LATE_S


async def test_changes_are_served_one_after_the_other(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder)
    await served.reach(0)
    await served.agrees(stream.reference)

    for _ in range(5):
        await served.reach(stream.publish())
        await served.agrees(stream.reference)


async def test_it_begins_at_the_newest_base_and_what_is_behind(
    stream: Stream, serve: Any
) -> None:
    for _ in range(3):
        stream.publish()
    stream.writer.compact()
    last = [stream.publish() for _ in range(2)][-1]

    served = await serve(stream.folder)

    await served.reach(last)
    assert served.server.follower.served.base_number == 3
    await served.agrees(stream.reference)


async def test_a_stream_at_an_address_is_followed(tmp_path: Path, serve: Any) -> None:
    stream = Stream(place_of(f"memory://serving{tmp_path}"))
    stream.begin()
    served = await serve(stream.folder)
    await served.reach(0)

    for _ in range(3):
        await served.reach(stream.publish())
        await served.agrees(stream.reference)
    stream.begin()
    await served.reach(0, stream.identity)
    await served.agrees(stream.reference)


async def test_a_server_may_be_there_before_its_stream(tmp_path: Path, serve: Any) -> None:
    served = await serve(tmp_path / "later")
    status, answer = await served.ask("/v1/version")
    assert (status, answer["error"]["code"]) == (503, "unavailable.no_version")
    ready, _ = await served.ask("/readyz")
    assert ready == 503

    stream = Stream(tmp_path / "later")
    stream.begin()

    await served.reach(0)
    await served.agrees(stream.reference)


async def test_a_lookup_sees_one_version_whatever_happens(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder)
    await served.reach(0)
    ids = UNIVERSE[:40]

    def change(number: int) -> Change:
        parts = {
            table.name: TableChange(
                ids, np.full((40, table.dim), number, np.float32), np.empty(0, np.int64)
            )
            for table in (WORDS, USERS)
        }
        return Change(float(number), parts, {})

    async def write() -> None:
        for number in range(1, 13):
            await asyncio.to_thread(stream.publish, change(number))
            if number % 4 == 0:
                await asyncio.to_thread(stream.writer.compact)

    asked = {"tables": {name: np.tile(ids, 300).tolist() for name in ("words", "users")}}
    writing = asyncio.get_running_loop().create_task(write())
    seen: set[int] = set()
    while not (writing.done() and max(seen, default=0) == 12):
        status, answer = await served.ask("/v1/lookup", asked)
        assert status == 200
        number = answer["version"]["number"]
        seen.add(number)
        values = {value for rows in answer["tables"].values() for row in rows for value in row}
        assert number == 0 or values == {float(number)}
    await writing
    assert len(seen) > 1


async def test_a_rollback_is_the_former_version_to_the_bit(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder)
    for number in range(1, 7):
        stream.publish()
        if number == 3:
            stream.writer.compact()
    await served.reach(6)

    for number in (5, 2, 0, 6, 4):
        status, answer = await served.ask("/v1/rollback", {"number": number})
        assert (status, answer["version"]["number"]) == (200, number)
        await served.agrees(stream.history[number])

    stream.publish()
    await asyncio.sleep(0.1)
    _, answer = await served.ask("/v1/version")
    assert (answer["version"]["number"], answer["pinned"]) == (4, 4)
    await served.ask("/v1/follow", {})
    await served.reach(7)
    await served.agrees(stream.reference)


async def test_a_rollback_may_name_the_stream(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder)
    await served.reach(stream.publish())
    former = stream.identity
    stream.begin()
    stream.publish()
    await served.reach(stream.publish(), stream.identity)

    asked = {"number": 1, "stream": former}
    status, answer = await served.ask("/v1/rollback", asked)
    assert (status, answer["error"]["facts"]["stream"]) == (409, former)
    assert f"the folder has stream {stream.identity}" in answer["error"]["message"]
    status, answer = await served.ask("/v1/rollback", {"number": 1, "stream": 7})
    assert (status, answer["error"]["message"]) == (400, "key 'stream': must be a text")
    asked["stream"] = stream.identity
    status, answer = await served.ask("/v1/rollback", asked)
    assert (status, answer["version"]["stream"]) == (200, stream.identity)
    await served.agrees(stream.history[1])


async def test_follow_ends_a_rollback_that_is_being_loaded(
    stream: Stream, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve(stream.folder)
    await served.reach(stream.publish())
    follower, loading, may_go_on = served.server.follower, Event(), Event()
    of_base = Model.of_base

    def waiting(base: OpenedBase) -> Model:
        loading.set()
        assert may_go_on.wait(LATE_S)
        return of_base(base)

    monkeypatch.setattr(Model, "of_base", waiting)
    rolling = asyncio.get_running_loop().create_task(follower.roll_back(0))
    await until(loading.is_set)
    follower.follow()
    may_go_on.set()

    with pytest.raises(NumberNotKeptError, match="follow"):
        await rolling
    await served.reach(stream.publish())
    assert follower.pinned is None
    await served.agrees(stream.reference)


async def test_the_end_is_not_lost_where_a_rollback_begins(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder)
    await served.reach(stream.publish())
    follower = Follower(
        served.server.follower.source,
        rules=FollowRules(memory_bytes=1 << 20, cache_dir=stream.folder),
        clock=SystemClock(),
        measures=Measures(MetricRegistry()),
    )
    loop = asyncio.get_running_loop()
    running = loop.create_task(follower.run())
    await until(lambda: follower._served is not None and follower.served.number == 1)

    rolling = loop.create_task(follower.roll_back(0))
    await asyncio.sleep(0)  # it interrupts what follows, and hasn't come further
    running.cancel()

    await asyncio.wait([running], timeout=LATE_S)
    assert running.cancelled()
    assert (await rolling).number == 0


async def test_admins_steer_however_many_lookups_are_in_work(
    stream: Stream, serve: Any
) -> None:
    served = await serve(stream.folder, max_requests=1)
    await served.reach(stream.publish())

    with served.server.api.in_work():
        assert (await served.ask("/v1/version"))[0] == 503
        assert (await served.ask("/v1/rollback", {"number": 0}))[0] == 200
        assert (await served.ask("/v1/follow", {}))[0] == 200
    await served.reach(1)


async def test_what_is_not_kept_is_not_rolled_back_to(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder)
    stream.publish()
    await served.reach(1)

    status, answer = await served.ask("/v1/rollback", {"number": 2})

    assert (status, answer["error"]["code"]) == (409, "contract.number_not_kept")
    await served.reach(stream.publish())
    await served.agrees(stream.reference)


async def test_another_stream_takes_the_place_of_what_is_served(
    stream: Stream, serve: Any
) -> None:
    served = await serve(stream.folder)
    await served.reach(stream.publish())
    first = served.server.follower.served.stream

    stream.begin(50)
    last = stream.publish()

    await until(lambda: served.server.follower.served.stream != first)
    await served.reach(last)
    await served.agrees(stream.reference)


async def test_other_tables_are_refused_and_what_is_served_stays(
    stream: Stream, serve: Any
) -> None:
    served = await serve(stream.folder)
    await served.reach(0)
    before = stream.reference.copy()

    stream.begin(tables=(WORDS, StreamTable(name="users", dim=3)))

    trouble = await trouble_of(served)
    assert trouble["code"] == "integrity.other_tables"
    assert "3 wide, not 2" in trouble["message"]
    await served.agrees(before)
    stream.begin()
    await served.reach(0, stream.identity)
    await served.agrees(stream.reference)


async def test_other_tables_are_known_before_rows_are_read(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder)
    await served.reach(0)
    other = Stream(stream.folder.with_name("other"))
    other.begin(tables=(WORDS, StreamTable(name="users", dim=3)))
    shutil.copytree(other.folder / other.identity, stream.folder / other.identity)
    for rows in (stream.folder / other.identity).glob("base-*/rows.*"):
        rows.unlink()  # who looks for them finds damage

    shutil.copy(other.folder / "stream.json", stream.folder)

    assert (await trouble_of(served))["code"] == "integrity.other_tables"


async def test_other_tables_are_taken_where_that_is_wanted(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder, accept_other_tables=True)
    await served.reach(0)

    stream.begin(tables=(StreamTable(name="users", dim=3),))

    await served.reach(0, stream.identity)
    await served.agrees(stream.reference)


@pytest.mark.parametrize("harm", ["torn", "gone"])
async def test_a_damaged_change_is_named_and_a_base_behind_it_leads_on(
    stream: Stream, serve: Any, harm: str
) -> None:
    before = stream.reference.copy()
    stream.publish()
    file = stream.folder / stream.identity / "delta-000000000001.safetensors"
    content = file.read_bytes()
    file.unlink()
    if harm == "torn":
        file.write_bytes(content[:-5])
    stream.publish()
    served = await serve(stream.folder)

    trouble = await trouble_of(served)

    assert trouble["code"].startswith("integrity.change")
    await served.reach(0)
    await served.agrees(before)
    _, text = await metrics_of(served)
    assert f'paramfleet_serving_follow_errors_total{{code="{trouble["code"]}"}}' in text
    file.write_bytes(content)
    await served.reach(2)
    await served.agrees(stream.reference)


async def test_a_gap_is_passed_by_a_base_behind_it(stream: Stream, serve: Any) -> None:
    stream.publish()
    served = await serve(stream.folder)
    await served.reach(1)
    folder = stream.folder / served.server.follower.served.stream
    await served.ask("/v1/rollback", {"number": 1})
    stream.publish()
    stream.publish()
    stream.writer.compact()
    (folder / "delta-000000000002.safetensors").unlink()

    await served.ask("/v1/follow", {})

    await served.reach(3)
    assert served.server.follower.served.base_number == 3
    await served.agrees(stream.reference)


async def test_an_older_base_is_taken_where_the_newest_is_damaged(
    stream: Stream, serve: Any
) -> None:
    for _ in range(3):
        stream.publish()
    stream.writer.compact()
    last = stream.publish()
    for file in (stream.folder / stream.identity).glob("base-000000000003/rows.*"):
        file.write_bytes(file.read_bytes()[:-1] + b"\x00")

    served = await serve(stream.folder)

    await served.reach(last)
    assert served.server.follower.served.base_number == 0
    await served.agrees(stream.reference)


async def test_a_damaged_base_of_another_stream_is_named(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder)
    await served.reach(0)
    before = stream.reference.copy()
    other = Stream(stream.folder.with_name("other"), seed=9)
    other.begin(50)
    shutil.copytree(other.folder / other.identity, stream.folder / other.identity)
    (file,) = (stream.folder / other.identity).glob("base-*/rows.words.*")
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    shutil.copy(other.folder / "stream.json", stream.folder)

    trouble = await trouble_of(served)

    assert trouble["code"] == "integrity.base_damaged"
    await served.agrees(before)
    file.write_bytes(content)
    await served.reach(0, other.identity)
    await served.agrees(other.reference)


@pytest.mark.parametrize("compacts", [True, False])
async def test_memory_is_bounded(
    stream: Stream, serve: Any, tmp_path: Path, compacts: bool
) -> None:
    served = await serve(stream.folder, memory=1 << 16, cache_dir=str(tmp_path))
    await served.reach(0)
    bases = set()

    for number in range(1, 40):
        stream.publish(stream.change(300))
        if compacts and number % 10 == 0:
            stream.writer.compact()
        await served.reach(number)
        model = served.server.follower.served
        bases.add(model.base_number)
        assert model.overlay_bytes < (1 << 16) + 60_000
    await served.agrees(stream.reference)
    assert len(bases) > 1
    assert [path.name for path in tmp_path.iterdir()] == ["stream"]  # noqa: ASYNC240 (a few)


async def test_without_room_for_a_base_no_further_change_is_applied(
    stream: Stream, serve: Any, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    served = await serve(stream.folder, memory=1 << 16, cache_dir=str(cache))
    last = [stream.publish(stream.change(300)) for _ in range(10)][-1]

    trouble = await trouble_of(served)

    assert "cache" in trouble["message"]
    number = served.server.follower.served.number
    assert number < last
    await served.agrees(stream.history[number])
    cache.mkdir()
    await served.reach(last)
    await served.agrees(stream.reference)


async def test_a_moment_without_changes_makes_it_younger(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder)
    await served.reach(0)
    moment = served.server.follower.served.moment

    stream.writer.touch(moment + 5.0)

    await until(lambda: served.server.follower.served.moment == moment + 5.0)
    assert served.server.follower.served.number == 0


async def test_a_moment_in_the_future_is_told(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder)
    await served.reach(0)
    _, answer = await served.ask("/v1/version")
    assert answer["clock_skew_s"] == 0

    stream.writer.touch(now() + 3600.0)

    await until(lambda: served.server.api.facts()["clock_skew_s"] > 3500)
    async with asyncio.timeout(LATE_S):
        while skew_in((await metrics_of(served))[1]) < 3500:
            pass


def skew_in(text: str) -> float:
    (line,) = (each for each in text.splitlines() if each.startswith(SKEW))
    return float(line.split()[1])


SKEW = "paramfleet_serving_clock_skew_seconds "


async def test_an_error_that_nobody_planned_is_noted_and_what_is_served_stays(
    stream: Stream, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve(stream.folder)
    await served.reach(0)
    before = stream.reference.copy()
    with monkeypatch.context() as patch:
        patch.setattr(Model, "of_base", no_memory)
        stream.begin(50)

        trouble = await trouble_of(served)

        assert (trouble["code"], "MemoryError" in trouble["message"]) == ("internal", True)
        await served.agrees(before)
    await served.reach(0, stream.identity)
    await served.agrees(stream.reference)


def no_memory(base: object) -> Model:
    """Stand where a base gets no memory.

    Raises:
        MemoryError: always.
    """
    raise MemoryError(str(type(base)))


async def trouble_of(served: Served) -> Any:
    """Wait until something is wrong, and return what."""
    await until(lambda: served.server.follower.trouble is not None)
    return served.server.follower.trouble


async def metrics_of(served: Served) -> tuple[int, str]:
    async with served.http.get(served.url + "/metrics") as got:
        return got.status, await got.text()
