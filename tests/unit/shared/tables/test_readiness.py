"""Whether the kernels are compiled, and who compiles them."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import numba
import pytest

import paramfleet_shared
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.tables.kernels.basics import readiness
from paramfleet_shared.tables.kernels.basics.readiness import (
    alone,
    compiling,
    is_cold,
    note_compiled,
)
from paramfleet_shared.values.versions import versions

ASKS = """
from paramfleet_shared.tables.kernels.basics import readiness
print(readiness.is_cold())
"""

TOUCHES = """
import os
from pathlib import Path
from paramfleet_shared.tables.kernels.basics import readiness
from paramfleet_shared.values.versions import versions
versions()["numba"] = os.environ["NUMBA"]
readiness.note_compiled()
print(readiness.is_cold())
os.utime(Path(readiness.__file__).parents[1] / "rows.py", (1, 1))
print(readiness.is_cold())
"""

LOADS = """
import touched
touched.plus_one(1)
print(sum(touched.plus_one.stats.cache_hits.values()))
"""


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder for kernels in which there are none."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_machine_is_cold_until_every_kernel_is_compiled(cache: Path) -> None:
    assert is_cold()

    note_compiled()

    assert not is_cold()
    assert [folder.name[:8] for folder in cache.iterdir()] == ["kernels-"]


def test_nobody_imports_numba_to_know_whether_there_is_something_to_compile() -> None:
    asks = (
        "import sys; from paramfleet_shared.tables.kernels.basics.readiness import is_cold; "
        "is_cold(); "
        "print('numba' in sys.modules)"
    )

    done = subprocess.run(
        tied([sys.executable, "-c", asks]),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout == "False\n"


@pytest.mark.usefixtures("cache")
def test_another_numba_needs_kernels_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    note_compiled()

    monkeypatch.setitem(versions(), "numba", "0.0.0")

    assert is_cold()


def said(script: str, environment: Mapping[str, str]) -> list[str]:
    """Return what a Python says that has these variables, too."""
    done = subprocess.run(
        tied([sys.executable, "-c", script]),
        env={**read_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


def copied(folder: Path) -> Path:
    """Copy the package to a folder, as an installation is copied."""
    package = Path(paramfleet_shared.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, folder / package.name, ignore=ignored)
    return folder


def test_a_copy_of_the_sources_needs_kernels_of_its_own(cache: Path, tmp_path: Path) -> None:
    note_compiled()
    copy = copied(tmp_path / "copy")

    assert said(ASKS, {"NUMBA_CACHE_DIR": str(cache)}) == ["False"]
    assert said(ASKS, {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(copy)}) == ["True"]


@pytest.mark.parametrize(("version", "is_cold"), [("0.67.0", "True"), ("0.68.0", "False")])
def test_sources_that_were_written_again_need_new_kernels_where_numba_goes_by_times(
    tmp_path: Path, version: str, is_cold: str
) -> None:
    copy = copied(tmp_path / "copy")
    own = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(copy), "NUMBA": version}

    assert said(TOUCHES, own) == ["False", is_cold]


def test_numba_goes_by_what_the_mark_is_named_after(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    source = tmp_path / "one" / "touched.py"
    source.write_text(
        "import numba\n\n\n@numba.njit(cache=True)\ndef plus_one(x):\n    return x + 1\n"
    )
    own = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(source.parent)}

    assert said(LOADS, own) == ["0"], "it is compiled"
    assert said(LOADS, own) == ["1"], "it is loaded"
    os.utime(source, (1, 1))
    goes_by_times = tuple(map(int, numba.__version__.split(".")[:2])) < (0, 68)
    assert said(LOADS, own) == ["0" if goes_by_times else "1"]
    shutil.copytree(source.parent, tmp_path / "two")
    assert said(LOADS, {**own, "PYTHONPATH": str(tmp_path / "two")}) == ["0"], "elsewhere"


def test_where_no_kernel_can_be_kept_nobody_compiles_ahead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(readiness, "kernel_folders", lambda: (tmp_path / "file" / "kernels",))

    note_compiled()
    with alone():
        assert not is_cold()


@pytest.mark.usefixtures("cache")
def test_one_compiles_at_a_time() -> None:
    order: list[str] = []

    def second() -> None:
        with alone():
            order.append("second")

    thread = threading.Thread(target=second)
    with alone():
        thread.start()
        order.append("first")
    thread.join()

    assert order == ["first", "second"]


def test_compiling_ends_with_whoever_waits_for_it() -> None:
    with compiling() as process:
        assert process.poll() is None

    assert process.poll() is not None
