"""A checkpoint that is written while workers train holds one set of pushes, everywhere."""

import json
import re
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.checkpoint.layers import read_layers
from paramfleet_shared.checkpoint.manifest import read_manifest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_ledger.py"
KINDS = [
    ["--mode", "async"],
    ["--mode", "async", "--pool", "3"],
    ["--mode", "geo"],
    ["--mode", "geo", "--message_values", "64"],
    ["--mode", "sync"],
    ["--mode", "localsgd"],
    ["--mode", "localsgd", "--fragments", "3"],
]


def counts_of(folder: Path, *, workers: int) -> dict[int, dict[tuple[str, int], set[float]]]:
    """Return the numbers in a checkpoint, by worker, and by table and pserver."""
    layers = read_layers(folder, read_manifest(folder))
    found: dict[int, dict[tuple[str, int], set[float]]] = defaultdict(dict)
    files = [each for t in layers.top.manifest.tables for each in layers.files(t.spec.name)]
    for layer_file in files:
        file, part = layer_file.file, layer_file.read()
        if not part.num_rows:
            continue
        place = re.search(r"\.server(\d+)", file.name)
        assert place is not None, file.name
        key = (file.table, int(place[1]))
        owners = np.arange(part.start, part.start + part.num_rows)
        if part.ids is not None:
            owners = part.ids // 1000
        for owner, values in zip(owners, part.values, strict=True):
            worker = int(owner) % workers
            found[worker].setdefault(key, set()).update(values.flatten().tolist())
    return found


def assert_whole(folder: Path, *, workers: int, servers: int = 2, mode: str = "") -> None:
    """Assert that each worker's pushes are the same ones in every table on every pserver.

    In GEO the worker that saves exchanges before, and sends of rows what it has used since
    its last exchange, of dense parameters what was left over, too.
    """
    found = counts_of(folder, workers=workers)
    specs = {table.spec.name for table in read_manifest(folder).tables}
    assert set(found) == set(range(workers))
    for worker, numbers in found.items():
        assert {table for table, _ in numbers} == specs
        assert {server for _, server in numbers} == set(range(servers))
        # A fragment of LocalSGD is exchanged by itself: each is whole over the pservers.
        groups = [set(numbers)]
        if all(re.fullmatch(r"dense_\d+", table) for table in specs):
            groups = [{key for key in numbers if key[0] == table} for table in specs]
        elif mode == "geo" and worker == 0:
            dense = {key for key in numbers if key[0].startswith("dense")}
            groups = [dense, set(numbers) - dense]
        for group in groups:
            counts = set[float]().union(*(numbers[key] for key in group))
            assert len(counts) == 1, f"worker {worker}: {numbers}"


def start_training(jobs: Any, *kind: str, enough: Path, folder: Path) -> Any:
    """Start a job that trains until ``enough`` exists; wait for steps of every worker."""
    running = jobs.start(
        SCRIPT,
        *kind,
        "--until",
        str(enough),
        workers=3,
        PARAMFLEET_COORDINATOR__CHECKPOINT_DIR=str(folder),
    )
    for rank in range(3):
        running.wait_for(f"worker{rank}", "training as")
    running.admin().wait(lambda s: all((w["step"] or 0) > 5 for w in s["workers"]))
    return running


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_a_checkpoint_by_command_holds_the_same_pushes_in_every_table_on_every_pserver(
    jobs: Any, tmp_path: Path, kind: list[str]
) -> None:
    enough, folder = tmp_path / "enough", tmp_path / "kept"
    running = start_training(jobs, *kind, enough=enough, folder=folder)
    admin = running.admin()
    for number in (1, 2, 3):
        assert admin.post("checkpoint", {"name": f"c{number}"})[0] == 200
        at = number
        status = admin.wait(lambda s: (s["checkpoint"] or {"number": 0})["number"] >= at)  # noqa: B023 - waits here
        done = status["checkpoint"]
        assert done["error"] == ""
        assert_whole(folder / f"c{number}", workers=3, mode=kind[1])
        assert done["consistent"] is True
        assert done["reason"] == ""
        assert 0 <= done["paused_s"] < 30
        told = json.loads((folder / f"c{number}" / "manifest.json").read_text())["cut"]
        assert told == {"consistent": True, "reason": "", "paused_s": done["paused_s"]}
    went_on = admin.steps()
    admin.wait(
        lambda s: all(w["step"] > at + 5 for w, at in zip(s["workers"], went_on, strict=True))
    )

    enough.touch()
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_what_one_worker_saves_while_others_train_holds_the_same_pushes_everywhere(
    jobs: Any, tmp_path: Path, mode: str
) -> None:
    enough, folder = tmp_path / "enough", tmp_path / "kept"
    args = ["--mode", mode, "--until", str(enough), "--save", str(folder)]
    running = jobs.start(SCRIPT, *args, workers=3)
    running.wait_for("worker0", "saved")

    assert_whole(folder, workers=3, mode=mode)
    cut = read_manifest(folder).cut
    assert cut is not None
    assert cut.consistent

    enough.touch()
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()


def number_of(done: dict[str, Any] | None) -> int:
    return 0 if done is None else int(Path(done["dirname"]).name.partition("-")[0])


@pytest.mark.parametrize("mode", ["sync", "async", "geo", "localsgd"])
def test_periodic_checkpoints_are_whole_cuts_and_old_ones_go(
    jobs: Any, tmp_path: Path, mode: str
) -> None:
    enough, folder = tmp_path / "enough", tmp_path / "kept"
    args = ["--mode", mode, "--until", str(enough), "--save", str(folder), "--every_s", "0.3"]
    running = jobs.start(SCRIPT, *args, workers=3)
    running.wait_for("worker0", "training as")
    admin = running.admin()
    status = admin.wait(lambda s: number_of(s["periodic_checkpoint"]) >= 4)
    told = status["periodic_checkpoint"]
    assert told["consistent"], told
    assert not told["error"]
    events = " ".join(event["words"] for event in admin.get("events"))
    assert "is written, in" in events
    assert "pushes waited" in events

    enough.touch()
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()
    *kept, latest = sorted(path.name for path in folder.iterdir())
    assert latest == "latest"
    assert len(kept) == 2
    assert (folder / "latest").resolve().name == kept[-1]
    for name in kept:
        assert_whole(folder / name, workers=3, mode=mode)


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_increments_are_whole_cuts_together_with_what_they_build_on(
    jobs: Any, tmp_path: Path, mode: str
) -> None:
    enough, folder = tmp_path / "enough", tmp_path / "kept"
    args = ["--mode", mode, "--until", str(enough), "--save", str(folder), "--every_s", "0.3"]
    running = jobs.start(SCRIPT, *args, "--incremental", "2", "--keep", "3", workers=3)
    running.wait_for("worker0", "training as")
    running.admin().wait(lambda s: number_of(s["periodic_checkpoint"]) >= 5)

    enough.touch()
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()
    kept = sorted(path for path in folder.iterdir() if not path.is_symlink())
    bases = {path.name: read_manifest(path).increment for path in kept}
    assert sum(each is None for each in bases.values()) in {1, 2}
    assert {each.base.folder for each in bases.values() if each is not None} < set(bases)
    for path in kept:
        assert_whole(path, workers=3, mode=mode)


def test_a_frozen_worker_holds_a_checkpoint_up_for_seconds_and_is_named_if_it_tears_it(
    jobs: Any, tmp_path: Path
) -> None:
    enough, folder = tmp_path / "enough", tmp_path / "kept"
    running = start_training(jobs, enough=enough, folder=folder)
    admin = running.admin()

    running.send("worker2", signal.SIGSTOP)
    try:
        assert admin.post("checkpoint", {"name": "one"})[0] == 200
        done = admin.wait(lambda s: s["checkpoint"] is not None)["checkpoint"]
        at = admin.steps(0, 1)
        admin.wait(
            lambda s: all(w["step"] > a + 5 for w, a in zip(s["workers"], at, strict=False))
        )
    finally:
        running.send("worker2", signal.SIGCONT)

    assert done["error"] == ""
    assert done["seconds"] < 25
    cut = read_manifest(folder / "one").cut
    assert cut is not None
    assert cut.consistent == done["consistent"]
    if cut.consistent:
        assert_whole(folder / "one", workers=3)
    else:
        assert "worker 2" in cut.reason
    enough.touch()
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()


def test_a_saver_that_dies_holds_the_others_up_no_longer_than_its_hold(
    jobs: Any, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    running = jobs.start(
        SCRIPT,
        "--until",
        str(enough),
        "--hold_at",
        "40",
        workers=2,
        PARAMFLEET_COORDINATOR__ELASTIC="true",
        PARAMFLEET_LEASE_TTL_S="10",
        PARAMFLEET_COORDINATOR__WORKER_GRACE_S="11",  # longer than the hold, which lasts 3 s
    )
    running.wait_for("worker0", "holding")
    running.send("worker0", signal.SIGKILL)
    running.wait_for("pserver0", "hold_expired")
    running.wait_for("pserver1", "hold_expired")
    admin = running.admin()
    (at,) = admin.steps(1)
    admin.wait(lambda s: s["workers"][1]["step"] > at + 20)

    enough.touch()
    assert running.code("worker1") == 0, running.log("worker1")
