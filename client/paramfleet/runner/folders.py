"""A model folder's modules, imported as those of a package of its own.

So ``model.py`` writes ``from .net import Net``, and two folders may both have a ``net``.
"""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from paramfleet.runner.config import Config, RawConfig
from paramfleet.runner.errors import ModelFolderError
from paramfleet.runner.model import Model

__all__ = ["import_module", "load_model_class", "load_reader"]

_FOR_PADDLE = (
    "it imports paddle; models are torch's here, and a RecDataset needs no base class: "
    "docs/migrating-from-paddle.md"
)


def import_module(path: Path) -> ModuleType:
    """Import a file, with or without its ``.py``.

    Raises:
        ModelFolderError: if there is no such file, or it is one for Paddle.
        ModuleNotFoundError: if it imports another library that isn't installed.
    """
    path = path if path.suffix == ".py" else path.with_name(f"{path.name}.py")
    path = path.resolve()
    if not path.is_file():
        rule = "there is no such module; runner.model_path and train_reader_path name them"
        raise ModelFolderError(path=str(path), rule=rule)
    package = "paramfleet_models." + re.sub(r"\W", "_", str(path.parent))
    for name, where in (("paramfleet_models", []), (package, [str(path.parent)])):
        if name not in sys.modules:
            made = ModuleType(name)
            made.__path__ = where
            sys.modules[name] = made
    try:
        return importlib.import_module(f"{package}.{path.stem}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "paddle":
            raise
        raise ModelFolderError(path=str(path), rule=_FOR_PADDLE) from error


def load_model_class(raw: RawConfig) -> type[Model[Any]]:
    """Return the class ``Model`` of the folder.

    Raises:
        ModelFolderError: if there is none.
    """
    module = import_module(raw.path.parent / raw.runner.model_path)
    cls = getattr(module, "Model", None)
    if not isinstance(cls, type) or not issubclass(cls, Model):
        rule = "must define a class Model, derived from paramfleet.runner.Model"
        raise ModelFolderError(path=str(module.__file__), rule=rule)
    return cls


def load_reader(config: Config[Any], reference: str) -> type[Any]:
    """Return the class ``RecDataset`` of a reader.

    Raises:
        ModelFolderError: if there is none.
    """
    module = import_module(config.path.parent / reference)
    cls = getattr(module, "RecDataset", None)
    if not isinstance(cls, type):
        rule = "must define a class RecDataset, which takes a list of files and the config"
        raise ModelFolderError(path=str(module.__file__), rule=rule)
    return cls
