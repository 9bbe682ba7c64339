"""What the linters can't say about the shape of the code."""

import ast
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
FOLDERS = ("client", "shared", "services", "examples", "models", "benchmarks", "scripts")
PACKAGES = ("client", "shared", "services")
MODULES = {
    str(path.relative_to(CHECKOUT)): path.read_text(encoding="utf-8")
    for folder in FOLDERS
    for path in sorted((CHECKOUT / folder).rglob("*.py"))
}
MAX_ENTRIES = 14


@cache
def trees() -> dict[str, ast.Module]:
    """Return each module's syntax tree; not at collection, which each process does."""
    return {name: ast.parse(text) for name, text in MODULES.items()}


def test_every_folder_has_modules() -> None:
    empty = [
        folder for folder in FOLDERS if not any(name.startswith(folder) for name in MODULES)
    ]

    assert not empty


def test_a_folder_of_code_has_few_entries() -> None:
    entries: dict[str, set[str]] = {}
    for name in MODULES:
        *folders, module = Path(name).parts
        for depth in range(1, len(folders) + 1):
            inside = module if depth == len(folders) else folders[depth]
            entries.setdefault("/".join(folders[:depth]), set()).add(inside)

    crowded = {
        folder: len(inside)
        for folder, inside in entries.items()
        if folder.startswith(PACKAGES) and len(inside) > MAX_ENTRIES
    }

    assert not crowded, f"more than {MAX_ENTRIES} entries: give what belongs together a folder"


def test_a_module_says_what_it_is() -> None:
    docstrings = {name: ast.get_docstring(tree) for name, tree in trees().items()}

    silent = [name for name, docstring in docstrings.items() if not docstring]
    loose = [
        name
        for name, docstring in docstrings.items()
        if docstring and not docstring.splitlines()[0].endswith((".", "?", "``"))
    ]

    assert not silent, "no docstring"
    assert not loose, "the first line is no sentence"
