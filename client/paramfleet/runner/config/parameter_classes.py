"""Whether the class of a model's hyper parameters is a dataclass that keys can fill.

What ``dataclasses`` itself refuses comes as an error of Python's while the module is imported.
"""

import dataclasses
import traceback
import typing
from pathlib import Path
from typing import Any

from paramfleet.runner.config.errors import ModelFolderError

__all__ = ["as_folder_error", "check_parameters"]

REMEDY = (
    "hyper parameters are @dataclasses.dataclass(frozen=True) with a default for each field; "
    "that of a list is dataclasses.field(default_factory=lambda: [...])"
)


def as_folder_error(error: Exception, path: Path) -> ModelFolderError | None:
    """Return what ``dataclasses`` refuses in a module as an error that names file and class.

    Args:
        error: That the import raised.
        path: The module's file.

    Returns:
        None if it is another error.
    """
    line = 0
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == str(path):
            line = number
        made = frame.f_locals.get("cls")
        if line and frame.f_globals.get("__name__") == "dataclasses" and made is not None:
            rule = f"line {line}: class {made.__name__}: {error}: {REMEDY}"
            return ModelFolderError(path=str(path), rule=rule)
    return None


def check_parameters(cls: type[Any], path: str) -> None:
    """Pass if keys can fill a model's class of hyper parameters.

    Args:
        cls: A subclass of ``HyperParameters``, or that.
        path: The file of the model, for errors.

    Raises:
        ModelFolderError: if it isn't a dataclass itself, or a field has no default or a type
            that can't be found; it names the class and the field.
    """
    rule = ""
    if "__dataclass_fields__" not in vars(cls):
        rule = "is no dataclass itself"
    else:
        bare = [each.name for each in dataclasses.fields(cls) if not _has_default(each)]
        rule = f"its field {bare[0]!r} has no default" if bare else _unknown_type(cls)
    if rule:
        raise ModelFolderError(path=path, rule=f"class {cls.__name__}: {rule}: {REMEDY}")


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return (
        not field.init or field.default is not missing or field.default_factory is not missing
    )


def _unknown_type(cls: type[Any]) -> str:
    """Return what is wrong with the types of a class's fields; empty if nothing is."""
    try:
        typing.get_type_hints(cls)
    except (AttributeError, NameError, SyntaxError, TypeError) as error:
        return f"the type of a field can't be found ({error})"
    return ""
