"""Whether the kernels are compiled, and who compiles them."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.tables.kernels.basics import readiness
from paramfleet_shared.tables.kernels.basics.readiness import (
    alone,
    compiling,
    is_cold,
    note_compiled,
)
from paramfleet_shared.values.versions import versions


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
