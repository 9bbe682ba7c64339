"""A history of which each item weighs as much as it has to do with the item that is judged.

Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018 (arXiv
1706.06978). The weights are a softmax, and the networks have sigmoids, as PaddleRec has it.
"""

import itertools
from dataclasses import dataclass

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import HyperParameters
from paramfleet_shared.settings.config import check_ranges

__all__ = ["Din", "DinParameters"]

_RANGES: dict[str, tuple[float, float]] = {
    "item_emb_size": (1, 1 << 20),
    "cat_emb_size": (1, 1 << 20),
    "item_count": (0, 2**63 - 1),
    "cat_count": (0, 2**63 - 1),
    "max_len": (1, 1_000_000),
}

_HIDDEN = (80, 40)
"""Width of the hidden layers of both networks, as the paper has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DinParameters(HyperParameters):
    """Sizes.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    item_emb_size: int = 64
    """Floats in the vector of an item."""

    cat_emb_size: int = 64
    """Floats in the vector of a category."""

    item_count: int = 63_001
    """How many items there are about. A table grows as it needs; this is no limit of it."""

    cat_count: int = 801
    """The same of categories."""

    max_len: int = 100
    """Items of a history; earlier ones are left out."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)


class Din(torch.nn.Module):
    """Logit of an item that a user takes.

    Args:
        hyper: Sizes.
        seed: Seeds the first vector of each id.
    """

    def __init__(self, hyper: DinParameters, *, seed: int) -> None:
        super().__init__()
        self.items = fleet.nn.Embedding(
            hyper.item_count,
            hyper.item_emb_size,
            initializer=fleet.nn.normal(std=0.1),
            seed=seed,
        )
        self.categories = fleet.nn.Embedding(
            hyper.cat_count,
            hyper.cat_emb_size,
            initializer=fleet.nn.normal(std=0.1),
            seed=seed + 1,
        )
        self.bias = fleet.nn.Embedding(hyper.item_count, 1, initializer=fleet.nn.constant(0.0))
        dim = hyper.item_emb_size + hyper.cat_emb_size
        self.attention = _network(4 * dim)
        self.interest = torch.nn.Linear(dim, dim)
        self.out = _network(2 * dim)

    @override
    def forward(
        self,
        items: torch.Tensor,
        categories: torch.Tensor,
        there: torch.Tensor,
        item: torch.Tensor,
        category: torch.Tensor,
    ) -> torch.Tensor:
        """Return one logit an example, float32 [B].

        Args:
            items: Of the history, int64 [B, length].
            categories: Of the history, int64 [B, length].
            there: Whether there is an item at this place of the history, bool [B, length].
            item: What is judged, int64 [B].
            category: Its category, int64 [B].
        """
        history = torch.cat([self.items(items), self.categories(categories)], dim=2)
        target = torch.cat([self.items(item), self.categories(category)], dim=1)
        weights = self.weights(history, target, there)
        interest = self.interest((weights.unsqueeze(1) @ history).squeeze(1))
        logits: torch.Tensor = self.out(torch.cat([interest, target], dim=1)) + self.bias(item)
        return logits.squeeze(1)

    def weights(
        self, history: torch.Tensor, target: torch.Tensor, there: torch.Tensor
    ) -> torch.Tensor:
        """Return the weights of the history's items, float32 [B, length]; 0 for padding.

        Args:
            history: Vectors, float32 [B, length, dim].
            target: Vectors, float32 [B, dim].
            there: Which are no padding, bool [B, length].
        """
        wanted = target.unsqueeze(1).expand_as(history)
        both = [history, wanted, history - wanted, history * wanted]
        scores = self.attention(torch.cat(both, dim=2)).squeeze(2)
        scores = (scores * history.shape[2] ** -0.5).masked_fill(~there, -torch.inf)
        weights = torch.softmax(scores, dim=1)
        return weights.masked_fill(~there, 0.0)  # an empty history has no softmax


def _network(width: int) -> torch.nn.Sequential:
    """Return a network with sigmoids and one output."""
    layers: list[torch.nn.Module] = []
    for width_in, width_out in itertools.pairwise((width, *_HIDDEN)):
        layers += [torch.nn.Linear(width_in, width_out), torch.nn.Sigmoid()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(_HIDDEN[-1], 1))
