"""Benchmarks can run the code of another checkout."""

import subprocess
import sys
from pathlib import Path

from paramfleet_shared.system.processes.keeping import tied
from trees import HERE, Tree


def test_this_checkout_has_the_benchmarks() -> None:
    assert (HERE.benchmarks / "trees.py").is_file()


def test_modules_of_a_checkout_come_before_those_installed(tmp_path: Path) -> None:
    package = tmp_path / "client" / "paramfleet"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("AGE = 'former'\n")

    command = [sys.executable, "-c", "import paramfleet; print(paramfleet.AGE)"]
    printed = subprocess.run(
        tied(command),
        env=Tree(tmp_path).environment(),
        capture_output=True,
        text=True,
        check=True,
    )

    assert printed.stdout == "former\n"


def test_a_folder_without_benchmarks_is_no_base(tmp_path: Path) -> None:
    script = HERE.benchmarks / "before_after.py"

    command = [sys.executable, str(script), f"--base={tmp_path}"]
    ended = subprocess.run(tied(command), capture_output=True, text=True, check=False)

    assert ended.returncode == 2
    assert f"{tmp_path} is no checkout of this project" in ended.stderr
