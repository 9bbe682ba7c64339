"""``fleet.util``: small things that workers do together."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgpack
import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.api.all_to_all import Outgoing, Receive
from paramfleet_shared.errors import ContractError

__all__ = ["UnknownModeError", "Util"]

S = TypeVar("S")


class ExchangeRun(Protocol):
    """How messages go from every worker to every other; see ``Exchange.run``."""

    def __call__(
        self, name: str, outgoing: Outgoing, receive: Receive, *, in_flight: int
    ) -> None:
        """Send all messages and return when all that others sent are here."""
        ...


_REDUCE: dict[str, Callable[..., Any]] = {"sum": np.sum, "min": np.min, "max": np.max}


class UnknownModeError(ContractError):
    """A reduction or a group of processes that doesn't exist."""

    code = "contract.unknown_mode"
    name: str
    value: str
    known: str
    sentence = "{name}={value!r}: must be {known}"


class Util:
    """Collectives among workers over the coordinator; small arrays, not gradients.

    Every worker calls each function the same number of times in the same order.

    Args:
        gather: Returns every worker's payload by rank.
        barrier: Waits for every worker.
        rank: Returns this worker's rank.
        size: Returns the number of workers.
        exchange: Sends messages from every worker to every other; see ``Exchange.run``.
    """

    def __init__(
        self,
        *,
        gather: Callable[[str, bytes], list[bytes]],
        barrier: Callable[[str], None],
        rank: Callable[[], int],
        size: Callable[[], int],
        exchange: ExchangeRun,
    ) -> None:
        self._gather = gather
        self._barrier = barrier
        self._rank = rank
        self._size = size
        self.exchange = exchange

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self._rank()

    def get_file_shard(self, files: Sequence[S]) -> list[S]:
        """Return this worker's contiguous share of ``files``.

        With ``r = len(files) % workers``, the first r workers get one more.

        Raises:
            TypeError: if ``files`` isn't a list.
        """
        if not isinstance(files, list):
            message = "files must be a list of files"
            raise TypeError(message)
        rank, size = self._rank(), self._size()
        each, extra = divmod(len(files), size)
        start = rank * each + min(rank, extra)
        return files[start : start + each + (rank < extra)]

    def all_gather(self, input: Any, comm_world: str = "worker") -> list[Any]:  # noqa: A002 - Fleet's name
        """Return every worker's plain value (number, string, list, dict) by rank.

        Raises:
            UnknownModeError: if ``comm_world`` isn't ``worker``.
        """
        _check_world(comm_world)
        payloads = self._gather("fleet.all_gather", msgpack.packb(input))
        return [msgpack.unpackb(payload) for payload in payloads]

    def all_reduce(
        self,
        input: Any,  # noqa: A002 - Fleet's name
        mode: str = "sum",
        comm_world: str = "worker",
    ) -> NDArray[Any]:
        """Return ``input`` reduced element by element over the workers, in rank order.

        Args:
            input: A number, array or tensor; the same shape in every worker.
            mode: ``sum``, ``min`` or ``max``.
            comm_world: ``worker``.

        Raises:
            UnknownModeError: on another mode or world.
            ContractError: if the workers' shapes differ.
        """
        _check_world(comm_world)
        if mode not in _REDUCE:
            raise UnknownModeError(name="mode", value=mode, known="sum, min or max")
        own = input.detach().cpu().numpy() if isinstance(input, torch.Tensor) else input
        array = np.asarray(own)
        arrays = [
            _unpack(payload) for payload in self._gather("fleet.all_reduce", _pack(array))
        ]
        shapes = {other.shape for other in arrays}
        if len(shapes) > 1:
            message = f"all_reduce: the workers' shapes differ: {sorted(shapes)}"
            raise ContractError(message)
        reduced: NDArray[Any] = _REDUCE[mode](np.stack(arrays), axis=0)
        return reduced

    def barrier(self, comm_world: str = "worker") -> None:
        """Wait until every worker is here.

        Raises:
            UnknownModeError: if ``comm_world`` isn't ``worker``.
        """
        _check_world(comm_world)
        self._barrier("fleet.util.barrier")

    def print_on_rank(self, message: str, rank_id: int) -> None:
        """Print ``message`` in one worker."""
        if self._rank() == rank_id:
            print(message, flush=True)  # noqa: T201 - what it is for


def _check_world(comm_world: str) -> None:
    if comm_world != "worker":
        raise UnknownModeError(name="comm_world", value=comm_world, known="worker")


def _pack(array: NDArray[Any]) -> bytes:
    """Return dtype, shape and bytes of a numeric array.

    Raises:
        ContractError: if it holds something else than numbers.
    """
    if array.dtype.kind not in "biuf":
        message = f"all_reduce takes numbers, not {array.dtype}"
        raise ContractError(message)
    packed: bytes = msgpack.packb([array.dtype.str, list(array.shape), array.tobytes()])
    return packed


def _unpack(payload: bytes) -> NDArray[Any]:
    dtype, shape, data = msgpack.unpackb(payload)
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape)
