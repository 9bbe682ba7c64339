"""``paramfleet checkpoint``: a group whose options alone still write a checkpoint."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from paramfleet_shared.checkpoint.manifest import (
    FilePart,
    Manifest,
    SavedTable,
    write_manifest,
    write_part,
)
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_worker.__main__ import main


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["checkpoint", *map(str, words)])


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARAMFLEET_RUNTIME_DIR", str(tmp_path / "jobs"))


def written(folder: Path, *numbers: float) -> Path:
    spec = TableSpec(name="words", kind="sparse", dim=1)
    values = np.array(numbers, np.float32)[:, None]
    ids = np.arange(len(values))
    part = FilePart(ids=ids, values=values, states=np.empty((len(values), 0), np.float32))
    file = write_part(folder, "table000.safetensors", spec, part)
    write_manifest(folder, Manifest(tables=(SavedTable(spec=spec, version=1),), files=(file,)))
    return folder


@pytest.mark.parametrize("words", [[], ["write"], ["--name", "x"], ["write", "--name", "x"]])
def test_without_another_command_it_asks_the_running_job(words: list[str]) -> None:
    found = run(*words)

    assert found.exit_code == 1
    assert "paramfleet checkpoint: no job" in found.stderr


def test_load_asks_the_running_job_for_a_whole_path(tmp_path: Path) -> None:
    found = run("load", tmp_path / "kept")

    assert found.exit_code == 1
    assert "paramfleet checkpoint load: no job" in found.stderr
    assert run("load").exit_code == 2
    assert run("load", "x", "--timeout", "0").exit_code == 2


def test_options_of_write_before_another_command_are_refused(tmp_path: Path) -> None:
    found = run("--name", "x", "list", tmp_path)

    assert found.exit_code == 2
    assert "--name is before 'list': put it after that" in found.stderr


def test_list_shows_a_line_for_each(tmp_path: Path) -> None:
    written(tmp_path / "a", 1.0)
    (written(tmp_path / "b", 1.0, 2.0) / "table000.safetensors").unlink()

    found = run("list", tmp_path)

    assert found.exit_code == 0
    head, *lines = found.stdout.splitlines()
    assert head.split()[:3] == ["name", "written_at", "step"]
    assert {line.split()[0]: line.split()[-2] for line in lines[:2]} == {"a": "yes", "b": "no"}
    assert lines[2].startswith("b: table000.safetensors: No such file")
    as_json = json.loads(run("list", tmp_path, "--json").stdout)
    assert {each["name"]: each["rows"] for each in as_json} == {"a": 1, "b": 2}


def test_list_of_an_empty_folder_and_of_none(tmp_path: Path) -> None:
    assert run("list", tmp_path).stdout == f"no checkpoint in {tmp_path}\n"
    assert run("list", tmp_path, "--json").stdout == "[]\n"
    missing = run("list", tmp_path / "missing")
    assert missing.exit_code == 2
    assert "missing: No such file or directory; name a folder" in missing.stderr


def test_verify_ends_with_1_if_anything_is_wrong(tmp_path: Path) -> None:
    whole, damaged = written(tmp_path / "a", 1.0), written(tmp_path / "b", 1.0)
    (damaged / "table000.safetensors").write_bytes(b"")

    good, bad = run("verify", whole), run("verify", whole, damaged)

    assert (good.exit_code, bad.exit_code) == (0, 1)
    assert good.stdout.startswith(f"{whole}: whole; 1 file, 1 row, ")
    assert f"{damaged}: 1 problem; 1 file, 1 row, " in bad.stdout
    assert "table000.safetensors: its length is another; restore the file" in bad.stdout
    as_json = json.loads(run("verify", whole, damaged, "--json").stdout)
    assert [each["whole"] for each in as_json] == [True, False]
    assert as_json[1]["problems"][0]["file"] == "table000.safetensors"


def test_verify_reads_all_checkpoints_in_a_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        written(tmp_path / "kept" / name, 1.0)
    (tmp_path / "kept" / "latest").symlink_to("b")
    (tmp_path / "kept" / ".c.0123abcd.partial").mkdir()
    whole = run("verify", tmp_path / "kept")
    (tmp_path / "kept" / "b" / "table000.safetensors").unlink()
    damaged = run("verify", tmp_path / "kept")

    assert (whole.exit_code, damaged.exit_code) == (0, 1)
    read = {line.partition(":")[0] for line in whole.stdout.splitlines()}
    assert read == {str(tmp_path / "kept" / name) for name in ("a", "b")}
    assert f"{tmp_path / 'kept' / 'b'}: 1 problem; " in damaged.stdout
    assert "table000.safetensors: [Errno 2]" in damaged.stdout


@pytest.mark.parametrize("name", ["empty", "none"])
def test_verify_of_a_folder_without_checkpoints_says_what_to_name(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "empty").mkdir()

    found = run("verify", tmp_path / name)

    assert found.exit_code == 1
    assert (
        f"manifest.json: is missing from {tmp_path / name}; name a checkpoint" in found.stdout
    )
    assert "Errno" not in found.output


def test_diff_ends_with_0_1_or_2(tmp_path: Path) -> None:
    a, same = written(tmp_path / "a", 1.0, 2.0), written(tmp_path / "same", 1.0, 2.0)
    other, damaged = written(tmp_path / "other", 1.0, 2.5), written(tmp_path / "damaged", 1.0)
    (damaged / "table000.safetensors").write_bytes(b"")

    found = [run("diff", a, each) for each in (same, other, damaged, tmp_path / "none")]

    assert [each.exit_code for each in found] == [0, 1, 2, 2]
    assert found[0].stdout.splitlines()[-1] == "the tables and buffers of A and B are equal"
    assert "words: 1 rows changed, by 0.5 at most" in found[1].stdout
    as_json = json.loads(run("diff", a, other, "--json").stdout)
    assert as_json["equal"] is False
    assert as_json["tables"][0]["changes"]["largest"] == 0.5


def test_export_has_both_names(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", 1.0, 2.0)
    words = ["export", str(folder), "--table", "words", "--format", "word2vec", "--output"]

    both = [
        run(*words, tmp_path / "one"),
        CliRunner().invoke(main, [*words, str(tmp_path / "two")]),
    ]

    assert [each.exit_code for each in both] == [0, 0], both
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text() == "2 1\n0 1\n1 2\n"


def test_a_collective_job_refuses_to_resume(tmp_path: Path) -> None:
    words = ["launch", "--nproc_per_node=1", "--resume", str(tmp_path), "train.py"]

    found = CliRunner().invoke(main, words)

    assert found.exit_code == 2
    assert "resume" in found.stderr


def test_a_launch_names_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")

    found = CliRunner().invoke(main, ["launch", "--resume", str(tmp_path / "no"), str(script)])

    assert found.exit_code == 2
    assert "no: No such file or directory" in found.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["checkpoint", "list", "."],
        ["checkpoint", "verify", "."],
        ["checkpoint", "diff", "a", "b"],
        ["checkpoint", "compact", "a"],
        ["export", ".", "--table", "words", "--output", "rows.npy"],
        ["launch", __file__],
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_a_working_folder_that_was_removed_is_named(tmp_path: Path, words: list[str]) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os, sys; os.rmdir(os.getcwd()); from paramfleet_worker.__main__ import main; "
        "sys.argv[0] = 'paramfleet'; main()"
    )

    command = tied([sys.executable, "-c", code, *words])
    ended = subprocess.run(command, cwd=gone, capture_output=True, text=True, check=False)

    assert ended.returncode == 2
    assert "Error: the working folder was removed: change to one that is there" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_command_that_gets_no_memory_says_so_in_one_line(tmp_path: Path) -> None:
    kept = written(tmp_path / "kept", 1.0, 2.0)
    words = ["export", str(kept), "--table", "words", "--output", str(tmp_path / "rows.npy")]
    code = (
        "import pathlib, resource\n"
        "import paramfleet_worker.app.export.table\n"
        "from paramfleet_worker.__main__ import main\n"
        "pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])\n"
        "most = pages * resource.getpagesize() + 8_000_000  # less than reads a manifest\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "main()"
    )

    command = tied([sys.executable, "-c", code, *words])
    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert ended.stderr.startswith("paramfleet export: the system gives it no more memory")
    assert len(ended.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
