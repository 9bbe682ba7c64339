"""Keys that a model's own modules read, which no settings class declares.

PaddleRec's modules name a key where they read it: ``config.get("hyper_parameters.max_len")``.
A text of a module that is such a key in full is taken for a place that reads it.
"""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["keys_named", "keys_of_folders"]

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


def keys_of_folders(folders: Iterable[Path]) -> frozenset[str]:
    """Return the keys that the Python files in some folders name; none of those not there."""
    files = {file for folder in folders for file in folder.glob("*.py")}
    return frozenset().union(*(keys_named(_text(file)) for file in files))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
