"""What the tutorials tell to do works, in their order: every block of python and shell.

A block whose first line names a file, as ``# train.py``, is that file; other ones of python are
a program together. Lines of shell are run one by one, with the tests' ``python`` and
``paramfleet``. Those of the cluster need an engine: they are compared with its files.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from paramfleet_shared.system.processes.keeping import tied

CHECKOUT = Path(__file__).parents[3]
TUTORIALS = CHECKOUT / "docs" / "tutorials"
COMPOSE = CHECKOUT / "deploy" / "compose"
BLOCK = re.compile(r"^```(python|sh|yaml|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w./-]+\.(?:py|yaml))\n")
WORDS = {
    "python": [sys.executable],
    "paramfleet": [sys.executable, "-m", "paramfleet_worker"],
}

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]


class Block(NamedTuple):
    """A block of a page."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [Block(language, text) for language, text in found]


def lines_of(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line


def run(words: list[str], folder: Path) -> str:
    """Run a command of a page; return its standard output."""
    command = [*WORDS.get(words[0], [words[0]]), *words[1:]]
    ended = subprocess.run(
        tied(command), cwd=folder, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"{shlex.join(words)}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def followed(name: str, folder: Path) -> dict[str, str]:
    """Do what a tutorial tells; return what each command of shell wrote."""
    written: dict[str, str] = {}
    programs = []
    for language, text in blocks(TUTORIALS / name):
        if named := NAMED.match(text):
            path = folder / named[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif language == "sh":
            for line in lines_of(text):
                written[line] = run(shlex.split(line, comments=True), folder)
        elif language == "python":
            programs.append(text)
    if programs:
        (folder / "rest_of_the_page.py").write_text("\n".join(programs), encoding="utf-8")
        run(["python", "rest_of_the_page.py"], folder)
    return written


def test_the_first_job_learns_alone_and_on_servers(tmp_path: Path) -> None:
    written = followed("first-job.md", tmp_path)

    for command in (
        "python train.py",
        "paramfleet launch --server_num 2 --worker_num 2 train.py",
    ):
        losses = [float(line) for line in written[command].split()]
        assert losses[-1] < losses[0] - 0.1
    assert {"serverlog.0", "serverlog.1", "workerlog.0"} <= set(written["ls log"].split())


def test_a_model_of_ones_own_learns_from_files_and_is_used_without_a_job(
    tmp_path: Path,
) -> None:
    written = followed("own-model.md", tmp_path)

    said = written["paramfleet launch --server_num 1 --worker_num 2 train.py"]
    assert float(said.removeprefix("accuracy ")) > 0.75
    best = [line.split() for line in written["python use.py"].splitlines()]
    assert [words[0] for words in best] == ["article"] * 5
    assert float(best[0][-1]) > 0.75


def test_all_modes_of_the_slow_network_train(tmp_path: Path) -> None:
    written = followed("slow-network.md", tmp_path)

    for mode in ("async", "geo", "prefetch"):
        command = f"paramfleet launch --server_num 1 --worker_num 2 train.py {mode}"
        assert written[command].startswith(f"{mode}: 150 steps in ")


def test_a_training_goes_on_with_the_next_day_and_what_it_publishes_is_used(
    tmp_path: Path,
) -> None:
    written = followed("online-learning.md", tmp_path)

    first, second = (
        json.loads(text.splitlines()[-1])
        for command, text in written.items()
        if command.startswith("paramfleet train")
    )
    assert (first["by_days"]["passes"], second["by_days"]["passes"]) == (4, 2)
    clicks = [float(number) for number in re.findall(r"0\.\d+", written["python use.py"])]
    assert clicks[0] < 0.5 < clicks[1]


def test_the_commands_of_the_cluster_name_what_it_has() -> None:
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))[
        "services"
    ]
    variables = {
        line.partition("=")[0]
        for line in (COMPOSE / ".env").read_text(encoding="utf-8").splitlines()
    }
    lines = [
        line
        for block in blocks(TUTORIALS / "compose.md")
        if block.language == "sh"
        for line in lines_of(block.text)
    ]
    commands = [shlex.split(line) for line in lines]

    assert commands.pop(0) == ["cd", "deploy/compose"]
    for words in commands:
        while "=" in words[0]:
            assert words.pop(0).partition("=")[0] in variables
        assert words[:2] == ["docker", "compose"]
        scaled = [word.partition("=")[0] for word in words if re.match(r"\w+=\d+$", word)]
        assert set(scaled) <= services.keys()
        if words[2] in {"run", "logs"}:
            named = [word for word in words[3:] if not word.startswith("-")]
            assert named[0] in services
