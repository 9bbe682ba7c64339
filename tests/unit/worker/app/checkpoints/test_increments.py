"""Increments on disk: verified, listed, compared and merged with what they build on."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paramfleet.session.checkpoint.numbered import end_numbered
from paramfleet_shared.checkpoint.increments import Base, Increment
from paramfleet_shared.checkpoint.manifest import (
    FilePart,
    ManifestError,
    read_manifest,
    write_manifest,
    write_part,
    write_removed,
)
from paramfleet_shared.checkpoint.saved_rows import load_rows
from paramfleet_worker.app.checkpoints.compacting import compact
from paramfleet_worker.app.checkpoints.diffing import diff
from paramfleet_worker.app.checkpoints.listing import list_checkpoints
from paramfleet_worker.app.checkpoints.verifying import verify

Write = Callable[..., Path]


def increment_of(base: Path, name: str, *, ids: list[int], removed: list[int]) -> Path:
    """Write an increment of a checkpoint: rows of 100 + id, at the server of their shard."""
    manifest, folder = read_manifest(base), base.parent / name
    shutil.copytree(base, folder)
    (folder / "manifest.json").unlink()
    (table,) = [each for each in manifest.tables if not each.is_dense]
    own = np.array(ids, np.int64)
    rows = np.repeat(100 + own[:, None].astype(np.float32), table.spec.dim, axis=1)
    part = FilePart(ids=own, values=rows, states=np.abs(rows))
    for file in manifest.files:
        if file.kind == "sparse":
            (folder / file.name).unlink()
    files = [write_part(folder, "ads.all.00000.safetensors", table.spec, part)]
    files += [file for file in manifest.files if file.kind == "dense"]
    gone = write_removed(folder, "ads.removed.safetensors", "ads", np.array(removed, np.int64))
    increment = Increment(base=Base(save=manifest.save, folder=base.name), removed=(gone,))
    made = replace(manifest, files=tuple(files), increment=increment, save="", written_at=None)
    write_manifest(folder, made)
    return folder


def chain(write: Write) -> tuple[Path, Path, Path]:
    base = write("000001-step-1")
    one = increment_of(base, "000002-step-2", ids=[3, 50], removed=[4, 5])
    return base, one, increment_of(one, "000003-step-3", ids=[5], removed=[3, 6])


def values_of(folder: Path) -> dict[int, float]:
    rows = load_rows(folder, "ads")
    return dict(zip(rows.ids.tolist(), rows.rows[:, 0].tolist(), strict=True))


EXPECTED = {id_: float(id_) for id_ in range(40) if id_ not in {3, 4, 6}} | {50: 150, 5: 105}


def test_an_increment_reads_together_with_what_it_builds_on(write: Write) -> None:
    _, _, newest = chain(write)
    assert values_of(newest) == EXPECTED
    found = verify(newest)
    assert not found.problems
    assert "it is an increment of 000002-step-2, and needs that one" in found.notes


def test_compact_makes_it_whole_and_keeps_its_identity_and_time(write: Write) -> None:
    base, one, newest = chain(write)
    copy = newest.parent / "whole"
    done = compact(newest, copy)
    assert (done.layers, done.rows) == (3, len(EXPECTED))
    assert diff(newest, copy).equal
    before = read_manifest(one)

    compact(one)

    after = read_manifest(one)
    assert (after.increment, after.save) == (None, before.save)
    assert after.written_at == before.written_at
    shutil.rmtree(base)
    assert values_of(newest) == EXPECTED, "it builds on the merged one"
    assert not verify(copy).problems
    assert compact(copy).layers == 1


def test_what_an_increment_lacks_is_named_by_list_verify_and_load(write: Write) -> None:
    base, one, newest = chain(write)
    by_name = {each.name: each for each in list_checkpoints(base.parent)}
    assert [by_name[each.name].base for each in (base, one, newest)] == [
        "",
        base.name,
        one.name,
    ]
    assert all(each.whole for each in by_name.values())

    base.rename(base.with_name("elsewhere"))

    by_name = {each.name: each for each in list_checkpoints(base.parent)}
    assert by_name["elsewhere"].whole
    assert (
        f"is an increment of {base.name}, which can't be read" in by_name[newest.name].problem
    )
    assert f"is an increment of {base.name}" in verify(one).problems[0].problem
    with pytest.raises(ManifestError, match="put that one into the same folder"):
        load_rows(newest, "ads")


def test_another_checkpoint_in_the_place_of_the_base_is_refused(write: Write) -> None:
    base, one, _ = chain(write)
    write_manifest(base, replace(read_manifest(base), save=""))
    with pytest.raises(ManifestError, match="is another checkpoint now"):
        load_rows(one, "ads")


def test_a_damaged_file_of_the_base_is_a_problem_of_the_increment(write: Write) -> None:
    base, _, newest = chain(write)
    (base / "ads.server0.00000.safetensors").write_bytes(b"x")
    (problem,) = [each for each in verify(newest).problems if "server0" in each.file]
    assert problem.file == "000001-step-1/ads.server0.00000.safetensors"
    (listed,) = [each for each in list_checkpoints(base.parent) if each.name == newest.name]
    assert "it builds on 000001-step-1" in listed.problem


def test_a_damaged_file_of_an_increment_is_one_problem(write: Write) -> None:
    _, one, newest = chain(write)
    path = one / "ads.all.00000.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)

    assert [each.file for each in verify(one).problems] == [path.name]
    assert [each.file for each in verify(newest).problems] == [f"{one.name}/{path.name}"]


def test_chains_that_go_round_or_have_other_tables_are_refused(write: Write) -> None:
    base, one, newest = chain(write)
    saves = {each.name: read_manifest(each).save for each in (base, one, newest)}

    def edit(folder: Path, **changes: object) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    wire = {"base": {"save": saves[newest.name], "folder": newest.name}, "removed": []}
    edit(base, increment=wire, version=2)
    with pytest.raises(ManifestError, match="has no end"):
        load_rows(newest, "ads")

    tables = json.loads((base / "manifest.json").read_text())["tables"]
    edit(base, version=1, increment=None, tables=[{**tables[0], "seed": 99}, *tables[1:]])
    with pytest.raises(ManifestError, match="another table 'ads'"):
        load_rows(newest, "ads")


def test_what_a_kept_one_builds_on_is_kept(write: Write) -> None:
    base, one, newest = chain(write)
    old = write("000000-step-0")

    end_numbered(newest, keep=1)

    assert [each.exists() for each in (old, base, one, newest)] == [False, True, True, True]
    compact(newest)
    end_numbered(newest, keep=1)
    assert [each.exists() for each in (base, one, newest)] == [False, False, True]


def test_none_goes_while_a_chain_cant_be_followed(write: Write) -> None:
    base, one, newest = chain(write)
    for unreadable in (newest, one):
        manifest = unreadable / "manifest.json"
        manifest.rename(manifest.with_name("away"))
        manifest.symlink_to(manifest.name)  # every read of it fails

        end_numbered(newest, keep=1)

        assert all(each.exists() for each in (base, one, newest)), unreadable
        manifest.unlink()
        manifest.with_name("away").rename(manifest)
    assert values_of(newest) == EXPECTED
