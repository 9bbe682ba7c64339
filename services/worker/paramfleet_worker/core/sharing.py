"""Whether the processes of a job may share what they import, by what their script says."""

import ast
from collections.abc import Iterator, Mapping, Sequence

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

_OF_ONE = frozenset({"__delitem__", "__setitem__", "pop", "setdefault"})
_OF_SOME = frozenset({"__ior__", "update"})
_OF_ALL = frozenset({"clear", "popitem"})
"""Methods that change one variable, those of a mapping, or all."""


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
    nodes = list(ast.walk(tree))
    environments, setters = _names_in(nodes)
    for node in nodes:
        match node:
            case ast.Subscript(value=value, slice=key, ctx=ast.Store() | ast.Del()):
                if _name(value) in environments:
                    yield _text(key)
            case ast.AugAssign(target=target, op=ast.BitOr(), value=value):
                if _name(target) in environments:
                    yield from _keys(value)
            case ast.Call(func=func) if _name(func) in setters:
                yield _text(node.args[0] if node.args else None)
            case ast.Call(func=ast.Attribute(value=value, attr=method)):
                if _name(value) in environments:
                    yield from _changed(method, node)
            case _:
                pass


def _names_in(nodes: Sequence[ast.AST]) -> tuple[set[str], set[str]]:
    """Return what a program calls the environment, and what it calls functions that set some.

    Beside their own names these are those that an import or an assignment gives them.
    """
    environments, setters = {"environ", "environb"}, {"putenv", "unsetenv", "load_dotenv"}
    for node in nodes:
        match node:
            case ast.ImportFrom(names=names):
                for each in names:
                    for known in (environments, setters):
                        if each.name in known:
                            known.add(each.asname or each.name)
            case ast.Assign(targets=targets, value=value) if _name(value) in environments:
                environments.update(filter(None, map(_name, targets)))
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
            ) if _name(value) in environments:
                environments.update(filter(None, [_name(target)]))
            case _:
                pass
    return environments, setters


def _changed(method: str, call: ast.Call) -> Iterator[str]:
    """Yield the variables that a method of the environment changes."""
    if method in _OF_ALL:
        yield ""
    elif method in _OF_ONE:
        given = [each.value for each in call.keywords if each.arg == "key"]
        yield _text((*call.args, *given, None)[0])
    elif method in _OF_SOME:
        for each in call.args:
            yield from _keys(each)
        yield from (each.arg or "" for each in call.keywords)


def _keys(node: ast.AST) -> Iterator[str]:
    """Yield the keys of what gives a mapping; empty for one that isn't clear."""
    match node:
        case ast.Dict(keys=keys):
            yield from map(_text, keys)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from (*_keys(left), *_keys(right))
        case ast.Call(func=ast.Name(id="dict")):
            yield from _changed("update", node)
        case ast.List(elts=pairs) | ast.Tuple(elts=pairs):
            yield from map(_first_of_two, pairs)
        case _:
            yield ""


def _first_of_two(node: ast.AST) -> str:
    match node:
        case ast.List(elts=[key, _]) | ast.Tuple(elts=[key, _]):
            return _text(key)
        case _:
            return ""


def _name(node: ast.AST) -> str:
    """Return the last part of a name; empty for anything else."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.NamedExpr(value=value):
            return _name(value)
        case _:
            return ""


def _text(node: ast.AST | None) -> str:
    value = node.value if isinstance(node, ast.Constant) else ""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else ""
