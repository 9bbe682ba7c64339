"""Write ``docs/api.md``, which names every public name of Python: ``make docs``.

MkDocs puts signatures and docstrings there. ``fleet.init`` is a method of the process's one
session, so the page says of each name where its docstring is. A test compares the page with
what modules have in ``__all__``.
"""

import importlib
import inspect
import sys
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import paramfleet as fleet

__all__ = ["PAGE", "render"]

PAGE = Path(__file__).parents[1] / "docs" / "api.md"

HEAD = """\
# Python

What training code may import, `import paramfleet as fleet`. Written by `make docs`. Each
section begins with a list of its names; on the built site the whole docstrings follow. Without
the site, `python -c "import paramfleet as fleet; help(fleet.init_worker)"` prints one of them.
Keys of a strategy, of datasets and of model folders are in [configuration](configuration.md).

A process has one session; the functions of `fleet` work on it. Errors are classes of one tree,
whose four branches say what the caller may do next
([failure model](failure-model.md#what-the-caller-may-do-next)).
"""

MODULES = {
    "paramfleet": ("fleet", "The life of a job, training and saving."),
    "paramfleet.nn": (
        "fleet.nn",
        "Modules for ids; how they are used: [embeddings](embeddings.md).",
    ),
    "paramfleet.training.optim": (
        "fleet.optim",
        "Optimizers that torch doesn't have; those of servers: [optimizers](optimizers.md).",
    ),
    "paramfleet.data": ("fleet.data", "Files of samples; how they are used: [data](data.md)."),
    "paramfleet.serving": (
        "fleet.serving",
        "Exported models and running servers; how they are used: [serving](serving.md).",
    ),
    "paramfleet.runner": (
        "paramfleet.runner",
        "What modules of a [model folder](starting.md#model-folders) derive from.",
    ),
    "paramfleet.text": (
        "fleet.text",
        "Text for skip-gram, and how vectors of words are judged.",
    ),
}
"""Public modules, by the name under which the page has them."""

SEPARATE = ("data", "nn", "optim", "serving", "text")
"""Public names of ``fleet`` that are modules with a section of their own."""


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for path, (name, sentence) in MODULES.items():
        parts.append(f"## {name}\n\n{sentence}\n")
        public = _public(importlib.import_module(path), name)
        parts.append("\n".join(_line(heading, found) for heading, _, found in public) + "\n")
        parts += [_entry(*each) for each in public]
    return "\n".join(parts)


def _public(module: ModuleType, name: str) -> list[tuple[str, str, Any]]:
    """Return the public names of a module, as ``fleet`` has them: whole, last part, object."""
    return [
        (f"{name}.{public}", public, getattr(module, public))
        for public in module.__all__
        if not (module is fleet and public in SEPARATE)
    ]


def _line(heading: str, found: Any) -> str:
    """Return what the list says of a name: how it is called, and what for."""
    summary = (inspect.getdoc(found) or "").partition("\n")[0].replace("``", "`")
    return f"- `{heading}{_call(found)}`: {summary}"


def _call(found: Any) -> str:
    """Return the parameters in brackets, without their types; empty if nobody calls it."""
    if not callable(found) or (isinstance(found, type) and issubclass(found, Exception | Enum)):
        return ""
    words = list[str]()
    for each in inspect.signature(found).parameters.values():
        if each.kind is each.KEYWORD_ONLY and not any(w.startswith("*") for w in words):
            words.append("*")
        stars = "*" * ((each.kind is each.VAR_POSITIONAL) + 2 * (each.kind is each.VAR_KEYWORD))
        words.append(f"{stars}{each.name}{_default(each.default)}")
    return f"({', '.join(words)})"


def _default(value: Any) -> str:
    """Return a default as code, where it is a plain value."""
    if value is inspect.Parameter.empty:
        return ""
    plain = value is None or type(value) in {bool, int, float, str}
    return f"={value!r}" if plain else "=..."


def _entry(heading: str, public: str, found: Any) -> str:
    """Return what has MkDocs put the docstring there."""
    return (
        f"::: {_path_of(found)}\n    options:\n"
        f'      heading: "{heading}"\n      toc_label: "{public}"\n'
    )


def _path_of(found: Any) -> str:
    """Return where the docstring of a public name is: of an instance, its class's."""
    if not (inspect.isclass(found) or callable(found)) or not hasattr(found, "__qualname__"):
        found = type(found)
    module = sys.modules[found.__module__]
    return f"{module.__name__}.{found.__qualname__}"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
