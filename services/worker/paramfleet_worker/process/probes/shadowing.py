"""Files of a user that Python would import instead of packages that a job needs.

A script's own folder is where Python looks first. So a script named ``torch.py`` imports itself
as torch, and ends with an error that names anything but that.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

__all__ = ["shadowing"]

_NEEDED = frozenset({
    "aiohttp", "click", "cryptography", "fsspec", "hpack", "llvmlite", "msgpack", "numba",
    "numpy", "paramfleet", "paramfleet_coordinator", "paramfleet_pserver",
    "paramfleet_serving", "paramfleet_shared", "paramfleet_worker", "prometheus_client",
    "redis", "rich", "torch", "typing_extensions", "uvloop", "yaml",
})  # fmt: skip
"""What a member of a job imports that isn't Python's own."""


def shadowing(script: Path) -> tuple[Path, str] | None:
    """Return a file that would be imported instead of a needed package, and its name.

    Args:
        script: Which is looked at itself, too, for names of Python's own modules as well.
    """
    folder = script.resolve().parent
    name = script.stem
    if script.suffix == ".py" and name in _of_python():
        return script, name
    for name in sorted(_NEEDED):
        for path in (folder / f"{name}.py", folder / name / "__init__.py"):
            if path.exists() and not _is_installed(name, path):
                return (script if path == script.resolve() else path), name
    return None


def _of_python() -> set[str]:
    """Return those of Python's own modules that are imported, and not before any folder."""
    return {
        name
        for name in sys.stdlib_module_names & sys.modules.keys()
        if getattr(sys.modules[name].__spec__, "origin", None)
        not in {None, "built-in", "frozen"}
    }


def _is_installed(name: str, path: Path) -> bool:
    """Return whether a file is the package itself, as in a folder of sources."""
    try:
        spec = find_spec(name)
    except ValueError:  # it is imported, and doesn't say from where
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin) == path
