"""Which optimizers PaddleRec's code of a model trains with, whatever its YAML says.

PaddleRec's trainers don't read ``hyper_parameters.optimizer.class``: the model's own
``create_optimizer`` names a class of ``paddle.optimizer``. Here the key is what trains.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paramfleet.runner.config.configuration import Config

__all__ = ["optimizer_note", "optimizers_named"]

_FILES = ("dygraph_model.py", "static_model.py")


def optimizer_note(config: Config[Any]) -> str | None:
    """Return what to know of a YAML whose optimizer isn't the one of PaddleRec's code.

    Only files of PaddleRec's that lie beside the YAML or the model are looked at; they are
    parsed, never run.
    """
    ours = config.hyper_parameters.optimizer.name
    folders = dict.fromkeys([config.modules, config.path.parent])
    found = optimizers_named(_sources(folder / name for folder in folders for name in _FILES))
    if not found or ours.lower() in {each.lower() for each in found}:
        return None
    theirs = " or ".join(found)
    return (
        f"{config.path}: hyper_parameters.optimizer.class = {ours}: trains with {ours} here; "
        f"PaddleRec's create_optimizer ({', '.join(sorted(set(found.values())))}) trains with "
        f"{theirs} whatever the key says. For its results: "
        f"-o hyper_parameters.optimizer.class={next(iter(found))}"
    )


def optimizers_named(sources: Mapping[str, str]) -> dict[str, str]:
    """Return the optimizers that ``create_optimizer`` makes, each with the file it is in.

    Args:
        sources: The text of modules by file name; of one that is no Python, none are found.
    """
    found: dict[str, str] = {}
    for name, source in sources.items():
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and function.name == "create_optimizer":
                for made in _made_in(function):
                    found.setdefault(made, name)
    return found


def _made_in(function: ast.FunctionDef) -> Iterator[str]:
    """Yield ``Adam`` for each ``paddle.optimizer.Adam(...)``."""
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            module = call.func.value
            if isinstance(module, ast.Attribute) and module.attr == "optimizer":
                yield call.func.attr


def _sources(files: Iterator[Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in files:
        try:
            found.setdefault(file.name, file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
    return found
