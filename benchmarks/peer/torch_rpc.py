"""torch.distributed.rpc over TensorPipe, and a torch table.

Between processes of one machine TensorPipe takes shared memory before TCP, and copies tensors
out of the other process' memory, where the system lets it.
"""

import threading
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed import rpc

from peer.work import CALL_TIMEOUT_S, LR, Client, Pulled, Work

__all__ = ["TorchRpcClient", "connect", "serve"]

_SERVER = "server"

_TCP: dict[str, Any] = {"_transports": ["uv"], "_channels": ["mpt_uv", "basic"]}
"""TensorPipe's options for TCP alone; otherwise it chooses."""

_table = torch.empty(0)
"""The server's rows: functions that are called from afar find them here."""

_writing = threading.Lock()


def _pull(ids: torch.Tensor) -> torch.Tensor:
    return _table.index_select(0, ids)


def _push(ids: torch.Tensor, grads: torch.Tensor) -> None:
    with _writing:
        _table.index_add_(0, ids, grads, alpha=-LR)


def _join(name: str, rank: int, port: int, *, tcp: bool) -> None:
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{port}",
        rpc_timeout=CALL_TIMEOUT_S,
        **(_TCP if tcp else {}),
    )
    rpc.init_rpc(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        name, rank=rank, world_size=2, rpc_backend_options=options
    )


def serve(work: Work, port: int, *, tcp: bool = False) -> None:
    """Serve on loopback until the client leaves."""
    global _table  # noqa: PLW0603 (see there)
    _table = torch.zeros(work.table_rows, work.dim)
    _join(_SERVER, 0, port, tcp=tcp)
    rpc.shutdown()


class TorchRpcClient:
    """Calls functions of the server.

    Args:
        work: For nothing: tensors know their shape.
        port: Where the two meet.
        tcp: Whether they use TCP alone.
    """

    def __init__(self, work: Work, port: int, *, tcp: bool) -> None:
        del work
        _join("client", 1, port, tcp=tcp)

    def pull(self, ids: NDArray[np.int64]) -> Pulled:
        """Return the rows of ids."""
        rows: torch.Tensor = rpc.rpc_sync(_SERVER, _pull, args=(torch.from_numpy(ids),))
        return Pulled(ids, rows.numpy())

    def push(self, pulled: Pulled, grads: NDArray[np.float32]) -> None:
        """Step rows."""
        args = (torch.from_numpy(pulled.ids), torch.from_numpy(grads))
        rpc.rpc_sync(_SERVER, _push, args=args)

    def exact(self) -> Client:
        """Return itself: floats travel as they are."""
        return self

    def close(self) -> None:
        """Leave; the server's ``shutdown`` waits for this."""
        rpc.shutdown()


def connect(work: Work, port: int, *, tcp: bool = False) -> Client:
    """Return a client of the server on ``port``; both sides use TCP alone, or neither."""
    return TorchRpcClient(work, port, tcp=tcp)
