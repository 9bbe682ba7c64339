"""Training by days in one process: its order, its end, and where it begins again."""

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from tests.unit.client.runner.online.streams import (
    COUNTING,
    run,
    tables_of,
    write_pass,
    write_stream,
)
from typing_extensions import override

LAST = "20260103/0"


def result_of(done: Result) -> dict[str, Any]:
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def passes_in(done: Result) -> list[str]:
    """Return the passes that were trained, in turn."""
    return re.findall(r"^day (\d+, pass \d+): before", done.stderr, re.MULTILINE)


def saved_in(folder: Path) -> list[str]:
    root = folder / "saved"
    return sorted(str(path.relative_to(root)) for path in root.glob("*/*"))


def lines_of(folder: Path, name: str) -> list[str]:
    return (folder / "saved" / name).read_text().splitlines()


def same(one: Path, other: Path) -> None:
    """See that two checkpoints have the same numbers."""
    first, second = tables_of(one), tables_of(other)
    assert first.keys() == second.keys()
    assert first
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose training wasn't interrupted."""
    folder = write_stream(tmp_path_factory.mktemp("whole"))
    result_of(run(folder))
    return folder


def test_passes_are_scored_trained_and_saved_in_turn(folder: Path) -> None:
    done = run(folder)

    result = result_of(done)
    days = ["20260101", "20260102"]
    assert passes_in(done) == [f"{day}, pass {n}" for day in days for n in (1, 2)]
    assert result["by_days"] == {"passes": 4, "day": "20260103", "pass": 0}
    assert result["scored_on"] == "last pass, before it was trained"
    assert "epochs" not in result, "each pass is trained once"
    assert saved_in(folder) == [
        *("20260101/1", "20260101/base", "20260101/delta-1", "20260101/delta-2"),
        *("20260102/0", "20260102/1", "20260102/base", "20260102/delta-1", "20260102/delta-2"),
        *("20260103/0", "20260103/base"),
    ]
    places = [line.split("\t") for line in lines_of(folder, "donefile.txt")]
    assert [(day, number) for day, _, _, number, _ in places] == [
        *(("20260101", "1"), ("20260102", "-1"), ("20260102", "1"), ("20260103", "-1")),
    ]
    bases = [json.loads(line) for line in lines_of(folder, "base_donefile.txt")]
    keys = [base["key"] for base in bases]
    assert [Path(base["input"]).parts[-3] for base in bases] == [
        *("20260101", "20260102", "20260103"),
    ]
    assert [line.split("\t")[1] for line in lines_of(folder, "donefile.txt")] == [
        *(keys[0], keys[1], keys[1], keys[2]),
    ]
    deltas = [json.loads(line) for line in lines_of(folder, "patch_donefile.txt")]
    assert [delta["key"] for delta in deltas] == [keys[0], keys[0], keys[1], keys[1]]
    assert len({delta["id"] for delta in deltas}) == 4
    assert all(Path(path).is_dir() for _, _, path, _, _ in places)


def test_a_pass_is_scored_before_it_is_trained(folder: Path) -> None:
    done = run(folder)

    before = re.findall(r"before auc ([\d.]+), mean ([\d.]+)", done.stderr)
    assert before[0] == ("0.5000", "0.5000"), "the model had seen nothing"
    assert result_of(done)["auc"] == pytest.approx(float(before[-1][0]), abs=1e-4)
    assert float(before[-1][0]) > 0.7


def test_reading_ahead_changes_no_number(folder: Path, whole: Path) -> None:
    result_of(run(folder, "runner.prefetch=true", "runner.preload_thread_num=2"))

    same(folder / "saved" / LAST, whole / "saved" / LAST)


def test_a_day_ends_with_rows_that_go(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "model.py").write_text(COUNTING)
    with caplog.at_level(logging.INFO, "paramfleet.runner.online.deeds"):
        result_of(run(folder))

    shrunk = [vars(r) for r in caplog.records if r.getMessage() == "worker.day_shrunk"]
    assert [each["day"] for each in shrunk] == ["20260101", "20260102"]
    assert all(each["rows"]["ids"] > 0 for each in shrunk)
    rows = {
        name: len(array)
        for name, array in tables_of(folder / "saved" / LAST).items()
        if name.endswith("ids")
    }
    before = tables_of(folder / "saved/20260102/1")
    assert all(len(before[name]) > count > 0 for name, count in rows.items())
    assert (folder / "saved/20260103/base").is_dir()


STEPS = [
    "20260101/base",
    "base_donefile.txt",
    "20260101/1",
    "donefile.txt",
    "20260101/delta-1",
    "patch_donefile.txt",
    "20260101/delta-2",
    "patch_donefile.txt",
    "20260102/base",
    "base_donefile.txt",
    "20260102/0",
    "donefile.txt",
    "20260102/1",
    "donefile.txt",
    "20260102/delta-1",
    "patch_donefile.txt",
    "20260102/delta-2",
    "patch_donefile.txt",
    "20260103/base",
    "base_donefile.txt",
    "20260103/0",
    "donefile.txt",
]
"""What is written, in this order; of a list each time one line."""


CUTS = [1, 2, 3, 4, 5, 8, 10, 11, 13, 17, 19, 20, 21]
"""After so many of them; ``test_course`` has all."""


@pytest.mark.parametrize("count", CUTS)
def test_a_training_goes_on_wherever_it_died(tmp_path: Path, whole: Path, count: int) -> None:
    folder = tmp_path / "again"
    shutil.copytree(whole, folder)
    left = STEPS[:count]
    for name in {name for name in STEPS if not name.endswith(".txt")} - set(left):
        shutil.rmtree(folder / "saved" / name)
    for name in ("donefile.txt", "base_donefile.txt", "patch_donefile.txt"):
        kept = lines_of(whole, name)[: left.count(name)]
        (folder / "saved" / name).write_text("".join(f"{line}\n" for line in kept))

    done = run(folder)

    result_of(done)
    newest = max((n for n in left if n[9:].isdecimal()), default="")
    behind = {"": 0, "20260101/1": 1, "20260102/0": 2, "20260102/1": 3, "20260103/0": 4}
    assert len(passes_in(done)) == 4 - behind[newest]
    same(folder / "saved" / LAST, whole / "saved" / LAST)
    for place in ("20260101/1", "20260102/0", "20260102/1"):
        same(folder / "saved" / place, whole / "saved" / place)
    places = [tuple(x.split("\t")[0:4:3]) for x in lines_of(folder, "donefile.txt")]
    assert len(places) == len(set(places)) == 4
    bases = [json.loads(line)["input"] for line in lines_of(folder, "base_donefile.txt")]
    deltas = [json.loads(line)["input"] for line in lines_of(folder, "patch_donefile.txt")]
    assert len(bases) == len(set(bases))
    assert len(deltas) == len(set(deltas))
    keys = {json.loads(line)["key"] for line in lines_of(folder, "base_donefile.txt")}
    assert {json.loads(x)["key"] for x in lines_of(folder, "patch_donefile.txt")} <= keys


def test_what_is_trained_is_not_trained_again(folder: Path) -> None:
    run(folder)
    again = run(folder)

    assert result_of(again)["by_days"]["passes"] == 0
    assert passes_in(again) == []
    assert "continues with day 20260103, before its first pass: " in again.stderr


@pytest.mark.parametrize(
    ("step", "first"),
    [
        (3, "20260101, pass 1, step 4"),
        (6, "20260101, pass 2, step 1"),
        (8, "20260101, pass 2, step 3"),
        (15, "20260102, pass 1, step 4"),
    ],
)
def test_a_checkpoint_within_a_pass_goes_on_there(
    folder: Path, whole: Path, step: int, first: str
) -> None:
    result_of(run(folder, "runner.checkpoint_configs={every_steps: 1, keep: 100}"))
    (taken,) = (folder / "checkpoints").glob(f"*-step-{step}")
    shutil.rmtree(folder / "saved")
    (folder / "saved/20260101").mkdir(parents=True)
    taken.rename(folder / "saved/20260101/1")

    done = run(folder, "runner.print_interval=1")

    result_of(done)
    lines = [line for line in done.stderr.splitlines() if ": loss" in line]
    assert lines[0].startswith(f"day {first}:")
    assert len(lines) == 24 - step
    same(folder / "saved" / LAST, whole / "saved" / LAST)


def test_a_place_in_other_data_is_left_out_by_name(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result_of(run(folder, "runner.checkpoint_configs={every_steps: 1, keep: 100}"))
    (taken,) = (folder / "checkpoints").glob("*-step-3")
    shutil.rmtree(folder / "saved")
    (folder / "saved/20260101").mkdir(parents=True)
    taken.rename(folder / "saved/20260101/1")

    done = run(folder, "runner.print_interval=1", "runner.seed=5")

    result_of(done)
    assert "day 20260101, pass 1, step 1: loss" in done.stderr
    warned = [r for r in caplog.records if r.getMessage() == "worker.position_not_taken"]
    assert len(warned) == 1


def test_more_days_follow(folder: Path, whole: Path) -> None:
    first = run(folder, "runner.days=20260101")
    second = run(folder, "runner.days=[20260102]")

    assert [*passes_in(first), *passes_in(second)] == [
        f"{day}, pass {n}" for day in ("20260101", "20260102") for n in (1, 2)
    ]
    same(folder / "saved" / LAST, whole / "saved" / LAST)


def test_a_folder_that_is_not_there_is_named(folder: Path) -> None:
    shutil.rmtree(folder / "data/20260101/1200")

    done = run(folder)

    assert done.exit_code == 2
    assert "day 20260101, pass 2: there is no folder" in done.output
    assert "20260101/1200" in done.output
    assert "data_donefile" in done.output
    assert (folder / "saved/20260101/1").is_dir()


def test_a_pass_without_examples_is_left_out(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (folder / "data/20260101/0000").iterdir():
        path.unlink()
    (folder / "data/20260102/1200/part-0").write_text("")
    for number in (1, 2):
        (folder / f"data/20260102/1200/part-{number}").unlink()

    done = run(folder, "runner.prefetch=true")

    result_of(done)
    assert passes_in(done) == ["20260101, pass 2", "20260102, pass 1"]
    warned = [r for r in caplog.records if r.getMessage() == "worker.pass_is_empty"]
    assert [vars(r)["part"] for r in warned] == [
        *("day 20260101, pass 1", "day 20260102, pass 2"),
    ]
    assert (folder / "saved/20260103/0").is_dir()


def test_folders_that_make_no_whole_pass_are_named(folder: Path) -> None:
    write_pass(folder / "data/20260101/0800", seed=5)
    write_pass(folder / "data/20260101/1600", seed=6)

    done = run(
        folder,
        "runner.days=20260101",
        "runner.split_interval=480",
        "runner.split_per_pass=2",
    )

    assert passes_in(done) == ["20260101, pass 1"]
    assert "not read of each day: 1600" in done.stderr


def test_data_that_does_not_come_ends_the_wait_by_name(folder: Path) -> None:
    (folder / "data/20260101/0000/done").write_text("")
    waits = ["runner.data_donefile=done", "runner.data_sleep_second=0.02"]

    done = run(folder, *waits, "runner.data_wait_s=0.1")

    assert done.exit_code == 1
    assert passes_in(done) == ["20260101, pass 1"]
    assert "day 20260101, pass 2: waits for" in done.stderr
    assert "20260101/1200/done did not appear within 0.1" in done.stderr
    assert "runner.data_wait_s" in done.stderr


class Delivery(logging.Handler):
    """Puts data in place as soon as the log says that it is waited for."""

    def __init__(self, deliver: Callable[[], None]) -> None:
        super().__init__()
        self._deliver: Callable[[], None] | None = deliver

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "worker.waits_for_data" and self._deliver is not None:
            self._deliver()
            self._deliver = None


@pytest.mark.parametrize("prefetch", ["false", "true"])
def test_data_is_waited_for(
    folder: Path, whole: Path, prefetch: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, held = folder / "data", folder / "held"
    (data / "20260101/0000/done").write_text("")
    (data / "20260101/1200").rename(held)

    def deliver() -> None:
        held.rename(data / "20260101/1200")
        for name in ("20260101/1200", "20260102/0000", "20260102/1200"):
            (data / name / "done").write_text("not a sample")

    logger = logging.getLogger("paramfleet.runner.online.data.coming")
    delivery = Delivery(deliver)
    logger.addHandler(delivery)
    try:
        with caplog.at_level(logging.INFO, logger.name):
            waits = ["runner.data_donefile=done", "runner.data_sleep_second=0.01"]
            done = run(folder, *waits, f"runner.prefetch={prefetch}")
    finally:
        logger.removeHandler(delivery)

    result_of(done)
    assert done.stderr.count("waits for") == 1
    assert "day 20260101, pass 2: waits for" in done.stderr
    same(folder / "saved" / LAST, whole / "saved" / LAST)


@pytest.mark.parametrize(
    ("option", "rule"),
    [
        ("runner.split_interval=360", "split_interval = 720 and split_per_pass = 1"),
        ("runner.split_per_pass=2", "split_interval = 720 and split_per_pass = 1"),
    ],
)
def test_other_passes_do_not_go_on_within_a_day(folder: Path, option: str, rule: str) -> None:
    shutil.rmtree(folder / "data/20260101/1200")
    assert run(folder).exit_code == 2
    assert saved_in(folder)[0] == "20260101/1"

    done = run(folder, option)

    assert done.exit_code == 2
    assert rule in done.output
    assert "saved/20260101/1" in done.output


def test_a_checkpoint_that_says_no_place_is_only_to_begin_with(folder: Path) -> None:
    result_of(run(folder, "runner.days=20260101"))
    checkpoint = folder / "saved/20260102/0"
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["progress"]["extra"]["states/runner_days"]
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))

    done = run(folder)
    assert done.exit_code == 2
    assert "has no place of a training by days" in done.output
    assert "model_init_path" in done.output

    (folder / "saved").rename(folder / "former")
    done = run(folder, "runner.model_init_path=former/20260102/0")
    assert len(passes_in(done)) == 4
    assert "pass 1: before auc 0.5000" not in done.stderr


def test_a_model_may_begin_with_one_trained_by_days(folder: Path) -> None:
    result_of(run(folder))
    (folder / "saved").rename(folder / "former")

    done = run(folder, f"runner.model_init_path=former/{LAST}")

    assert len(passes_in(done)) == 4


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ("runner.model_save_path=s3://bucket/saved", "folder of this machine"),
        ("runner.model_save_path=a\tb", "no tabs"),
        ("runner.model_save_path=a\udcffb", "only what UTF-8 can write"),
        ("runner.model_save_path=", "runner.model_save_path"),
        ("runner.reader_type=QueueDataset", "InMemoryDataset"),
        ("runner.sync_mode=gpubox", "sync, async or geo"),
        ("runner.split_batches=true", "samples are shared"),
        ("runner.end_day=20260103", "left out where days is given"),
        ("runner.split_per_pass=3", "at most 2"),
        ("runner.pass_per_day=3", "at most 2"),
        ("runner.save_delta_frequncy=3", "save_delta_frequency"),
    ],
)
def test_what_contradicts_is_told_before_anything_is_trained(
    folder: Path, option: str, word: str
) -> None:
    done = run(folder, option)

    assert done.exit_code == 2
    assert word in done.output
    assert not (folder / "saved").exists()


def test_a_list_that_cannot_be_read_is_told_before_anything_is_trained(folder: Path) -> None:
    (folder / "saved").mkdir()
    (folder / "saved/donefile.txt").write_text("20260101 7\n")

    done = run(folder)

    assert done.exit_code == 2
    assert "donefile.txt, line 1" in done.output
    assert passes_in(done) == []


def test_without_a_base_there_are_no_deltas(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result_of(run(folder, "runner.save_first_base=false"))

    assert "20260101/delta-1" not in saved_in(folder)
    assert "20260102/delta-1" in saved_in(folder)
    assert lines_of(folder, "donefile.txt")[0].split("\t")[1] == "0"
    warned = [r for r in caplog.records if r.getMessage() == "worker.delta_without_base"]
    assert len(warned) == 1
    assert "no base has been published" in vars(warned[0])["reason"]
    assert "runner.save_first_base: true" in vars(warned[0])["remedy"]


def test_what_is_saved_and_published_is_told_with_its_folder(folder: Path) -> None:
    done = run(folder)

    saved = folder / "saved"
    for line in (
        f"base published: {saved}/20260101/base",
        f"checkpoint saved: {saved}/20260101/1",
        f"delta published: {saved}/20260101/delta-1",
        f"checkpoint saved: {saved}/20260102/0",
    ):
        assert line in done.stderr.splitlines(), done.stderr


@pytest.mark.parametrize(("mode", "count"), [("async", 1), ("sync", 0)])
def test_a_base_that_stays_beside_another_model_is_told(
    folder: Path, mode: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    result_of(run(folder, f"runner.sync_mode={mode}", "runner.days=20260101"))
    shutil.rmtree(folder / "saved/20260102/0")
    base = folder / "saved/20260102/base"
    key = int(json.loads(lines_of(folder, "base_donefile.txt")[-1])["key"])

    result_of(run(folder, f"runner.sync_mode={mode}", "runner.days=20260101"))

    warned = [vars(r) for r in caplog.records if r.getMessage() == "worker.base_kept"]
    assert [(each["folder"], each["key"]) for each in warned] == [(str(base), key)] * count
    assert all("base_donefile.txt" in each["remedy"] for each in warned)
    assert len(lines_of(folder, "base_donefile.txt")) == 2
