"""What the linters can't say about the shape of the code."""

import ast
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
FOLDERS = ("client", "shared", "services", "examples", "models", "benchmarks", "scripts")
ROOMS = {
    str(path.relative_to(CHECKOUT)): path.read_text(encoding="utf-8")
    for folder in FOLDERS
    for path in sorted((CHECKOUT / folder).rglob("*.py"))
}
MAX_ROOM_LINES = 400
MAX_FUNCTION_LINES = 60


@cache
def trees() -> dict[str, ast.Module]:
    """Return each module's syntax tree; not at collection, which each process does."""
    return {name: ast.parse(text) for name, text in ROOMS.items()}


def test_every_folder_has_rooms() -> None:
    empty = [folder for folder in FOLDERS if not any(name.startswith(folder) for name in ROOMS)]

    assert not empty


def test_a_room_can_be_read_at_one_sitting() -> None:
    lengths = {name: len(text.splitlines()) for name, text in ROOMS.items()}

    long = {name: length for name, length in lengths.items() if length > MAX_ROOM_LINES}

    assert not long, f"more than {MAX_ROOM_LINES} lines: split them"


def test_a_room_says_what_it_is() -> None:
    docstrings = {name: ast.get_docstring(tree) for name, tree in trees().items()}

    silent = [name for name, docstring in docstrings.items() if not docstring]
    loose = [
        name
        for name, docstring in docstrings.items()
        if docstring and not docstring.splitlines()[0].endswith((".", "?", "``"))
    ]

    assert not silent, "no docstring"
    assert not loose, "the first line is no sentence"


def test_a_function_fits_on_a_page() -> None:
    lengths = {
        f"{name}: {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    long = {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES}

    assert not long, f"more than {MAX_FUNCTION_LINES} lines"
