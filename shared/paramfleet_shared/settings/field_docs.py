"""What the source says about the fields of a settings class."""

import ast
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from functools import cache

__all__ = ["sentences_of"]


@cache
def sentences_of(cls: type) -> Mapping[str, str]:
    """Return the sentence under each field of a class, the base classes' included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):  # built in, or installed without its source
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for statement, after in itertools.pairwise(body):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                found[statement.target.id] = " ".join(str(after.value.value).split())
    return found
