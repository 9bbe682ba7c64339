"""``paramfleet plan``, run as a command."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paramfleet_worker.__main__ import main

PAGE = Path(__file__).parents[5] / "docs" / "planning.md"
EXAMPLE = re.compile(
    r"^```console\n\$ paramfleet (plan .*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


def run(text: str) -> Result:
    return CliRunner().invoke(main, shlex.split(text))


def test_the_examples_of_the_page_answer_as_it_says() -> None:
    examples = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))

    assert len(examples) == 2
    for command, answer in examples:
        result = run(command)
        assert result.exit_code == 0, result.output
        assert result.stdout == answer


def test_json_has_the_same_numbers() -> None:
    result = run("plan --ids 1e9 --dim 8 --servers 4 --memory 16G --examples-per-s 1000 --json")

    found = json.loads(result.stdout)
    assert found["rows"] == 250_000_000
    assert found["row_bytes"] == 64
    assert found["verdict"] == "tier"
    assert found["misses"]["reads_per_s"] == pytest.approx(found["misses"]["clock"] * 1000 / 4)
    assert set(found["disk"]) == {"pages", "log"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--ids many", "say a number, as 2e9"),
        ("--ids 0.5", "say a whole number from 1"),
        ("--ids 1e30", "say a whole number from 1"),
        ("--ids nan", "say a whole number from 1"),
        ("--ids 5 --memory 3X", "say bytes as 512M, 32G or 1.5T"),
        ("--ids 5 --memory 0.1", "say 1 byte or more"),
        ("--ids 5 --zipf nan", "nan is not a number that can be counted to"),
        ("--ids 5 --samples-per-s inf", "inf is not a number that can be counted to"),
        ("--ids 5 --owner-threads 0", "0 is not in the range 1<=x<=1024"),
        ("--ids 5 --optimizer nothing", "'nothing' is not one of"),
    ],
)
def test_what_can_not_be_is_named(options: str, said: str) -> None:
    result = run(f"plan --dim 8 --servers 4 {options}")

    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_rows_too_wide_for_a_disk_need_memory(storage: str) -> None:
    result = run(f"plan --ids 1e9 --dim 100000 --servers 2 --memory 1G --storage {storage}")

    assert result.exit_code == 0, result.output
    assert "more pservers: rows of " in result.stdout
    assert "bytes are too wide for a disk; all rows fit" in result.stdout
    assert "disk  " not in result.stdout


def test_hardly_any_memory_is_too_little() -> None:
    result = run("plan --ids 1e9 --dim 8 --servers 1 --memory 1")

    assert result.exit_code == 0, result.output
    assert "more memory: beside" in result.stdout


def test_a_small_table_on_one_pserver_fits() -> None:
    result = run(
        "plan --ids 1000 --dim 8 --servers 1 --memory 1.5G --accessor SparseAdamSGDRule"
    )

    assert result.exit_code == 0
    assert result.stdout.startswith("the pserver\n")
    assert "memory: all rows fit in memory" in result.stdout
