"""Deltas in fewer bytes, and what is lost of them kept for the next time.

float16 takes half; a value beyond its range becomes the largest of its sign. int8 takes a
quarter and 4 bytes a row: a value is a multiple of its row's scale, which is a 127th of the
largest magnitude among the ``ROW`` values of the row. What rounding takes from a delta stays
with who rounded, and is added to the next (Seide et al., 2014; Karimireddy et al., "Error
Feedback Fixes SignSGD", 2019), so that a sum over many exchanges is right to one rounding.

Plain torch on any device; nothing here knows who the bytes go to.

Shape legend: F = values, P = values padded to whole rows, B = bytes.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from paramfleet.training.localsgd.core.settings import FormatName

__all__ = ["ROW", "Codec", "Residual", "codec_of"]

ROW = 256
"""Values that share one int8 scale."""

_MOST_HALF = 65504.0


class Codec(Protocol):
    """A format of numbers on their way."""

    def num_bytes(self, num_values: int) -> int:
        """Return the bytes of so many values, a multiple of ``ROW``."""
        ...

    def encode(self, values_P: torch.Tensor) -> torch.Tensor:
        """Return uint8 [B] of finite float32 [P], P a multiple of ``ROW``."""
        ...

    def decode(self, bytes_B: torch.Tensor) -> torch.Tensor:
        """Return float32 [P] of what ``encode`` returned."""
        ...


class _Half:
    """float16, rounded to nearest."""

    def num_bytes(self, num_values: int) -> int:
        return 2 * num_values

    def encode(self, values_P: torch.Tensor) -> torch.Tensor:
        return values_P.clamp(-_MOST_HALF, _MOST_HALF).half().view(torch.uint8)

    def decode(self, bytes_B: torch.Tensor) -> torch.Tensor:
        return bytes_B.view(torch.float16).float()


class _Byte:
    """int8 with a float32 scale a row; the scales come first."""

    def num_bytes(self, num_values: int) -> int:
        return num_values + num_values // ROW * 4

    def encode(self, values_P: torch.Tensor) -> torch.Tensor:
        rows = values_P.view(-1, ROW)
        scales = rows.abs().amax(dim=1) / 127
        steps = torch.where(scales > 0, scales, torch.ones_like(scales))
        numbers = (rows / steps[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        return torch.cat([scales.view(torch.uint8), numbers.view(-1).view(torch.uint8)])

    def decode(self, bytes_B: torch.Tensor) -> torch.Tensor:
        num_rows = len(bytes_B) // (ROW + 4)
        # The scales are copied: their bytes may lie at any address.
        scales = bytes_B[: 4 * num_rows].clone().view(torch.float32)
        numbers = bytes_B[4 * num_rows :].view(torch.int8).view(-1, ROW)
        return (numbers.float() * scales[:, None]).view(-1)


_CODECS: dict[FormatName, Callable[[], Codec]] = {"float16": _Half, "int8": _Byte}


def codec_of(name: FormatName) -> Codec | None:
    """Return a format's codec; None for float32, which travels as it is."""
    return _CODECS[name]() if name in _CODECS else None


class Residual:
    """What a format has lost of one vector, on its way into the next.

    Args:
        codec: The format.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.left_P: torch.Tensor | None = None
        """What is still to be sent, float32 [P]; None for nothing."""

    def send(self, values_P: torch.Tensor, *, num_parts: int = 1) -> torch.Tensor:
        """Return the values and what is left of former ones as they travel, uint8 [B].

        Args:
            values_P: float32 [P]; it stays as it is.
            num_parts: In so many parts of one length, a multiple of ``ROW``, each by itself.
        """
        whole_P = values_P if self.left_P is None else values_P + self.left_P
        parts = [self._codec.encode(part) for part in whole_P.chunk(num_parts)]
        seen_P = torch.cat([self._codec.decode(part) for part in parts])
        self.left_P = whole_P - seen_P
        return torch.cat(parts)
