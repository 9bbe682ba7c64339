"""Keys that a model's own modules read, which no settings class declares.

PaddleRec's modules name a key where they read it: ``config.get("hyper_parameters.max_len")``.
A text of a module that is such a key in full is taken for a place that reads it.
"""

import ast
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Modules", "keys_named", "keys_of"]

_PADDLE_MODEL = re.compile(r"(dygraph|static)_model\w*\.py")
_BESIDE_THEM = ("net.py", "infer.py", "static_infer.py")
"""Further files of PaddleRec's folders that only its models and scripts use."""

_KEY = re.compile(r"(runner|hyper_parameters)(\.\w+)+")


def keys_named(source: str) -> frozenset[str]:
    """Return the dotted keys that a module's texts are; none if it is no Python.

    Such a module ends the training when it is imported, and the import says why.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    texts = (node.value for node in nodes if isinstance(node, ast.Constant))
    return frozenset(text for text in texts if isinstance(text, str) and _KEY.fullmatch(text))


class Modules(NamedTuple):
    """Where the modules of a configuration lie."""

    folders: Sequence[Path]
    """All of them, that of the YAML first."""
    used: Collection[Path]
    """Those of which a module is used here, as the model, a reader or a pipe command."""
    networks: Path
    """That of the model."""


def keys_of(modules: Modules) -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys that Python files name; none of folders that aren't there.

    Returns:
        The keys of modules that may run here, and of those that don't: Paddle's models, the
        network beside them if the model is in another folder, and all of folders that aren't
        used.
    """
    files = {file for folder in modules.folders for file in folder.glob("*.py")}
    unused = {file for file in files if _PADDLE_MODEL.fullmatch(file.name)}
    unused |= {file for file in files if file.parent not in modules.used}
    if modules.networks != modules.folders[0]:
        unused |= {modules.folders[0] / name for name in _BESIDE_THEM} & files
    used = (keys_named(_text(file)) for file in files - unused)
    read: frozenset[str] = frozenset().union(*used)
    return read, frozenset().union(*(keys_named(_text(file)) for file in unused)) - read


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
