"""Datasets of whole jobs: samples that change their worker, and workers that die."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PER_FILE = (100, 0, 37, 250, 1)
"""Samples of each file: the workers' shares are uneven."""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    folder = tmp_path / "data"
    folder.mkdir()
    numbers = iter(range(sum(PER_FILE)))
    for part, size in enumerate(PER_FILE):
        lines = [line_of(next(numbers)) + "\n" for _ in range(size)]
        (folder / f"part-{part}").write_text("".join(lines))
    return [str(folder / f"part-{part}") for part in range(len(PER_FILE))]


def words_of(number: int) -> list[int]:
    return [number * 10 + each for each in range(number % 4)]


def line_of(number: int) -> str:
    words = words_of(number)
    return " ".join(map(str, [1, number, len(words), *words]))


def test_a_global_shuffle_keeps_every_sample_exactly_once(jobs: Any, files: list[str]) -> None:
    ended = jobs.run("shuffle_data.py", "--files", *files, workers=3, servers=1)

    results = ended.results
    ledger = [[number, words_of(number)] for number in range(sum(PER_FILE))]
    for number in range(2):
        shares = [result["rounds"][number] for result in results]
        assert sorted(sample for share in shares for sample in share) == ledger
        assert all(len(share) > len(ledger) / 5 for share in shares), "drawn by lot"
        assert all(share != sorted(share) for share in shares)
    assert results[0]["rounds"][0] != results[0]["rounds"][1]
    assert all(result["sizes"] == [len(ledger)] * 2 for result in results)


def test_a_global_shuffle_is_the_same_again(jobs: Any, files: list[str]) -> None:
    first = jobs.run("shuffle_data.py", "--files", *files, workers=2, servers=1)
    second = jobs.run("shuffle_data.py", "--files", *files, workers=2, servers=1)

    assert first.results == second.results


def test_a_worker_that_dies_ends_the_shuffle_of_the_others(jobs: Any, files: list[str]) -> None:
    args = ["--files", *files, "--dies", "1"]
    running = jobs.start(
        "shuffle_data.py", *args, workers=3, servers=1, PARAMFLEET_LEASE_TTL_S="6"
    )

    ended = running.end()

    assert ended.codes["worker1"] == -signal.SIGKILL
    assert ended.codes["worker0"] == ended.codes["worker2"] == 1
    assert "worker.job_failed" in ended.logs["worker0"], ended.story()
    assert "worker 1" in ended.logs["worker0"], ended.story()


def test_samples_that_were_sent_and_did_not_come_end_the_job(
    jobs: Any, files: list[str]
) -> None:
    (empty,) = [files[part] for part, size in enumerate(PER_FILE) if not size]
    args = ["--files", empty, files[0], "--claims"]

    ended = jobs.run("shuffle_data.py", *args, workers=2, servers=1)

    assert ended.codes["worker0"] == 1
    said = "worker 1 sent 3 messages and 0 came"
    assert said in ended.logs["worker0"], ended.story()


@pytest.mark.parametrize("thread_num", ["1", "3"])
@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
def test_a_killed_worker_goes_on_at_the_exact_sample(
    jobs: Any, files: list[str], tmp_path: Path, kind: str, thread_num: str
) -> None:
    ledger = tmp_path / "ledger"
    args = ["--files", *files, "--kind", kind, "--thread_num", thread_num]
    script = str(Path(__file__).parent / "scripts" / "read_data.py")

    codes = []
    for die_after in ("20", "0", "9", "-1"):
        more = ["--ledger", str(ledger), "--die_after", die_after]
        command = ["--pipe_command", "cat | cat" if die_after == "9" else "cat"]
        pid = jobs.programs.start([script, *args, *command, *more], {}, tmp_path / "log")
        codes.append(jobs.programs.wait(pid))

    assert codes == [-signal.SIGKILL] * 3 + [0], (tmp_path / "log").read_text()
    entries = [json.loads(line)["numbers"] for line in ledger.read_text().splitlines()]
    assert sorted(number for numbers in entries for number in numbers) == list(
        range(sum(PER_FILE))
    )
