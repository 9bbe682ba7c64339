"""Whether the processes of a job may share what they import, by what their script says."""

import ast
from collections.abc import Iterator, Mapping

__all__ = ["imports_torch", "reason_against"]

OF_LIBRARIES = ("GOMP_", "KMP_", "MKL_", "NUMBA_", "OMP_", "OPENBLAS_", "PYTORCH_", "TORCH")
"""Begins of variables that libraries read while they are imported."""

OF_WATCHERS = (
    "COVERAGE_PROCESS_CONFIG",
    "COVERAGE_PROCESS_START",
    "LD_PRELOAD",
    "PYTHONDEVMODE",
    "PYTHONINSPECT",
    "PYTHONPROFILEIMPORTTIME",
    "PYTHONTRACEMALLOC",
)
"""Variables with which somebody watches an interpreter from its first moment."""

_ROOTS = frozenset({"paramfleet", "torch"})

_CHANGES = frozenset({"clear", "pop", "setdefault", "update"})


def imports_torch(source: str) -> bool:
    """Return whether a script imports torch, or paramfleet: others start as soon alone.

    Args:
        source: Of the script.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # its own interpreter says what is wrong
    names = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return any(name.partition(".")[0] in _ROOTS for name in names)


def reason_against(source: str, environment: Mapping[str, str]) -> str:
    """Return why each process is to import for itself; empty if nothing speaks against sharing.

    Args:
        source: Of the script, which can be read; empty for the runner's.
        environment: What the processes inherit.
    """
    for name in OF_WATCHERS:
        if environment.get(name):
            return f"{name} is set"
    for name in _set_by(ast.parse(source)):
        if not name:
            return "the script sets variables of the environment"
        if name.startswith(OF_LIBRARIES):
            return f"the script sets {name}, which is read while libraries are imported"
    return ""


def _set_by(tree: ast.AST) -> Iterator[str]:
    """Yield the variables that a program may set; empty for one whose name isn't clear."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _is_environment(node.value):
            if not isinstance(node.ctx, ast.Load):
                yield _text(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            first = node.args[0] if node.args else None
            if node.func.attr == "putenv":
                yield _text(first)
            elif node.func.attr in _CHANGES and _is_environment(node.func.value):
                keys = first.keys if isinstance(first, ast.Dict) else [first]
                yield from map(_text, keys)


def _is_environment(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in {"environ", "environb"}


def _text(node: ast.AST | None) -> str:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return str(node.value) if isinstance(node, ast.Constant) and is_text else ""
