"""Clicks, and purchases after a click, learned from all impressions.

Ma et al., "Entire Space Multi-Task Model", SIGIR 2018 (arXiv 1804.07931): both networks read
the same vectors, and the second is learned through the product of their probabilities, which
is that of a click and a purchase.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import HyperParameters, tower
from paramfleet_shared.settings.config import SettingError, check_ranges

__all__ = ["Esmm", "EsmmParameters"]

_RANGES: dict[str, tuple[float, float]] = {
    "sparse_feature_number": (0, 2**63 - 1),
    "sparse_feature_dim": (1, 1 << 20),
    "num_field": (1, 1_000_000),
    "max_len": (1, 1_000_000),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class EsmmParameters(HyperParameters):
    """Sizes.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    sparse_feature_number: int = 737_946
    """How many ids there are about. A table grows as it needs; this is no limit of it."""

    sparse_feature_dim: int = 12
    """Floats in the vector of an id."""

    num_field: int = 23
    """Fields of a sample."""

    max_len: int = 3
    """Ids of a field; more are left out."""

    ctr_fc_sizes: tuple[int, ...] = (256, 64)
    """Width of each hidden layer of the clicks' network."""

    cvr_fc_sizes: tuple[int, ...] = (256, 64)
    """Width of each hidden layer of the purchases' network."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        for name, sizes in (("ctr_fc_sizes", self.ctr_fc_sizes),
                            ("cvr_fc_sizes", self.cvr_fc_sizes)):  # fmt: skip
            if min(sizes, default=0) < 1:
                raise SettingError(name=name, value=sizes, rule="a list of widths from 1")


class Esmm(torch.nn.Module):
    """Logits of a click, and of a purchase once it was clicked.

    Args:
        hyper: Sizes.
        seed: Seeds the first vector of each id.
    """

    def __init__(self, hyper: EsmmParameters, *, seed: int) -> None:
        super().__init__()
        width = hyper.num_field * hyper.sparse_feature_dim
        self.embedding = fleet.nn.EmbeddingBag(
            0,
            hyper.sparse_feature_dim,
            mode="sum",
            padding_idx=0,
            initializer=fleet.nn.normal(std=0.1),
            seed=seed,
        )
        self.click = _logit(width, hyper.ctr_fc_sizes)
        self.purchase = _logit(width, hyper.cvr_fc_sizes)

    @override
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return two logits an example, float32 [B, 2].

        Args:
            ids: int64 [B, fields, max_len], padded with 0.
        """
        pooled = self.embedding(ids.flatten(0, 1)).reshape(len(ids), -1)
        return torch.cat([self.click(pooled), self.purchase(pooled)], dim=1)


def _logit(width: int, hidden: Sequence[int]) -> torch.nn.Sequential:
    return torch.nn.Sequential(tower(width, *hidden), torch.nn.Linear(hidden[-1], 1))
