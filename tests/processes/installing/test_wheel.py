"""What a user without a clone gets: the wheel, installed into an environment of its own.

The environment has the packages that the wheel requires, as links to those of the tests, and
no other one: pip says if a requirement is missing, and Python if an import is.
"""

import hashlib
import importlib.metadata
import json
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.tables.kernels.basics.folders import kernel_sources
from paramfleet_shared.tables.kernels.basics.parts import ALL_PARTS
from paramfleet_shared.tables.kernels.basics.readiness import is_cold, kernel_folders

CHECKOUT = Path(__file__).parents[3]
INSTALLING = CHECKOUT / "docs" / "installing.md"
SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARYING = re.compile(r"\d+\.\d+|\b[0-9a-f]{6}\b|:\d+\b")
PACKAGES = ("paramfleet", "coordinator", "pserver", "serving", "shared", "worker")
NAMES = ("python3.11", "python3.12", "python3.13")

pytestmark = [pytest.mark.processes, pytest.mark.slow]


class Installed(NamedTuple):
    """An environment with the wheel."""

    folder: Path
    packages: Path
    wheel: Path

    def run(self, words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a command as its user does; programs are those of the environment alone."""
        own = {
            "PATH": str(self.folder / "bin"),
            "NUMBA_CACHE_DIR": str(self.folder / "kernels"),
        }
        kept = ("HOME", "TMPDIR", "PARAMFLEET_RUNTIME_DIR")
        given = {name: value for name, value in read_environment().items() if name in kept}
        return subprocess.run(
            tied([str(self.folder / "bin" / words[0]), *words[1:]]),
            cwd=cwd,
            env=given | own,
            capture_output=True,
            text=True,
            check=False,
        )


def checked(command: list[str]) -> str:
    ended = subprocess.run(tied(command), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{shlex.join(command)}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution, and the wheel from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    checked([*command, str(CHECKOUT)])
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel as the page says."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    link_requirements("paramfleet", {"torch", "local"}, packages)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    install = ["install", "--no-index", "--no-compile", "--disable-pip-version-check"]
    checked([*pip, *install, f"{wheel}[torch,local]"])
    environment = Installed(folder, packages, wheel)
    take_kernels(environment)
    return environment


def link_requirements(name: str, extras: set[str], packages: Path) -> None:
    """Link what a distribution requires, and what that requires."""
    seen: set[str] = set()
    waiting = [Requirement(f"{name}[{','.join(sorted(extras))}]")]
    while waiting:
        asked = waiting.pop()
        for needed in importlib.metadata.requires(asked.name) or ():
            requirement = Requirement(needed)
            wanted = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in asked.extras | {""}
            )
            if wanted and requirement.name not in seen:
                seen.add(requirement.name)
                waiting.append(requirement)
                link_one(importlib.metadata.distribution(requirement.name), packages)


def link_one(distribution: importlib.metadata.Distribution, packages: Path) -> None:
    for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
        there = packages / top
        if not there.exists():
            there.symlink_to(Path(str(distribution.locate_file(top))))


def take_kernels(environment: Installed) -> None:
    """Take kernels that the checkout has compiled, where it has: that takes a minute.

    numba keeps a kernel in a folder that is named after where its source is.
    """
    if is_cold():
        return
    compiled = next(folder for folder in kernel_folders() if folder.is_dir())
    shared = CHECKOUT / "shared"
    for folder in {path.parent for path in kernel_sources()}:
        own = environment.packages / folder.relative_to(shared)
        kept = compiled / numbas_name(folder)
        if kept.is_dir():
            target = environment.folder / "kernels" / compiled.name / numbas_name(own)
            shutil.copytree(kept, target)
    module = "paramfleet_shared.tables.kernels.basics.readiness"
    parts = [part for part in ALL_PARTS if not is_cold(part)]
    noting = f"from {module} import note_compiled; [*map(note_compiled, {parts})]"
    noted = environment.run(["python", "-c", noting], environment.folder)
    assert noted.returncode == 0, noted.stderr


def numbas_name(folder: Path) -> str:
    return f"{folder.name}_{hashlib.sha1(str(folder).encode()).hexdigest()}"


def test_the_wheel_has_all_packages_their_types_and_the_licence(
    installed: Installed,
) -> None:
    names = {path.name for path in installed.packages.iterdir()}

    (about,) = [name for name in names if re.fullmatch(r"paramfleet-[\d.]+\.dist-info", name)]
    metadata = (installed.packages / about / "METADATA").read_text(encoding="utf-8")
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nClassifier: Typing :: Typed\n" in metadata
    assert (installed.packages / about / "licenses" / "LICENSE").is_file()
    for package in PACKAGES:
        name = package if package == "paramfleet" else f"paramfleet_{package}"
        assert (installed.packages / name / "py.typed").is_file()
    version = importlib.metadata.version("paramfleet")
    said = installed.run(["paramfleet", "--version"], installed.folder)
    assert said.stdout == f"paramfleet, version {version}\n"


def test_the_recorded_session_is_what_happens(installed: Installed, tmp_path: Path) -> None:
    (session,) = SESSION.findall(INSTALLING.read_text(encoding="utf-8"))
    (first, _), (second, recorded) = commands_of(session)
    assert first == "pip install 'paramfleet-0.1.0-py3-none-any.whl[torch,local]'"
    assert installed.wheel.name in first

    ended = installed.run(shlex.split(second), tmp_path)

    assert ended.returncode == 0, ended.stderr
    assert [plain(line) for line in ended.stdout.splitlines()] == [
        plain(line) for line in recorded
    ]
    result, before = (json.loads(text[-1]) for text in (ended.stdout.splitlines(), recorded))
    assert without_times(result) == without_times(before)
    assert result["test_auc"] > 0.85


def commands_of(session: str) -> Iterator[tuple[str, list[str]]]:
    for part in session.split("$ ")[1:]:
        command, *output = part.splitlines()
        yield command, output


def plain(line: str) -> str:
    return VARYING.sub("#", line)


def without_times(result: Mapping[str, object]) -> dict[str, object]:
    return {
        name: value for name, value in result.items() if name not in {"seconds", "test_auc"}
    }


def test_every_python_here_compiles_all_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)

    for python in pythons():
        checked([python, "-m", "compileall", "-q", "-f", str(tmp_path)])


def pythons() -> list[str]:
    """Return other Pythons that work here; this one if there is none."""
    found = [path for name in NAMES if (path := shutil.which(name)) is not None]
    others = [path for path in found if version_of(path) not in {None, sys.version_info[:2]}]
    return others or [sys.executable]


def version_of(python: str) -> tuple[int, ...] | None:
    asking = [python, "-c", "import sys; print(*sys.version_info[:2])"]
    ended = subprocess.run(tied(asking), capture_output=True, text=True, check=False)
    return tuple(map(int, ended.stdout.split())) if ended.returncode == 0 else None
