"""Exported models without a job: ``load`` and ``tables``; and rows of a server: ``Client``.

Nothing here needs more than torch and numpy: no transport of a job, no compiled kernel. A
``Client`` speaks HTTP by sockets of its own.
A model whose class uses ``fleet.nn`` brings numba, which those modules train with.
"""

from paramfleet.serving.errors import (
    ExportDamagedError,
    ExportError,
    ExportMismatchError,
    UnknownRowError,
)
from paramfleet.serving.loading import load, tables
from paramfleet.serving.remote.client import (
    Client,
    DenseParameters,
    FoundRows,
    ServedVersion,
)
from paramfleet.serving.remote.errors import (
    LookupIdsError,
    RemoteOptionError,
    ServerAnswerError,
    ServerRefusedError,
    ServerUnreachableError,
)
from paramfleet.serving.remote.modules import RemoteEmbedding, RemoteEmbeddingBag, refresh
from paramfleet.serving.rows import Rows

__all__ = [
    "Client",
    "DenseParameters",
    "ExportDamagedError",
    "ExportError",
    "ExportMismatchError",
    "FoundRows",
    "LookupIdsError",
    "RemoteEmbedding",
    "RemoteEmbeddingBag",
    "RemoteOptionError",
    "Rows",
    "ServedVersion",
    "ServerAnswerError",
    "ServerRefusedError",
    "ServerUnreachableError",
    "UnknownRowError",
    "load",
    "refresh",
    "tables",
]
