"""What the linters can't say about the shape of the code."""

import ast
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
ROOMS = sorted(
    path
    for folder in ("client", "shared", "services", "examples", "benchmarks", "scripts")
    for path in (CHECKOUT / folder).rglob("*.py")
)
MAX_ROOM_LINES = 400
MAX_FUNCTION_LINES = 60


def name_of(room: Path) -> str:
    return str(room.relative_to(CHECKOUT))


def test_there_are_rooms() -> None:
    assert len(ROOMS) > 100


@pytest.mark.parametrize("room", ROOMS, ids=name_of)
def test_a_room_can_be_read_at_one_sitting(room: Path) -> None:
    num_lines = len(room.read_text(encoding="utf-8").splitlines())

    assert num_lines <= MAX_ROOM_LINES, f"{name_of(room)} has {num_lines} lines: split it"


@pytest.mark.parametrize("room", ROOMS, ids=name_of)
def test_a_room_says_what_it_is(room: Path) -> None:
    docstring = ast.get_docstring(ast.parse(room.read_text(encoding="utf-8")))

    assert docstring, f"{name_of(room)} has no docstring"
    assert docstring.splitlines()[0].endswith((".", "?", "``")), "its first line is a sentence"


@pytest.mark.parametrize("room", ROOMS, ids=name_of)
def test_a_function_fits_on_a_page(room: Path) -> None:
    tree = ast.parse(room.read_text(encoding="utf-8"))
    long = {
        node.name: length
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    }

    assert not long, f"{name_of(room)}: functions of more than {MAX_FUNCTION_LINES} lines"
