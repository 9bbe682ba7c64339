"""How many of the items that users took then are among those nearest to their interests."""

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import torch

__all__ = ["Recalled"]


class Recalled:
    """Counts users, as PaddleRec's program for MIND does.

    Args:
        top_n: Items that are recalled for a user.
    """

    def __init__(self, top_n: int) -> None:
        self._top_n = top_n
        self._users = 0
        self._recall = self._ndcg = self._hits = 0.0

    def update(
        self,
        interests: torch.Tensor,
        vectors: torch.Tensor,
        wanted: Sequence[AbstractSet[int]],
    ) -> None:
        """Count users.

        An item is as near as to the nearest of a user's interests.

        Args:
            interests: float32 [users, interests, dim].
            vectors: Of the items from 1, float32 [items, dim].
            wanted: What each user took then; at least one item.
        """
        near = (interests @ vectors.T).amax(dim=1)
        nearest = near.topk(min(self._top_n, len(vectors)), dim=1).indices + 1
        for items, found in zip(nearest.tolist(), wanted, strict=True):
            places = [place for place, item in enumerate(items) if item in found]
            self._users += 1
            self._recall += len(places) / len(found)
            self._hits += bool(places)
            if places:
                best = sum(1 / math.log2(place + 2) for place in range(len(places)))
                self._ndcg += sum(1 / math.log2(place + 2) for place in places) / best

    def values(self) -> dict[str, float]:
        """Return the means over the users; nothing without any."""
        if not self._users:
            return {}
        sums = {"recall": self._recall, "ndcg": self._ndcg, "hitrate": self._hits}
        return {name: total / self._users for name, total in sums.items()}
