"""Deltas in fewer bytes, in plain torch on any device.

What a format is, its record in ``paramfleet_shared.tables.codecs`` says; here are its numbers
as torch rounds them. A value beyond the range becomes the largest of its sign. A format with
scales has a float32 one for each ``ROW`` values: the largest magnitude divided by the largest
number. On the wire of a pserver it is rounded up to a byte; here 4 bytes are few beside 256
values. What rounding takes is kept by ``paramfleet.tables.error_feedback``.

Shape legend: P = values padded to whole rows, B = bytes.
"""

import torch

from paramfleet_shared.tables.codecs.catalog import CODECS, WireDtype
from paramfleet_shared.tables.codecs.record import DENSE_WIDTH, Codec

__all__ = ["ROW", "TorchFormat", "format_of"]

ROW = DENSE_WIDTH
"""Values that share one scale."""

_SCALE_BYTES = 4


class TorchFormat:
    """A format of numbers on their way between the workers of a group.

    Args:
        codec: What it is.
    """

    def __init__(self, codec: Codec) -> None:
        self._dtype: torch.dtype = getattr(torch, codec.torch_dtype)
        self._largest = codec.largest
        self._has_scales = codec.has_scales

    def num_bytes(self, num_values: int) -> int:
        """Return the bytes of so many values, a multiple of ``ROW``."""
        scales = num_values // ROW * _SCALE_BYTES if self._has_scales else 0
        return num_values * self._dtype.itemsize + scales

    def encode(self, values_P: torch.Tensor, /) -> torch.Tensor:
        """Return uint8 [B] of finite float32 [P], P a multiple of ``ROW``.

        Scales come first.
        """
        if not self._has_scales:
            return self._narrow(values_P).view(torch.uint8)
        rows = values_P.view(-1, ROW)
        scales = rows.abs().amax(dim=1) / self._largest
        steps = torch.where(scales > 0, scales, torch.ones_like(scales))
        numbers = rows / steps[:, None]
        if not self._dtype.is_floating_point:
            numbers.round_()
        narrow = self._narrow(numbers).view(-1).view(torch.uint8)
        return torch.cat([scales.view(torch.uint8), narrow])

    def decode(self, sent_B: torch.Tensor, /) -> torch.Tensor:
        """Return float32 [P] of what ``encode`` returned."""
        if not self._has_scales:
            return sent_B.view(self._dtype).float()
        num_rows = len(sent_B) // (ROW * self._dtype.itemsize + _SCALE_BYTES)
        # The scales are copied: their bytes may lie at any address.
        scales = sent_B[: _SCALE_BYTES * num_rows].clone().view(torch.float32)
        numbers = sent_B[_SCALE_BYTES * num_rows :].view(self._dtype).view(-1, ROW)
        return (numbers.float() * scales[:, None]).view(-1)

    def _narrow(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.clamp(-self._largest, self._largest).to(self._dtype)


def format_of(name: WireDtype) -> TorchFormat | None:
    """Return a format by its name; None for float32, which travels as it is."""
    return None if name == "float32" else TorchFormat(CODECS[name])
