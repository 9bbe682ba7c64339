"""grpcio: bytes in, bytes out, and a numpy table. No code is generated, nothing is parsed."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc  # type: ignore[import-untyped]  # grpcio ships no types
import numpy as np
from numpy.typing import NDArray

from peer.work import CALL_TIMEOUT_S, LR, Client, Pulled, Work

__all__ = ["GrpcioClient", "connect", "serve"]

_SERVICE = "peer.Table"
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
_NUM_THREADS = 4


class _Table:
    """The server's rows, and what requests do to them."""

    def __init__(self, work: Work) -> None:
        self._rows = np.zeros((work.table_rows, work.dim), np.float32)
        self._bytes_per_row = 8 + 4 * work.dim
        self._writing = threading.Lock()

    def pull(self, request: bytes, _context: object) -> bytes:
        return self._rows.take(np.frombuffer(request, np.int64), axis=0).tobytes()

    def push(self, request: bytes, _context: object) -> bytes:
        num = len(request) // self._bytes_per_row
        ids = np.frombuffer(request, np.int64, num)
        grads = np.frombuffer(request, np.float32, offset=8 * num).reshape(num, -1)
        change = grads * np.float32(LR)
        with self._writing:
            self._rows[ids] -= change  # the ids of a push are unique
        return b""


def serve(work: Work, port: int) -> None:
    """Serve on loopback until standard input ends."""
    table = _Table(work)
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(act)
        for name, act in (("pull", table.pull), ("push", table.push))
    }
    server = grpc.server(ThreadPoolExecutor(_NUM_THREADS), options=_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    sys.stdin.read()
    server.stop(grace=None).wait(CALL_TIMEOUT_S)


class GrpcioClient:
    """Sync stubs on one channel.

    Args:
        work: For the width of rows.
        port: Of the server.
    """

    def __init__(self, work: Work, port: int) -> None:
        self._dim = work.dim
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)
        grpc.channel_ready_future(self._channel).result(CALL_TIMEOUT_S)
        self._pull = self._channel.unary_unary(f"/{_SERVICE}/pull")
        self._push = self._channel.unary_unary(f"/{_SERVICE}/push")

    def pull(self, ids: NDArray[np.int64]) -> Pulled:
        """Return the rows of ids."""
        answer: bytes = self._pull(ids.tobytes(), timeout=CALL_TIMEOUT_S)
        return Pulled(ids, np.frombuffer(answer, np.float32).reshape(len(ids), self._dim))

    def push(self, pulled: Pulled, grads: NDArray[np.float32]) -> None:
        """Step rows."""
        self._push(b"".join((pulled.ids.data, grads.data)), timeout=CALL_TIMEOUT_S)

    def exact(self) -> Client:
        """Return itself: floats travel as they are."""
        return self

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def connect(work: Work, port: int) -> Client:
    """Return a client of the server on ``port``."""
    return GrpcioClient(work, port)
