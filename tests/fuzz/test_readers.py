"""Odd bytes of a disk are read, or refused by a typed error, in bounded time and memory.

FUZZ_CASES sets how many are tried of all readers together, FUZZ_SEED which.
"""

import gc
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.fuzz import running
from tests.fuzz.__main__ import main
from tests.fuzz.readers import readers
from tests.fuzz.running import BrokenCaseError, Reader, run

from paramfleet_shared.settings.config import read_environment

CASES = int(read_environment().get("FUZZ_CASES", "100000"))
SEED = int(read_environment().get("FUZZ_SEED", "1"))
WARM_CASES = 100
LOOKED_AT = 200


@pytest.fixture(scope="module")
def known() -> Iterator[dict[str, Reader]]:
    with readers() as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["commands", "log", "manifests", "snapshot_files", "snapshots", "streams"]
)
def test_odd_bytes_are_read_or_refused_by_a_typed_error(
    known: dict[str, Reader], name: str
) -> None:
    reader = known[name]
    cases = max(20, round(CASES * reader.share))
    print(f"{name}: seed {SEED}, {cases} cases")

    found = run(reader, seed=SEED, first=0, cases=cases)

    assert cases // 4 < found.refused <= cases


def test_all_cases_are_shared_out(known: dict[str, Reader]) -> None:
    assert sum(reader.share for reader in known.values()) == pytest.approx(1.0)


def reader_that(read: object) -> Reader:
    return Reader("it", Random.random, read, (ValueError,), share=1.0)  # type: ignore[arg-type]


def raise_at_seven(value: float) -> None:
    if value == numbered(7):
        raise KeyError("a bug")
    raise ValueError("refused")


def numbered(number: int) -> float:
    dice = Random(0)
    dice.seed(3 * (1 << 40) + number)
    return dice.random()


def test_an_error_of_another_type_is_found_with_the_number_of_its_case() -> None:
    with pytest.raises(BrokenCaseError, match=r"a bug.*--only=it --seed=3 --first=7 --cases=1"):
        run(reader_that(raise_at_seven), seed=3, first=0, cases=20)

    assert run(reader_that(raise_at_seven), seed=3, first=0, cases=7).refused == 7


def test_a_case_that_does_not_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "CASE_CPU_S", 0.05)

    def read(_: float) -> None:
        until = time.process_time() + 60.0
        while time.process_time() < until:
            try:
                sum(range(1000))
            except Exception:  # noqa: BLE001 -- as a reader might
                continue

    with pytest.raises(BrokenCaseError, match="Endless"):
        run(reader_that(read), seed=1, first=0, cases=1)


def test_memory_that_does_not_follow_from_the_input_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "MAX_GROWTH_BYTES", 8 << 20)

    with pytest.raises(BrokenCaseError, match="took memory"):
        run(reader_that(lambda _: bytearray(32 << 20)), seed=1, first=0, cases=1)


def test_the_command_line_runs_one_case_of_one_reader(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--only=log", "--seed=5", "--first=3", "--cases=1"]) == 0
    assert '"seed": 5, "first": 3, "cases": 1' in capsys.readouterr().out


def taken() -> tuple[int, int, int]:
    """Return the bytes of Python and numpy, the objects, and the mappings of this process."""
    gc.collect()
    mappings = Path("/proc/self/maps").read_text(encoding="ascii").count("\n")
    return tracemalloc.get_traced_memory()[0], len(gc.get_objects()), mappings


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts the mappings of /proc")
def test_a_snapshot_that_was_refused_keeps_no_memory(known: dict[str, Reader]) -> None:
    reader = known["snapshots"]
    run(reader, seed=SEED, first=0, cases=WARM_CASES)  # what is made once, and kept
    tracemalloc.start()
    try:
        before = taken()
        found = run(reader, seed=SEED, first=WARM_CASES, cases=LOOKED_AT)
        grown = [after - then for after, then in zip(taken(), before, strict=True)]
    finally:
        tracemalloc.stop()

    assert found.refused > LOOKED_AT // 4
    # a table alone has several mappings, objects and kilobytes
    assert grown[0] < 2000 * found.refused
    assert grown[1] < found.refused
    assert grown[2] < found.refused // 4
