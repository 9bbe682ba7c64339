"""``fleet.util``: small things that workers do together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgpack
import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.api.all_to_all import Outgoing, Receive
from paramfleet_shared.errors import ContractError

__all__ = ["SumOverflowError", "UnequalCallsError", "UnknownModeError", "Util"]

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


class UnequalCallsError(ContractError):
    """Workers called one reduction in different ways."""

    code = "contract.unequal_calls"
    what: str
    one: str
    rank: int
    other: str
    other_rank: int
    sentence = (
        "all_reduce: the workers' {what} differ: {one} in worker {rank}, {other} in worker "
        "{other_rank}; make the same call in every worker"
    )


class SumOverflowError(ContractError):
    """A sum of integers over the workers has more than 64 bits."""

    code = "contract.sum_overflow"
    value: str
    dtype: str
    sentence = (
        "all_reduce: the sum {value} doesn't fit into {dtype}: reduce floats, or smaller "
        "numbers"
    )


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

        Call it in every worker, in the same order; not inside ``if fleet.is_first_worker():``.

        Raises:
            UnknownModeError: if ``comm_world`` isn't ``worker``.
            ConcurrentCollectiveError: if another thread of this worker is in it.
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

        Call it in every worker, in the same order; not inside ``if fleet.is_first_worker():``.

        Args:
            input: A number, array or tensor; in every worker the same shape and dtype. Plain
                numbers may be integers in one worker and floats in another. bfloat16 is
                reduced, and returned, as float32.
            mode: ``sum``, ``min`` or ``max``; the same in every worker.
            comm_world: ``worker``.

        Returns:
            Of the input's shape; the sum of integers is int64 or uint64.

        Raises:
            UnknownModeError: on another mode or world.
            UnequalCallsError: if the workers' modes, dtypes or shapes differ.
            SumOverflowError: if a sum of integers doesn't fit into 64 bits.
            ContractError: if it isn't numbers.
            ConcurrentCollectiveError: if another thread of this worker is in it.
        """
        _check_world(comm_world)
        if mode not in _REDUCE:
            raise UnknownModeError(name="mode", value=mode, known="sum, min or max")
        own = _Part.of(input, mode, rank=self._rank())
        payloads = self._gather("fleet.all_reduce", own.packed())
        parts = [_Part.unpacked(payload) for payload in payloads]
        for part in parts:
            part.require_like(parts[0])
        arrays = [part.array for part in parts]
        if mode == "sum" and np.result_type(*arrays).kind in "iu":
            return _exact_sum(arrays)
        reduced: NDArray[Any] = _REDUCE[mode](np.stack(arrays), axis=0)
        return reduced

    def barrier(self, comm_world: str = "worker") -> None:
        """Wait until every worker is here; call it in every worker.

        Raises:
            UnknownModeError: if ``comm_world`` isn't ``worker``.
            ConcurrentCollectiveError: if another thread of this worker is in it.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """What one worker brings to a reduction."""

    rank: int
    mode: str
    array: NDArray[Any]
    plain: bool
    """Whether it came as Python's numbers, which have no dtype of their own."""

    @staticmethod
    def of(value: Any, mode: str, *, rank: int) -> "_Part":
        """Return a worker's own part.

        Raises:
            ContractError: if it holds something else than numbers.
        """
        own = value
        if isinstance(value, torch.Tensor):
            own = value.detach().cpu()
            own = (own.float() if own.dtype == torch.bfloat16 else own).numpy()
        array = np.asarray(own)
        if array.dtype.kind not in "biuf":
            message = f"all_reduce takes numbers, not {array.dtype}"
            raise ContractError(message)
        return _Part(rank=rank, mode=mode, array=array, plain=not hasattr(own, "dtype"))

    def packed(self) -> bytes:
        """Return it as bytes."""
        array = self.array
        packed: bytes = msgpack.packb(
            [
                self.rank,
                self.mode,
                array.dtype.str,
                list(array.shape),
                self.plain,
                array.tobytes(),
            ]
        )
        return packed

    @staticmethod
    def unpacked(payload: bytes) -> "_Part":
        """Return what ``packed`` made bytes of."""
        rank, mode, dtype, shape, plain, data = msgpack.unpackb(payload)
        array = np.frombuffer(data, np.dtype(dtype)).reshape(shape)
        return _Part(rank=rank, mode=mode, array=array, plain=plain)

    def require_like(self, first: "_Part") -> None:
        """Pass if this part can be reduced with that of the first worker.

        Raises:
            UnequalCallsError: if not; it names both.
        """
        kinds = {first.array.dtype.kind, self.array.dtype.kind}
        promotes = self.plain and first.plain and kinds != {"i", "u"}
        pairs = [
            ("modes", first.mode, self.mode),
            ("shapes", first.array.shape, self.array.shape),
            ("dtypes", first.array.dtype.name, self.array.dtype.name),
        ]
        for what, expected, own in pairs[:2] if promotes else pairs:
            if expected != own:
                raise UnequalCallsError(
                    what=what,
                    one=str(expected),
                    rank=first.rank,
                    other=str(own),
                    other_rank=self.rank,
                )


def _exact_sum(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the sum of integers, int64 or uint64.

    Raises:
        SumOverflowError: if it doesn't fit.
    """
    summed: NDArray[Any] = np.sum(np.stack(arrays), axis=0)
    info = np.iinfo(summed.dtype)
    highest = sum(int(array.max(initial=0)) for array in arrays)
    lowest = sum(int(array.min(initial=0)) for array in arrays)
    if highest > info.max or lowest < info.min:  # it may be too large: count without a limit
        exact = np.sum(np.stack([array.astype(object) for array in arrays]), axis=0)
        for value in np.ravel(exact):
            if not info.min <= value <= info.max:
                raise SumOverflowError(value=str(value), dtype=summed.dtype.name)
    return summed
