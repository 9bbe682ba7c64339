"""Whether the kernels are compiled, and who compiles them."""

import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numba
import pytest

import paramfleet_shared
from paramfleet_shared.files.exclusion import HeldTooLongError
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.tables.kernels.basics import readiness
from paramfleet_shared.tables.kernels.basics.folders import UnsafeKernelsError
from paramfleet_shared.tables.kernels.basics.readiness import (
    alone,
    compile_missing,
    compiling,
    is_cold,
    kernel_folders,
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


@pytest.mark.usefixtures("cache")
def test_each_part_of_the_kernels_has_a_mark_of_its_own() -> None:
    note_compiled("float16")

    assert is_cold()
    assert not is_cold("float16")
    assert is_cold("bfloat16")


async def test_parts_that_a_machine_lacks_are_compiled_in_another_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    compiled = next(folder for folder in kernel_folders() if folder.is_dir())
    caplog.set_level(logging.INFO)
    without_marks = shutil.ignore_patterns("complete-*")  # to compile anew takes seconds
    shutil.copytree(compiled, tmp_path / compiled.name, ignore=without_marks)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    note_compiled("wire")

    await compile_missing(("own-rows", "wire"), SystemClock())

    assert not is_cold("own-rows")
    assert [each.getMessage() for each in caplog.records] == [
        "kernels.compiling",
        "kernels.compiled",
    ]
    caplog.clear()
    await compile_missing(("own-rows", "wire"), SystemClock())
    assert not caplog.records


@pytest.mark.usefixtures("cache")
async def test_who_waits_goes_on_where_a_part_could_not_be_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(readiness, "WARM", "paramfleet_shared.nothing")

    await compile_missing(("float16",), SystemClock())

    assert is_cold("float16")
    assert caplog.records[-1].getMessage() == "kernels.not_compiled"


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


HOLDS = """
import sys
from paramfleet_shared.tables.kernels.basics.readiness import alone
with alone():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(cache: Path) -> Iterator["subprocess.Popen[str]"]:
    """Return another process, which compiles."""
    process = subprocess.Popen(
        tied([sys.executable, "-c", HOLDS]),
        env={**read_environment(), "NUMBA_CACHE_DIR": str(cache)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.communicate()


def test_who_waits_for_a_process_that_gets_no_further_is_told_which_it_is(
    holder: "subprocess.Popen[str]",
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(readiness, "TOLD_AFTER_S", 0.1)
    monkeypatch.setattr(readiness, "STUCK_AFTER_S", 0.5)

    with (
        pytest.raises(HeldTooLongError, match=f"process {holder.pid} on .* is compiling"),
        alone(),
    ):
        pass

    said = capsys.readouterr().err
    assert said.startswith(f"waiting for process {holder.pid} on ")
    assert ", which is compiling the table kernels: only the first start after an " in said
    assert said.endswith("; later starts use what it has compiled\n")
    assert said.count("\n") == 1


def test_who_waits_goes_on_when_the_other_one_has_ended(
    holder: "subprocess.Popen[str]", capsys: pytest.CaptureFixture[str]
) -> None:
    holder.communicate()

    with alone():
        lock = next(readiness.kernel_folders()[0].glob("lock"))
        assert lock.read_text().startswith(f"{os.getpid()} on ")

    assert capsys.readouterr().err == ""


def test_compiling_ends_with_whoever_waits_for_it() -> None:
    with compiling() as process:
        assert process.poll() is None

    assert process.poll() is not None


def test_a_compilation_that_stands_still_is_ended_too() -> None:
    with compiling() as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)

    assert process.poll() == -signal.SIGKILL


def test_kernels_that_a_loose_umask_leaves_open_are_in_a_closed_folder(tmp_path: Path) -> None:
    kept = tmp_path / "given" / "kernels"
    program = (
        "import os; os.umask(0)\n"
        "from paramfleet_shared.tables.kernels.basics import compiled\n"
        "print(compiled._FOLDERS[0]); print(oct(os.umask(0)))"
    )
    environment = {**read_environment(), "NUMBA_CACHE_DIR": str(kept)}

    said = subprocess.check_output(
        tied([sys.executable, "-c", program]), env=environment, text=True
    )

    folder, umask = said.split()
    assert Path(folder).parent == kept
    assert [
        stat.S_IMODE(path.stat().st_mode) for path in (Path(folder), kept, kept.parent)
    ] == [0o700] * 3
    assert umask == "0o0", "the process's own is as it was"


def test_a_folder_of_kernels_that_is_a_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    (folder,) = kernel_folders()
    (tmp_path / "own").mkdir()
    folder.parent.mkdir()
    folder.symlink_to(tmp_path / "own")

    with pytest.raises(UnsafeKernelsError, match="is a link"):
        kernel_folders()


def test_a_folder_of_others_keeps_no_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    (folder,) = kernel_folders()
    folder.mkdir(parents=True)

    folder.chmod(0o777)
    with pytest.raises(UnsafeKernelsError, match=f"others may write to {folder}"):
        kernel_folders()
    folder.chmod(0o755)
    folder.parent.chmod(0o777)
    with pytest.raises(
        UnsafeKernelsError, match="name a folder of this user in NUMBA_CACHE_DIR"
    ):
        kernel_folders()
    folder.parent.chmod(0o1777)  # sticky, as /tmp: nobody replaces what is there
    assert kernel_folders() == (folder,)
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        with pytest.raises(UnsafeKernelsError, match="is another user's"):
            kernel_folders()


def test_a_folder_keeps_no_kernels_if_others_may_replace_any_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = tmp_path / "above"
    (above / "mine" / "kernels").mkdir(parents=True)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(above / "mine" / "kernels"))

    above.chmod(0o777)
    with pytest.raises(UnsafeKernelsError, match=f"others may write to {above} "):
        kernel_folders()
    with pytest.raises(subprocess.CalledProcessError):  # and none is loaded from there
        subprocess.run(
            tied([sys.executable, "-c", "import paramfleet_shared.tables.rows.routing"]),
            env=read_environment(),
            check=True,
            capture_output=True,
        )
    above.chmod(0o1777)
    assert len(kernel_folders()) == 1
    if os.geteuid() == 0:
        os.chown(above, 65534, 65534)
        with pytest.raises(UnsafeKernelsError, match=f"{above} is another user's"):
            kernel_folders()


def test_without_a_place_of_its_own_a_home_of_another_user_keeps_no_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(home))
    assert len(kernel_folders()) == 2

    home.chmod(0o777)
    assert len(kernel_folders()) == 1, "only the folder beside the sources"


def test_no_folder_is_made_in_the_home_where_kernels_are_kept_beside_their_sources(
    tmp_path: Path,
) -> None:
    environment = {**read_environment(), "HOME": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    program = "import paramfleet_shared.tables.kernels.basics.compiled"

    subprocess.run(tied([sys.executable, "-c", program]), env=environment, check=True)

    assert not (tmp_path / ".cache" / "paramfleet").exists()


@pytest.mark.usefixtures("cache")
def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (folder,) = kernel_folders()
    folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / "target").write_text("behind")
    (folder / "lock").unlink(missing_ok=True)
    (folder / "lock").symlink_to(tmp_path / "target")

    with pytest.raises(OSError, match="symbolic links"), alone():
        pass

    assert (tmp_path / "target").read_text() == "behind"
