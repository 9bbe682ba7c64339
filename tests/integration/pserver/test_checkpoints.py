"""A checkpoint of any number of servers loads into any other number."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_pserver.checkpoint import storage
from paramfleet_shared.checkpoint.increments import Base, Increment, RemovedIds
from paramfleet_shared.checkpoint.manifest import (
    CheckpointDamagedError,
    CheckpointWriteError,
    Manifest,
    ManifestError,
    SavedFile,
    SavedTable,
    read_part,
    write_manifest,
)
from paramfleet_shared.checkpoint.saved_rows import load_rows
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.spec import (
    InitializerSpec,
    OptimizerSpec,
    SavedTableMismatchError,
    TableMismatchError,
    TableSpec,
)
from paramfleet_shared.testing.patience import LATE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

ADAM = OptimizerSpec(rule="adam")
ROWS = TableSpec(
    name="deep/emb ü",
    kind="sparse",
    dim=4,
    seed=3,
    initializer=InitializerSpec(kind="normal"),
    optimizer=ADAM,
)
FLAT = TableSpec(name="flat", kind="dense", size=37, optimizer=ADAM)
EMPTY = TableSpec(name="empty", kind="sparse", dim=2)
IDS = list(range(0, 500, 2))


def pushed(step: int) -> dict[str, Any]:
    dice = np.random.default_rng(step)
    rows = dice.standard_normal((len(IDS), 4)).astype(np.float32)
    flat = dice.standard_normal(37).astype(np.float32)
    return {ROWS.name: (np.array(IDS, np.int64), rows), "flat": flat}


async def trained(cluster: Cluster, num_steps: int, **terms: Any) -> Worker:
    worker = cluster.worker()
    await worker.declare(ROWS, FLAT, EMPTY, **terms)
    for step in range(num_steps):
        await worker.push(pushed(step), step=step, lr=0.1)
    return worker


async def save(worker: Worker, folder: Path) -> Manifest:
    """Save on every server and write the manifest, as the client does."""
    replies = await worker.ask("save", dirname=str(folder))
    manifest = Manifest(
        tables=tuple(SavedTable.from_wire(wire) for wire in replies[0].fields["tables"]),
        files=tuple(
            SavedFile.from_wire(wire) for reply in replies for wire in reply.fields["files"]
        ),
    )
    write_manifest(folder, manifest)
    return manifest


async def values_of(worker: Worker) -> tuple[np.ndarray, np.ndarray]:
    return await worker.pull(ROWS.name, [*IDS, 1, 3]), await worker.pull("flat")


@pytest.mark.parametrize(("num_servers", "num_shards"), [(1, 8), (3, 8), (2, 5)])
async def test_saved_on_two_servers_training_goes_on_on_any_number(
    start_servers: Start, tmp_path: Path, num_servers: int, num_shards: int
) -> None:
    before = await trained(await start_servers(2), 2)
    manifest = await save(before, tmp_path)
    await before.push(pushed(2), step=2, lr=0.1)
    expected = await values_of(before)

    cluster = await start_servers(num_servers, num_shards=num_shards)
    after = cluster.worker()
    loads = await after.ask("load", dirname=str(tmp_path), timeout_s=LATE_S)
    specs = [replace(spec, num_shards=num_shards) for spec in (ROWS, FLAT, EMPTY)]
    declared = await after.declare(*specs)
    await after.push(pushed(2), step=0, lr=0.1)

    got = await values_of(after)
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_array_equal(got[1], expected[1])
    assert sum(reply.fields["rows"][ROWS.name] for reply in loads) == len(IDS)
    assert all(r.fields["loaded"] == [ROWS.name, "flat", "empty"] for r in declared)
    assert all(not r.fields["created"] for r in declared)
    assert sum(file.rows for file in manifest.files) == len(IDS) + 37
    assert {file.kind for file in manifest.files} == {"sparse", "dense"}


async def test_a_load_takes_the_place_of_what_was_trained(
    start_servers: Start, tmp_path: Path
) -> None:
    worker = await trained(await start_servers(2), 1)
    await save(worker, tmp_path)
    expected = await values_of(worker)
    await worker.push(pushed(1), step=1, lr=0.1)

    await worker.ask("load", dirname=str(tmp_path))

    got = await values_of(worker)
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_array_equal(got[1], expected[1])


async def test_an_id_in_the_files_of_two_servers_is_refused_by_the_file_and_nothing_changes(
    start_servers: Start, tmp_path: Path
) -> None:
    before = await trained(await start_servers(2), 2)
    manifest = await save(before, tmp_path)
    name = "copy.safetensors"
    *others, last = manifest.files
    (twice, *_) = [file for file in others if file.table == ROWS.name]
    shutil.copy(tmp_path / twice.name, tmp_path / name)
    write_manifest(
        tmp_path, replace(manifest, files=(*others, last, replace(twice, name=name)))
    )
    await before.push(pushed(2), step=2, lr=0.1)
    expected = await values_of(before)

    with pytest.raises(CheckpointDamagedError) as caught:
        await before.ask("load", dirname=str(tmp_path))

    assert caught.value.path == str(tmp_path / name)
    assert f"of table {ROWS.name!r} is in another file, too" in caught.value.reason
    got = await values_of(before)
    np.testing.assert_array_equal(got[1], expected[1])


async def test_negative_ids_are_refused_where_the_worker_says_so(
    start_servers: Start, tmp_path: Path
) -> None:
    saver = (await start_servers(1)).worker()
    await saver.declare(ROWS)
    await saver.push({ROWS.name: (np.array([-4, 2]), np.ones((2, 4), np.float32))}, lr=0.1)
    manifest = await save(saver, tmp_path)

    with pytest.raises(CheckpointDamagedError, match="id -4 of table") as caught:
        await saver.ask("load", dirname=str(tmp_path), not_negative=[ROWS.name])
    with pytest.raises(MalformedMessageError, match="not_negative"):
        await saver.ask("load", dirname=str(tmp_path), not_negative=[1])

    assert caught.value.path == str(tmp_path / manifest.files[0].name)
    (loaded,) = await saver.ask("load", dirname=str(tmp_path), not_negative=["other"])
    assert loaded.fields["rows"] == {ROWS.name: 2}


async def test_sync_steps_count_from_zero_again_after_a_load(
    start_servers: Start, tmp_path: Path
) -> None:
    await save(await trained(await start_servers(1), 3), tmp_path)

    worker = (await start_servers(1)).worker()
    await worker.ask("load", dirname=str(tmp_path))
    await worker.declare(ROWS, FLAT, EMPTY, mode="sync")
    (reply,) = await worker.push(pushed(3), step=0, lr=0.1)

    assert reply.fields["versions"][0] <= 1
    await worker.pull("flat", min_version=1)
    (saved,) = await worker.ask("save", dirname=str(tmp_path / "again"))
    versions = {wire["name"]: wire["version"] for wire in saved.fields["tables"]}
    assert versions["flat"] == 4


async def test_assigned_values_do_not_replace_loaded_ones(
    start_servers: Start, tmp_path: Path
) -> None:
    await save(await trained(await start_servers(1), 1), tmp_path)
    worker = (await start_servers(1)).worker()
    await worker.ask("load", dirname=str(tmp_path))
    await worker.declare(FLAT)
    fields = {"rank": 0, "incarnation": 1, "table": "flat", "only_if_new": True}

    message = Message(fields=fields, tensors={"rows": np.zeros(37, np.float32)})

    given = await worker.call(0, "assign", message)

    assert given.fields["assigned"] is False


@pytest.mark.parametrize("load_first", [True, False])
async def test_geo_workers_hear_of_loaded_rows(
    start_servers: Start, tmp_path: Path, load_first: bool
) -> None:
    plain = OptimizerSpec(rule="sum")
    rows = replace(ROWS, optimizer=plain)
    saver = (await start_servers(2)).worker()
    await saver.declare(rows)
    ids = np.array(IDS, np.int64)
    await saver.push({ROWS.name: (ids, np.ones((len(IDS), 4), np.float32))})
    await save(saver, tmp_path)
    expected = await saver.pull(ROWS.name, IDS)
    nothing = {ROWS.name: (np.empty(0, np.int64), np.empty((0, 4), np.float32))}

    cluster = await start_servers(3)
    ada, bob = cluster.worker(0), cluster.worker(1)
    if load_first:
        await ada.ask("load", dirname=str(tmp_path))
    for worker in (ada, bob):
        await worker.declare(rows, mode="geo", worker_num=2)
    if not load_first:
        await ada.ask("load", dirname=str(tmp_path))

    for worker in (ada, bob):
        received = (await worker.exchange(nothing))[ROWS.name].rows
        np.testing.assert_array_equal([received[row] for row in IDS], expected)
        assert (await worker.exchange(nothing))[ROWS.name].rows == {}


async def test_an_acknowledgement_from_before_a_load_forgets_no_loaded_row(
    start_servers: Start, tmp_path: Path
) -> None:
    rows = replace(ROWS, optimizer=OptimizerSpec(rule="sum"))
    nothing = {ROWS.name: (np.empty(0, np.int64), np.empty((0, 4), np.float32))}
    cluster = await start_servers(1)
    ada, bob = cluster.worker(0), cluster.worker(1)
    for worker in (ada, bob):
        await worker.declare(rows, mode="geo", worker_num=2)
    ones = np.ones((len(IDS), 4), np.float32)
    await ada.exchange({ROWS.name: (np.array(IDS, np.int64), ones)})
    await save(ada, tmp_path)
    for _ in range(2):
        await bob.exchange(nothing)
    acks = dict(bob.acks)

    await ada.ask("load", dirname=str(tmp_path))

    for _ in range(4):  # its answers are lost: it goes on acknowledging the old one
        bob.acks.update(acks)
        received = (await bob.exchange(nothing))[ROWS.name].rows
        assert sorted(received) == sorted(IDS)


RULES = {
    rule: OptimizerSpec(rule=rule, initial_accumulator_value=0.25 if rule == "adagrad" else 0.0)
    for rule in ("sgd", "momentum", "adagrad", "adam", "sum")
}
OTHER_RULES = [("sum", "adam"), ("adam", "sum"), ("adam", "adagrad"), ("adagrad", "momentum")]


@pytest.mark.parametrize("load_first", [True, False])
@pytest.mark.parametrize(("saved", "rule"), OTHER_RULES)
async def test_another_optimizer_takes_the_values_and_begins_anew(
    start_servers: Start, tmp_path: Path, saved: str, rule: str, *, load_first: bool
) -> None:
    before = (await start_servers(2)).worker()
    await before.declare(*(replace(t, optimizer=RULES[saved]) for t in (ROWS, FLAT)))
    for step in range(3):
        await before.push(pushed(step), step=step, lr=0.1)
    await save(before, tmp_path)
    kept = await values_of(before)
    tables = [replace(table, optimizer=RULES[rule], num_shards=5) for table in (ROWS, FLAT)]

    after = (await start_servers(3, num_shards=5)).worker()
    if load_first:
        await after.ask("load", dirname=str(tmp_path))
        shutil.rmtree(tmp_path)  # what was read is read once
    declared = await after.declare(*tables)
    if not load_first:
        replies = await after.ask("load", dirname=str(tmp_path))
        names = [ROWS.name, "flat"]
        reported = [[name, saved, rule] for name in names]
        assert [reply.fields["left_out"] for reply in replies] == [reported] * 3
    else:
        assert all(reply.fields["loaded"] == [ROWS.name, "flat"] for reply in declared)
    got = await values_of(after)
    np.testing.assert_array_equal(got[0], kept[0])
    np.testing.assert_array_equal(got[1], kept[1])

    fresh = (await start_servers(1)).worker()  # never trained, given the same values
    await fresh.declare(*(replace(table, num_shards=8) for table in tables))
    given = {"rank": 0, "incarnation": 1, "table": "flat", "only_if_new": True}
    await fresh.call(0, "assign", Message(fields=given, tensors={"rows": kept[1]}))
    await fresh.push(pushed(3), step=0, lr=0.1)
    await after.push(pushed(3), step=0, lr=0.1)
    np.testing.assert_array_equal(await after.pull("flat"), await fresh.pull("flat"))


async def test_columns_are_loaded_by_name_and_those_not_saved_begin_anew(
    start_servers: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = await trained(await start_servers(2), 2)
    manifest = await save(before, tmp_path)
    assert {file.columns for file in manifest.files} == {
        (("exp_avg", 4), ("exp_avg_sq", 4)),
        (("exp_avg", 1), ("exp_avg_sq", 1)),
    }
    files = [
        replace(file, columns=(("shows", 4), ("exp_avg_sq", 4)))
        if file.kind == "sparse"
        else file
        for file in manifest.files
    ]
    write_manifest(tmp_path, replace(manifest, files=tuple(files)))
    kept = await values_of(before)

    after = (await start_servers(1)).worker()
    await after.ask("load", dirname=str(tmp_path))
    await after.declare(ROWS, FLAT, EMPTY)
    again = await save(after, tmp_path / "again")

    got = await values_of(after)
    np.testing.assert_array_equal(got[0], kept[0])
    (record,) = [r for r in caplog.records if r.getMessage() == "pserver.columns_differ"]
    facts = {name: getattr(record, name) for name in ("table", "anew", "dropped")}
    assert facts == {"table": ROWS.name, "anew": ("exp_avg",), "dropped": ("shows",)}
    old, new = states_of(tmp_path, manifest), states_of(tmp_path / "again", again)
    assert list(old) == list(new)
    for id_, states in new.items():
        assert states[:4].tolist() == [0.0] * 4
        np.testing.assert_array_equal(states[4:], old[id_][4:])


def states_of(folder: Path, manifest: Manifest) -> dict[int, np.ndarray]:
    """Return the states of each row in the files of a checkpoint."""
    found: dict[int, np.ndarray] = {}
    for file in manifest.files:
        if file.table == ROWS.name:
            part = read_part(folder, file, ROWS)
            assert part.ids is not None
            found |= dict(zip(part.ids.tolist(), part.states, strict=True))
    return dict(sorted(found.items()))


async def test_values_kept_otherwise_are_loaded_as_they_are_kept_now(
    start_servers: Start, tmp_path: Path
) -> None:
    before = await trained(await start_servers(1), 2)
    await save(before, tmp_path)
    kept = await before.pull(ROWS.name, IDS)

    after = (await start_servers(2)).worker()
    await after.ask("load", dirname=str(tmp_path))
    await after.declare(replace(ROWS, storage="bfloat16", rounding="nearest"), FLAT)

    np.testing.assert_allclose(await after.pull(ROWS.name, IDS), kept, rtol=2**-8)


async def test_a_refused_declaration_leaves_what_was_loaded(
    start_servers: Start, tmp_path: Path
) -> None:
    before = await trained(await start_servers(1), 2)
    await save(before, tmp_path)
    kept = await values_of(before)
    after = (await start_servers(1)).worker()
    await after.ask("load", dirname=str(tmp_path))

    with pytest.raises(TableMismatchError):
        await after.declare(replace(ROWS, optimizer=RULES["sgd"]), replace(FLAT, size=38))
    await after.declare(ROWS, FLAT)

    got = await values_of(after)
    np.testing.assert_array_equal(got[0], kept[0])
    for worker in (before, after):
        await worker.push(pushed(2), step=2, lr=0.1)
    np.testing.assert_array_equal(await after.pull("flat"), await before.pull("flat"))


async def test_a_table_loaded_and_declared_otherwise_is_named(
    start_servers: Start, tmp_path: Path
) -> None:
    await save(await trained(await start_servers(1), 1), tmp_path)
    worker = (await start_servers(1)).worker()
    await worker.ask("load", dirname=str(tmp_path))

    with pytest.raises(SavedTableMismatchError, match="begin without one") as caught:
        await worker.declare(replace(ROWS, dim=5))
    assert (caught.value.field, caught.value.have, caught.value.got) == ("dim", 5, 4)
    other = (await start_servers(1)).worker()
    await other.declare(replace(FLAT, size=38))
    with pytest.raises(SavedTableMismatchError, match="the model's has 38"):
        await other.ask("load", dirname=str(tmp_path))


async def test_a_damaged_file_is_refused_and_nothing_is_loaded(
    start_servers: Start, tmp_path: Path
) -> None:
    worker = await trained(await start_servers(1), 1)
    manifest = await save(worker, tmp_path)
    await worker.push(pushed(1), step=1, lr=0.1)
    expected = await values_of(worker)
    last = tmp_path / manifest.files[-1].name
    content = last.read_bytes()

    last.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointDamagedError) as caught:
        await worker.ask("load", dirname=str(tmp_path))
    assert caught.value.path == str(last)
    last.unlink()
    with pytest.raises(CheckpointDamagedError):
        await worker.ask("load", dirname=str(tmp_path))

    got = await values_of(worker)
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_array_equal(got[1], expected[1])


async def test_a_dense_range_saved_in_many_files_goes_on_anywhere(
    start_servers: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "CHUNK_BYTES", 60)  # five values with their state
    worker = await trained(await start_servers(2), 2)
    manifest = await save(worker, tmp_path)
    assert sorted(f.rows for f in manifest.files if f.table == "flat") == [3, 4] + [5] * 6

    other = (await start_servers(3)).worker()
    await other.ask("load", dirname=str(tmp_path))
    await other.declare(ROWS, FLAT, EMPTY)

    for each in (worker, other):
        await each.push(pushed(2), step=2, lr=0.1)
    np.testing.assert_array_equal(await other.pull("flat"), await worker.pull("flat"))


async def test_a_checkpoint_that_lacks_a_part_of_a_dense_table_is_refused(
    start_servers: Start, tmp_path: Path
) -> None:
    worker = await trained(await start_servers(2), 1)
    manifest = await save(worker, tmp_path)
    lost = next(file for file in manifest.files if file.table == "flat")
    rest = tuple(file for file in manifest.files if file is not lost)
    write_manifest(tmp_path, replace(manifest, files=rest))

    with pytest.raises(ManifestError, match="lack"):
        await worker.ask("load", dirname=str(tmp_path))


async def test_a_folder_that_can_not_be_written_is_an_error(
    start_servers: Start, tmp_path: Path
) -> None:
    worker = await trained(await start_servers(1), 1)
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(CheckpointWriteError) as caught:
        await worker.ask("save", dirname=str(tmp_path / "file"))
    assert caught.value.retryable


async def test_another_manifest_than_the_one_asked_for_is_refused_and_nothing_is_loaded(
    start_servers: Start, tmp_path: Path
) -> None:
    worker = await trained(await start_servers(2), 1)
    await save(worker, tmp_path)
    await worker.push(pushed(1), step=1, lr=0.1)
    expected = await values_of(worker)
    digest = hashlib.sha256((tmp_path / "manifest.json").read_bytes()).hexdigest()

    with pytest.raises(ManifestError, match="replaced by that of another"):
        await worker.ask("load", dirname=str(tmp_path), manifest="0" * 64)
    got = await values_of(worker)
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_array_equal(got[1], expected[1])

    await worker.ask("load", dirname=str(tmp_path), manifest=digest)
    answers = await worker.declare(ROWS, FLAT, EMPTY)
    assert [answer.fields["manifest"] for answer in answers] == [digest] * 2


async def save_chained(
    worker: Worker, folder: Path, save_id: str, since: Manifest | None
) -> Manifest:
    """Save what changed since another one, as the client does."""
    chain = {"save": save_id, "since": "" if since is None else since.save}
    replies = await worker.ask("save", dirname=str(folder), chain=chain)
    assert {reply.fields["increment"] for reply in replies} == {since is not None}
    increment = None
    if since is not None:
        wires = [wire for reply in replies for wire in reply.fields["removed"]]
        removed = tuple(RemovedIds.from_wire(wire) for wire in wires)
        base = Base(save=since.save, folder=f"save-{since.save[-1]}")
        increment = Increment(base=base, removed=removed)
    manifest = Manifest(
        tables=tuple(SavedTable.from_wire(wire) for wire in replies[0].fields["tables"]),
        files=tuple(
            SavedFile.from_wire(wire) for reply in replies for wire in reply.fields["files"]
        ),
        increment=increment,
        save=save_id,
    )
    write_manifest(folder, manifest)
    return manifest


@pytest.mark.parametrize("num_servers", [1, 2, 5])
async def test_increments_load_together_with_what_they_are_of_on_any_number_of_servers(
    start_servers: Start, tmp_path: Path, num_servers: int
) -> None:
    before = await trained(await start_servers(3), 2)
    last = await save_chained(before, tmp_path / "save-0", "0" * 32, None)
    for number in (1, 2, 3):
        ids = np.array([*range(20 * number), 1000 + number], np.int64)
        rows = np.ones((len(ids), 4), np.float32)
        flat = np.full(37, number, np.float32)
        await before.push({ROWS.name: (ids, rows), "flat": flat}, step=1 + number, lr=0.1)
        await before.remove(ROWS.name, [40 + number * 2, 600], step=number)
        folder = tmp_path / f"save-{number}"
        last = await save_chained(before, folder, f"{number:032}", last)
        changed = sum(file.rows for file in last.files if file.kind == "sparse")
        assert len(ids) - 1 <= changed <= len(ids)
    expected = by_id_of(tmp_path / "full", await save(before, tmp_path / "full"))

    cluster = await start_servers(num_servers)
    after = cluster.worker()
    await after.ask("load", dirname=str(tmp_path / "save-3"), timeout_s=LATE_S)
    again = await save(after, tmp_path / "again")

    assert by_id_of(tmp_path / "again", again) == expected
    alone = load_rows(tmp_path / "save-3", ROWS.name)
    assert set(alone.ids.tolist()) == {id_ for table, id_ in expected if table == ROWS.name}


def by_id_of(folder: Path, manifest: Manifest) -> dict[tuple[str, int], bytes]:
    specs = {table.spec.name: table.spec for table in manifest.tables}
    found = {}
    for file in manifest.files:
        part = read_part(folder, file, specs[file.table])
        if part.ids is None:
            for place in range(part.num_rows):
                numbers = np.append(part.states[:, place], part.values[place])
                found[file.table, part.start + place] = numbers.tobytes()
            continue
        for place, id_ in enumerate(part.ids.tolist()):
            numbers = np.concatenate([part.values[place], part.states[place]])
            found[file.table, id_] = numbers.tobytes()
    return found


async def test_a_server_that_does_not_know_the_other_save_writes_everything(
    start_servers: Start, tmp_path: Path
) -> None:
    worker = await trained(await start_servers(2), 1)
    chain = {"save": "1" * 32, "since": "0" * 32}
    for reply in await worker.ask("save", dirname=str(tmp_path), chain=chain):
        assert not reply.fields["increment"]
    for wrong in ({"save": "x", "since": ""}, {"save": "1" * 32, "since": 3}, {}, 7):
        with pytest.raises(MalformedMessageError):
            await worker.ask("save", dirname=str(tmp_path), chain=wrong)


async def test_after_a_load_nothing_is_known_of_earlier_saves(
    start_servers: Start, tmp_path: Path
) -> None:
    worker = await trained(await start_servers(2), 1)
    first = await save_chained(worker, tmp_path / "save-0", "0" * 32, None)
    await worker.ask("load", dirname=str(tmp_path / "save-0"))
    chain = {"save": "1" * 32, "since": first.save}
    for reply in await worker.ask("save", dirname=str(tmp_path / "b"), chain=chain):
        assert not reply.fields["increment"]
