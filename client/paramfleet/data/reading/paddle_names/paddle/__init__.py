"""``paddle``, for readers where Paddle isn't installed.

PaddleRec's readers of a ``pipe_command`` import ``paddle.distributed.fleet`` for the generators
alone, those with a ``RecDataset`` the base classes of ``paddle.io``. This folder is on the path
of pipe commands, and while a reader is imported; an installed Paddle is used instead.
"""

import importlib
import sys
from pathlib import Path
from typing import Any


def _make_way() -> None:
    """Import the Paddle that lies elsewhere on the path, if there is one, instead of this.

    Raises:
        ModuleNotFoundError: if that one lacks something itself.
    """
    ours, path = sys.modules.pop(__name__), sys.path[:]
    folder = Path(__file__).resolve().parent.parent
    sys.path[:] = [place for place in path if not place or Path(place).resolve() != folder]
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = ours
        sys.path[:] = path


def __getattr__(name: str) -> Any:
    """Say what else would be needed.

    Raises:
        AttributeError: always.
    """
    message = (
        f"paddle.{name} needs Paddle, which isn't installed; readers find paddle.io's Dataset "
        "and IterableDataset, paddle.distributed and its fleet's generators here"
    )
    raise AttributeError(message, name=name)


_make_way()
if sys.modules.get(__name__) is not None and sys.modules[__name__].__file__ == __file__:
    # Paddle has these without an import of their own.
    importlib.import_module(f"{__name__}.distributed")
    importlib.import_module(f"{__name__}.io")
