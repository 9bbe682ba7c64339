"""A model folder's modules, imported as those of a package of its own.

So ``model.py`` writes ``from .net import Net``, and two folders may both have a ``net``.
"""

import contextlib
import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from paramfleet.data.reading.paddlerec import PADDLE_NAMES
from paramfleet.runner.config.configuration import Config, RawConfig, read_config
from paramfleet.runner.config.errors import ModelFolderError, Problems, collecting, raise_all
from paramfleet.runner.config.parameter_classes import as_folder_error, check_parameters
from paramfleet.runner.models.model import Model

__all__ = ["import_module", "import_reader", "load_model_class", "load_reader", "read_model"]

_ZOO = frozenset({
    "match/dssm", "multitask/esmm", "multitask/mmoe", "multitask/ple", "rank/autoint",
    "rank/dcn_v2", "rank/deepfm", "rank/din", "rank/dlrm", "rank/dnn",
    "rank/logistic_regression", "rank/wide_deep", "rank/xdeepfm", "recall/mind", "recall/ncf",
    "recall/word2vec",
})  # fmt: skip
"""Folders below ``models/`` of paramfleet's repository."""

_NO_MODULE = "there is no such module; runner.model_path and train_reader_path name them"

_PADDLE_MODELS = ("dygraph_model.py", "static_model.py")

_FOR_PADDLE = (
    "it imports paddle ({what}); models are torch's here, and readers find the names that "
    "docs/migrating-from-paddle.md lists"
)


def read_model(path: Path, options: Sequence[str] = ()) -> Model[Any]:
    """Return the model of a folder, with its configuration.

    Everything that is wrong with keys, modules and readers is in one error.

    Args:
        path: The YAML file.
        options: Words ``key=value`` that replace its values.

    Raises:
        ContractError: the only thing that is wrong.
        RefusedConfigError: if several things are.
    """
    problems: Problems = []
    raw = read_config(path, options, problems)
    found: list[Model[Any]] = []
    with collecting(problems):
        _require_model(raw)
        cls = load_model_class(raw)
        config = raw.read_as(cls.parameters, problems)
        if not problems:
            found.append(cls(config))
    with collecting(problems):
        _require_reader(raw)
    raise_all(str(raw.path), problems)
    return found[0]


def _require_model(raw: RawConfig) -> None:
    """See that there is a model, and that it isn't Paddle's.

    Raises:
        ModelFolderError: if not; it names the one of ``models/`` with this network.
    """
    path = _file(raw.modules / raw.runner.model_path)
    folder = raw.path.parent
    theirs = [name for name in _PADDLE_MODELS if (folder / name).is_file()]
    if (path.is_file() and path.name not in _PADDLE_MODELS) or not theirs:
        return
    name = f"{folder.parent.name}/{folder.name}"
    rule = f"{' and '.join(theirs)} are Paddle's: write model.py for torch"
    if name in _ZOO:
        rule = (
            f"{' and '.join(theirs)} are Paddle's; models/{name} of paramfleet's repository "
            f"has this network: -o runner.model_path=/path/of/models/{name}/model"
        )
    raise ModelFolderError(path=str(path), rule=rule)


def _require_reader(raw: RawConfig) -> None:
    """See that there is a module of a reader where the type of reader needs one.

    Raises:
        ModelFolderError: if not.
    """
    runner = raw.runner
    if runner.reader_type not in {"RecDataset", "DataLoader"}:
        return
    path = _file(raw.modules / runner.train_reader_path)
    if not path.is_file():
        raise ModelFolderError(path=str(path), rule=_NO_MODULE)


def import_module(path: Path) -> ModuleType:
    """Import a file, with or without its ``.py``.

    Raises:
        ModelFolderError: if there is no such file, it is one for Paddle, or it has a dataclass
            that can't be one.
        ModuleNotFoundError: if it imports another library that isn't installed.
        TypeError: as the module raises it.
        ValueError: as the module raises it.
    """
    path = _file(path)
    if not path.is_file():
        raise ModelFolderError(path=str(path), rule=_NO_MODULE)
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
        rule = _FOR_PADDLE.format(what=error.name)
        raise ModelFolderError(path=str(path), rule=rule) from error
    except (TypeError, ValueError) as error:
        refused = as_folder_error(error, path)
        if refused is None:
            raise
        raise refused from error


def import_reader(path: Path) -> ModuleType:
    """Import a file as ``import_module`` does, with Paddle's names where there is no Paddle.

    They are gone again when this returns, for ``model.py`` must not take them for Paddle.

    Raises:
        ModelFolderError: if there is no such file, or it needs the real Paddle.
        ModuleNotFoundError: if it imports another library that isn't installed.
        AttributeError: if it asks another module for a name that isn't there.
    """
    try:
        with _paddle_names():
            return import_module(path)
    except AttributeError as error:
        if not str(error).startswith("paddle."):
            raise
        raise ModelFolderError(path=str(_file(path)), rule=str(error)) from error


def _file(path: Path) -> Path:
    return (path if path.suffix == ".py" else path.with_name(f"{path.name}.py")).resolve()


@contextlib.contextmanager
def _paddle_names() -> Iterator[None]:
    """Have our names of Paddle's last on the path as long as the block runs."""
    sys.path.append(str(PADDLE_NAMES))
    try:
        yield
    finally:
        sys.path.remove(str(PADDLE_NAMES))
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            if name.partition(".")[0] == "paddle" and file.startswith(str(PADDLE_NAMES)):
                del sys.modules[name]


def load_model_class(raw: RawConfig) -> type[Model[Any]]:
    """Return the class ``Model`` of the folder.

    Raises:
        ModelFolderError: if there is none, or its hyper parameters can't be filled.
    """
    module = import_module(raw.modules / raw.runner.model_path)
    cls = getattr(module, "Model", None)
    if not isinstance(cls, type) or not issubclass(cls, Model):
        rule = "must define a class Model, derived from paramfleet.runner.Model"
        raise ModelFolderError(path=str(module.__file__), rule=rule)
    check_parameters(cls.parameters, str(module.__file__))
    return cls


def load_reader(config: Config[Any], reference: str) -> type[Any]:
    """Return the class ``RecDataset`` of a reader.

    Raises:
        ModelFolderError: if there is none.
    """
    module = import_reader(config.modules / reference)
    cls = getattr(module, "RecDataset", None)
    if not isinstance(cls, type):
        rule = "must define a class RecDataset, which takes a list of files and the config"
        raise ModelFolderError(path=str(module.__file__), rule=rule)
    return cls
