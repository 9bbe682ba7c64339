"""Vectors of a user's interests, by dynamic routing of the vectors of the items before.

Li et al., "Multi-Interest Network with Dynamic Routing for Recommendation at Tmall", CIKM 2019
(arXiv 1904.08030).
"""

import math
from dataclasses import dataclass

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import HyperParameters
from paramfleet_shared.settings.config import SettingError, check_ranges

__all__ = ["Capsules", "Mind", "MindParameters", "draw"]

_RANGES: dict[str, tuple[float, float]] = {
    "item_count": (2, 2**63 - 1),
    "embedding_dim": (1, 1 << 20),
    "hidden_size": (1, 1 << 20),
    "neg_samples": (1, 1 << 20),
    "maxlen": (1, 1_000_000),
    "pow_p": (0.0, 1000.0),
    "capsual_iters": (1, 1000),
    "capsual_max_k": (1, 1000),
    "capsual_init_std": (0.0, 1000.0),
    "top_n": (1, 1_000_000),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MindParameters(HyperParameters):
    """Sizes; the names of three are PaddleRec's.

    Raises:
        SettingError: if a value is outside its range, or the sizes don't fit together.
    """

    item_count: int = 367_983
    """Items from 0, which is none, to this number less 1."""

    embedding_dim: int = 64
    """Floats in the vector of an item."""

    hidden_size: int = 64
    """Floats in a vector of a user: as many."""

    neg_samples: int = 100
    """Items that the right one is learned against, the same for all of a batch."""

    maxlen: int = 30
    """Items before; earlier ones are left out."""

    pow_p: float = 1.0
    """How much more the nearest interest counts than the others when an item is learned."""

    capsual_iters: int = 3
    """Rounds of the routing."""

    capsual_max_k: int = 4
    """Vectors of a user."""

    capsual_init_std: float = 1.0
    """Standard deviation of the logits that the routing begins with."""

    top_n: int = 50
    """Items that are recalled for a user, in a test."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        if self.hidden_size != self.embedding_dim:
            rule = f"embedding_dim ({self.embedding_dim}): users and items are multiplied"
            raise SettingError(name="hidden_size", value=self.hidden_size, rule=rule)


class Capsules(torch.nn.Module):
    """Routes vectors of items to vectors of interests.

    Args:
        hyper: Sizes.
    """

    logits: torch.Tensor

    def __init__(self, hyper: MindParameters) -> None:
        super().__init__()
        self._rounds = hyper.capsual_iters
        self.mapping = torch.nn.Linear(hyper.embedding_dim, hyper.hidden_size, bias=False)
        shape = (hyper.capsual_max_k, hyper.maxlen)
        self.register_buffer("logits", hyper.capsual_init_std * torch.randn(shape))
        self.out = torch.nn.Linear(hyper.hidden_size, hyper.hidden_size)

    @override
    def forward(self, vectors: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """Return the interests, float32 [B, interests, hidden].

        Args:
            vectors: Of items, float32 [B, maxlen, dim].
            there: Which are no padding, bool [B, maxlen].
        """
        mapped = self.mapping(vectors)
        fixed = mapped.detach()  # the routing itself isn't learned
        logits = self.logits.expand(len(vectors), -1, -1)
        for _ in range(self._rounds - 1):
            interests = _squashed(_weights(logits, there) @ fixed)
            logits = logits + interests @ fixed.transpose(1, 2)
        interests = _squashed(_weights(logits, there) @ mapped)
        return torch.relu(self.out(interests))


class Mind(torch.nn.Module):
    """Interests of users, and in training how much items fit them.

    Args:
        hyper: Sizes.
        seed: Seeds the first vector of each item.
    """

    def __init__(self, hyper: MindParameters, *, seed: int) -> None:
        super().__init__()
        self._power = hyper.pow_p
        self.items = fleet.nn.Embedding(
            hyper.item_count,
            hyper.embedding_dim,
            padding_idx=0,
            initializer=fleet.nn.normal(std=0.1),
            seed=seed,
        )
        self.capsules = Capsules(hyper)

    def interests(self, before: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the interests of users, float32 [B, interests, hidden].

        Args:
            before: Items, int64 [B, maxlen].
            lengths: How many of them there are, int64 [B].
        """
        places = torch.arange(before.shape[1], device=before.device)
        found: torch.Tensor = self.capsules(self.items(before), places < lengths.unsqueeze(1))
        return found

    @override
    def forward(
        self,
        before: torch.Tensor,
        lengths: torch.Tensor,
        items: torch.Tensor,
        others: torch.Tensor,
    ) -> torch.Tensor:
        """Return how much an item fits, and then each other, float32 [B, 1 + others].

        Another that is the item itself fits not at all.

        Args:
            before: Items, int64 [B, maxlen].
            lengths: How many of them there are, int64 [B].
            items: To be found, int64 [B].
            others: Drawn by chance, int64 [others].
        """
        interests = self.interests(before, lengths)
        vectors = self.items(torch.cat([items, others]))
        wanted, drawn = vectors[: len(items)], vectors[len(items) :]
        near = (interests @ wanted.unsqueeze(2)).squeeze(2)
        attention = torch.softmax(near.sign() * near.abs() ** self._power, dim=1)
        user = (attention.unsqueeze(1) @ interests).squeeze(1)
        fits = (user * wanted).sum(dim=1, keepdim=True)
        same = items.unsqueeze(1) == others
        against = (user @ drawn.T).masked_fill(same, -1e30)
        scores = torch.cat([fits, against], dim=1)
        likely = _log_chance(torch.cat([items.unsqueeze(1), others.expand_as(same)], dim=1))
        return scores - likely


def draw(number: int, *, below: int, generator: torch.Generator) -> torch.Tensor:
    """Return items from 1 drawn by chance, small ones most, int64 [number].

    Item i has a chance that is proportional to log((i + 2) / (i + 1)).
    """
    uniform = torch.rand(number, generator=generator, dtype=torch.float64)
    low, high = math.log(2.0), math.log(below + 1.0)
    drawn = torch.exp(low + uniform * (high - low)).long() - 1
    return drawn.clamp(1, below - 1)


def _log_chance(items: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the chance of each item, less a constant."""
    number = items.double()
    return torch.log(torch.log1p(1 / (number + 1))).float()


def _weights(logits: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Return which share of an item goes to each interest, float32 [B, interests, maxlen]."""
    return torch.softmax(logits, dim=1) * there.unsqueeze(1)


def _squashed(vectors: torch.Tensor) -> torch.Tensor:
    """Return vectors of the same directions, shorter than 1."""
    squares = vectors.square().sum(dim=-1, keepdim=True)
    return vectors * squares / ((1 + squares) * torch.sqrt(squares + 1e-8))
