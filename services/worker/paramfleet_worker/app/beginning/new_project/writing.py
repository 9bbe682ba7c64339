"""A new project's folder: written beside, and then put in its place as a whole."""

import os
import re
import shutil
import tempfile
from importlib.resources import files
from pathlib import Path
from string import Template

from paramfleet_shared.errors import ContractError

__all__ = ["FILES", "ProjectExistsError", "ProjectNameError", "write_project"]

FILES = ("README.md", "test_train.py", "train.py")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class ProjectNameError(ContractError):
    """A project can't have this name."""

    code = "contract.project_name"
    name: str
    sentence = (
        "{name!r} can't be a project's name: take 1 to 100 letters, digits, dots, dashes or "
        "underscores, no dot or dash first"
    )


class ProjectExistsError(ContractError):
    """Something has the project's name already."""

    code = "contract.project_exists"
    path: str
    sentence = "{path} is there already, and is left as it is: name another folder"


def write_project(folder: Path) -> list[Path]:
    """Write a project that trains and whose tests pass; return its files.

    Args:
        folder: Which must not be there; its last part is the project's name.

    Raises:
        ProjectNameError: if that isn't a name.
        ProjectExistsError: if it is there.
        OSError: if it can't be written.
    """
    if not _NAME.fullmatch(folder.name):
        raise ProjectNameError(name=folder.name)
    if os.path.lexists(folder):
        raise ProjectExistsError(path=str(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name in FILES:
            text = files(__package__).joinpath("template", f"{name}.txt").read_text("utf-8")
            with (beside / name).open("w", encoding="utf-8") as file:
                file.write(_filled(name, text, folder.name))
                file.flush()
                os.fsync(file.fileno())
        beside.chmod(0o777 & ~_umask())
        try:
            beside.rename(folder)
        except OSError as error:
            if os.path.lexists(folder):  # somebody was faster
                raise ProjectExistsError(path=str(folder)) from error
            raise
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return [folder / name for name in FILES]


def _filled(name: str, text: str, project: str) -> str:
    return Template(text).substitute(name=project) if name == "README.md" else text


def _umask() -> int:
    """Return which rights this process gives nobody; the system tells it by a change alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
