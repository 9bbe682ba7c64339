"""A new project's files."""

import ast
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from paramfleet_worker.__main__ import main
from paramfleet_worker.app.beginning.new_project.writing import (
    FILES,
    ProjectExistsError,
    ProjectNameError,
    write_project,
)


def test_a_project_is_a_training_its_test_and_a_readme(tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, ["new", str(tmp_path / "clicks")])

    assert shown.exit_code == 0, shown.output
    assert f"cd {tmp_path}/clicks\n" in shown.output
    assert sorted(path.name for path in (tmp_path / "clicks").iterdir()) == sorted(FILES)
    assert (tmp_path / "clicks" / "README.md").read_text().startswith("# clicks\n")
    for name in ("train.py", "test_train.py"):
        text = (tmp_path / "clicks" / name).read_text()
        assert ast.get_docstring(ast.parse(text))
        assert max(map(len, text.splitlines())) <= 96


def test_others_may_read_it_as_they_may_what_is_made_by_hand(tmp_path: Path) -> None:
    (tmp_path / "by_hand").mkdir()

    write_project(tmp_path / "below" / "clicks")

    usual = stat.S_IMODE((tmp_path / "by_hand").stat().st_mode)
    assert stat.S_IMODE((tmp_path / "below" / "clicks").stat().st_mode) == usual


@pytest.mark.parametrize("name", ["-x", ".hidden", "a b", "", "x" * 101, "a\nb"])
def test_a_name_is_one_that_shells_and_people_can_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProjectNameError):
        write_project(Path(f"{tmp_path}/sub/..", name) if not name else tmp_path / name)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_there_is_left_as_it_is(tmp_path: Path, kind: str) -> None:
    taken = tmp_path / "taken"
    if kind == "file":
        taken.write_text("mine")
    elif kind == "folder":
        taken.mkdir()
    else:
        taken.symlink_to(tmp_path / "nowhere")

    with pytest.raises(ProjectExistsError):
        write_project(taken)
    shown = CliRunner().invoke(main, ["new", str(taken)])

    assert shown.exit_code == 2
    assert shown.output.startswith(f"Error: {taken} is there already")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert kind != "file" or taken.read_text() == "mine"
