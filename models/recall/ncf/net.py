"""Users and items: products of their vectors, a network over others, or both.

He et al., "Neural Collaborative Filtering", WWW 2017 (arXiv 1708.05031).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import HyperParameters, tower
from paramfleet_shared.settings.config import SettingError, check_ranges

__all__ = ["Ncf", "NcfParameters"]

_RANGES: dict[str, tuple[float, float]] = {
    "num_users": (0, 2**63 - 1),
    "num_items": (0, 2**63 - 1),
    "mf_dim": (1, 1 << 20),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class NcfParameters(HyperParameters):
    """Sizes.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    num_users: int = 6040
    """How many users there are about. A table grows as it needs; this is no limit of it."""

    num_items: int = 3706
    """The same of items."""

    mf_dim: int = 8
    """Floats in the vectors that are multiplied."""

    mode: Literal["NCF_NeuMF", "NCF_GMF", "NCF_MLP"] = "NCF_NeuMF"
    """NCF_GMF: products. NCF_MLP: a network. NCF_NeuMF: both."""

    fc_layers: tuple[int, ...] = (64, 32, 16, 8)
    """Width of the network's input, half a user's vector and half an item's, and of each of
    its layers."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        sizes = self.fc_layers
        if len(sizes) < 2 or min(sizes) < 1 or sizes[0] % 2:
            rule = "a list of two or more widths from 1, the first one even"
            raise SettingError(name="fc_layers", value=sizes, rule=rule)


class Ncf(torch.nn.Module):
    """Logit of a user and an item that belong together.

    Args:
        hyper: Sizes.
        seed: Seeds the first vectors.
    """

    def __init__(self, hyper: NcfParameters, *, seed: int) -> None:
        super().__init__()
        products, half = hyper.mf_dim, hyper.fc_layers[0] // 2
        self.products = self.deep = None
        width = 0
        if hyper.mode != "NCF_MLP":
            self.products = _vectors(hyper, products, seed)
            width += products
        if hyper.mode != "NCF_GMF":
            self.halves = _vectors(hyper, half, seed + 2)
            self.deep = tower(*hyper.fc_layers)
            width += hyper.fc_layers[-1]
        self.out = torch.nn.Linear(width, 1)

    @override
    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Return one logit an example, float32 [B].

        Args:
            users: int64 [B].
            items: int64 [B].
        """
        features = []
        if self.products is not None:
            of_users, of_items = self.products
            features.append(of_users(users) * of_items(items))
        if self.deep is not None:
            of_users, of_items = self.halves
            features.append(self.deep(torch.cat([of_users(users), of_items(items)], dim=1)))
        logits: torch.Tensor = self.out(torch.cat(features, dim=1)).squeeze(1)
        return logits


def _vectors(hyper: NcfParameters, dim: int, seed: int) -> torch.nn.ModuleList:
    """Return the vectors of users and of items."""
    return torch.nn.ModuleList(
        fleet.nn.Embedding(count, dim, initializer=fleet.nn.normal(std=0.1), seed=seed + number)
        for number, count in enumerate((hyper.num_users, hyper.num_items))
    )
