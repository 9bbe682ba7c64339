"""Queries and documents as vectors of one space, each by a network of its own.

Huang et al., "Learning Deep Structured Semantic Models for Web Search using Clickthrough Data",
CIKM 2013. The networks have ReLUs, as PaddleRec has it.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import cosine_similarity
from typing_extensions import override

from paramfleet.runner import HyperParameters, tower
from paramfleet_shared.settings.config import SettingError, check_ranges

__all__ = ["Dssm", "DssmParameters"]

_RANGES: dict[str, tuple[float, float]] = {"trigram_d": (1, 1 << 24), "gamma": (1e-6, 1e6)}


@dataclass(frozen=True, kw_only=True, slots=True)
class DssmParameters(HyperParameters):
    """Sizes.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    trigram_d: int = 2900
    """Numbers of a text."""

    fc_sizes: tuple[int, ...] = (300, 300, 128)
    """Width of each layer of both networks; the last is that of the vectors."""

    gamma: float = 1.0
    """What cosines are multiplied by before the softmax."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        if min(self.fc_sizes, default=0) < 1:
            rule = "a list of widths from 1"
            raise SettingError(name="fc_sizes", value=self.fc_sizes, rule=rule)


class Dssm(torch.nn.Module):
    """Cosines of a query's vector and those of its documents.

    Args:
        hyper: Sizes.
    """

    def __init__(self, hyper: DssmParameters) -> None:
        super().__init__()
        self.query = tower(hyper.trigram_d, *hyper.fc_sizes)
        self.document = tower(hyper.trigram_d, *hyper.fc_sizes)

    @override
    def forward(self, query: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        """Return a cosine for each document, float32 [B, documents].

        Args:
            query: float32 [B, trigrams].
            documents: float32 [B, documents, trigrams].
        """
        return cosine_similarity(
            self.query(query).unsqueeze(1), self.document(documents), dim=2
        )
