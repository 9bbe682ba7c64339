"""``paddle``, for readers of a ``pipe_command`` where Paddle isn't installed.

PaddleRec's readers import ``paddle.distributed.fleet`` for the generators alone. This folder
is on the path of pipe commands; where there is a Paddle it makes way for that.
"""

import importlib
import sys
from pathlib import Path


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


_make_way()
