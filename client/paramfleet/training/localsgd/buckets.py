"""The mean of the workers' vectors by collectives, in buckets, and in a narrow format.

In float32 it is an all-reduce. A narrow format can't be summed on the way: each worker gets
its share of the values from every other (all-to-all), decodes and averages them, and the
means go back to all (all-gather), in the same format. Both halves have error feedback: the
sender's, and that of who averages (DoubleSqueeze: Tang et al., 2019). Every worker decodes
the same bytes, so that all get the same means to the bit.

The buckets' collectives all begin before the first is waited for, so that one is on its way
while another is encoded.

Shape legend: F = values, P = values of a bucket padded to whole rows of each worker,
N = workers, B = bytes.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from paramfleet.tables.error_feedback import Residual
from paramfleet.training.localsgd.core.codecs import ROW, TorchFormat

__all__ = ["NarrowMean", "WholeMean"]

_Residual = Residual[torch.Tensor, torch.Tensor]


class WholeMean:
    """Means in float32.

    Args:
        group: Whose workers take part.
        bucket_values: The most values of one collective.
    """

    def __init__(self, group: dist.ProcessGroup, bucket_values: int) -> None:
        self._group = group
        self._bucket_values = bucket_values

    def num_bytes(self, num_values: int) -> int:
        """Return what a worker sends of so many values, in a ring."""
        num_workers = self._group.size()
        return 2 * (num_workers - 1) * num_values * 4 // num_workers

    def run(self, values_F: torch.Tensor) -> torch.Tensor:
        """Replace the values by the mean of the workers', float32 [F]; return them."""
        works = [
            dist.all_reduce(part, group=self._group, async_op=True)
            for part in torch.split(values_F, self._bucket_values)
        ]
        _wait(works)
        return values_F.div_(self._group.size())


class NarrowMean:
    """Means of one vector in a narrow format; it remembers what rounding took from it.

    Args:
        group: Whose workers take part.
        bucket_values: The most values of one collective.
        form: The format.
    """

    def __init__(self, group: dist.ProcessGroup, bucket_values: int, form: TorchFormat) -> None:
        self._group = group
        self._bucket_values = bucket_values
        self._format = form
        self._outgoing: list[_Residual] = []
        self._averaged: list[_Residual] = []

    def num_bytes(self, num_values: int) -> int:
        """Return what a worker sends of so many values."""
        num_workers = self._group.size()
        whole, rest = divmod(num_values, self._bucket_values)
        sizes = [self._bucket_values] * whole + [rest] * bool(rest)
        shares = (self._format.num_bytes(self._share(size)) for size in sizes)
        return 2 * (num_workers - 1) * sum(shares)

    def run(self, values_F: torch.Tensor) -> torch.Tensor:
        """Return the mean of the workers' values, float32 [F]."""
        parts = torch.split(values_F, self._bucket_values)
        while len(self._outgoing) < len(parts):
            self._outgoing.append(Residual(self._format))
            self._averaged.append(Residual(self._format))
        sent = [self._scatter(part, left) for part, left in zip(parts, self._outgoing)]  # noqa: B905
        gathered = []
        for (received_B, work), left in zip(sent, self._averaged, strict=True):
            _wait([work])
            gathered.append(self._gather(received_B, left))
        means = []
        for (received_B, work), part in zip(gathered, parts, strict=True):
            _wait([work])
            decoded = [self._format.decode(share) for share in self._shares(received_B)]
            means.append(torch.cat(decoded)[: len(part)])
        return torch.cat(means)

    def residuals(self) -> dict[str, torch.Tensor]:
        """Return what is still to be sent, float32 [P] by name."""
        return {
            f"{kind}.{number}": residual.left.clone()
            for kind, residuals in (("outgoing", self._outgoing), ("averaged", self._averaged))
            for number, residual in enumerate(residuals)
            if residual.left is not None
        }

    def restore(self, residuals: dict[str, torch.Tensor]) -> None:
        """Take back what ``residuals`` returned."""
        count = sum(name.startswith("outgoing") for name in residuals)
        self._outgoing = [Residual(self._format) for _ in range(count)]
        self._averaged = [Residual(self._format) for _ in range(count)]
        for number in range(count):
            self._outgoing[number].left = residuals[f"outgoing.{number}"].clone()
            self._averaged[number].left = residuals[f"averaged.{number}"].clone()

    def _share(self, num_values: int) -> int:
        """Return the values of a bucket that each worker averages."""
        return -(-num_values // (self._group.size() * ROW)) * ROW

    def _scatter(
        self, part_F: torch.Tensor, left: _Residual
    ) -> tuple[torch.Tensor, dist.Work | None]:
        num_workers = self._group.size()
        padding = self._share(len(part_F)) * num_workers - len(part_F)
        padded_P = torch.nn.functional.pad(part_F, (0, padding))
        share = len(padded_P) // num_workers
        parts = [slice(at, at + share) for at in range(0, len(padded_P), share)]
        sent_B = torch.cat(left.send(padded_P, parts))
        received_B = torch.empty_like(sent_B)
        work = dist.all_to_all_single(received_B, sent_B, group=self._group, async_op=True)
        return received_B, work

    def _gather(
        self, received_B: torch.Tensor, left: _Residual
    ) -> tuple[torch.Tensor, dist.Work | None]:
        shares = [self._format.decode(share) for share in self._shares(received_B)]
        (sent_B,) = left.send(torch.stack(shares).mean(dim=0))
        gathered_B = torch.empty_like(received_B)
        parts = list(self._shares(gathered_B))
        return gathered_B, dist.all_gather(parts, sent_B, group=self._group, async_op=True)

    def _shares(self, bytes_B: torch.Tensor) -> Sequence[torch.Tensor]:
        return bytes_B.chunk(self._group.size())


def _wait(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()
