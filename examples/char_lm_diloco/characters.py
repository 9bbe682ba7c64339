"""Text as numbers of characters.

Shape legend: B = batch, T = positions.
"""

import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

__all__ = ["Text", "read_text", "windows"]


class Text(NamedTuple):
    """A text, and the part of it that is held out."""

    train: torch.Tensor
    """uint8, the first nine tenths."""
    held_out: torch.Tensor
    """uint8, the last tenth."""
    vocabulary: int
    """How many characters there are."""


def read_text(path: Path) -> Text:
    """Return a text in UTF-8, packed by xz or not; rare characters are one.

    Args:
        path: ``text8_head.txt.xz``, ``novels50.txt.xz``, or any other.
    """
    packed = path.read_bytes()
    plain = lzma.decompress(packed) if path.suffix == ".xz" else packed
    found = torch.frombuffer(bytearray(plain), dtype=torch.uint8)
    counts = torch.bincount(found.long(), minlength=256)
    common = (counts >= 100).nonzero().view(-1)
    numbers = torch.full((256,), len(common), dtype=torch.uint8)
    numbers[common] = torch.arange(len(common), dtype=torch.uint8)
    text = numbers[found.long()]
    cut = len(text) * 9 // 10
    return Text(text[:cut], text[cut:], len(common) + 1)


def windows(
    text: torch.Tensor, *, size: int, context: int, seed: int, rank: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield one worker's batches without end: characters [B, T] and what follows each.

    Args:
        text: uint8.
        size: B.
        context: T.
        seed: Of the places.
        rank: Of the worker: each has places of its own.
    """
    random = torch.Generator().manual_seed(seed * 10_007 + rank)
    reach = torch.arange(context + 1)
    while True:
        begins = torch.randint(len(text) - context, (size, 1), generator=random)
        found = text[begins + reach].long()
        yield found[:, :-1], found[:, 1:]
