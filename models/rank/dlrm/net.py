"""Numbers through a network, and the products of all pairs of vectors into another.

Naumov et al., "Deep Learning Recommendation Model", 2019 (arXiv 1906.00091).
"""

from dataclasses import dataclass

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import NO_ID, CtrParameters, slot_sums, tower
from paramfleet_shared.settings.config import SettingError

__all__ = ["Dlrm", "DlrmParameters"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DlrmParameters(CtrParameters):
    """Those of the two networks, beside the sizes of all models of clicks.

    Raises:
        SettingError: if the sizes don't fit together.
    """

    bot_layer_sizes: tuple[int, ...] = (512, 256, 64, 16)
    """Width of each layer of the network of the numbers; the last is sparse_feature_dim."""

    top_layer_sizes: tuple[int, ...] = (512, 256, 1)
    """Width of each layer above the products. The last is 1, the logit of a click, or 2, the
    scores of none and of one, as PaddleRec has it."""

    num_field: int = 26
    """Slots with ids: sparse_inputs_slots without the label."""

    def __post_init__(self) -> None:
        CtrParameters.__post_init__(self)
        if self.bot_layer_sizes[-1:] != (self.sparse_feature_dim,):
            rule = f"a list that ends with sparse_feature_dim ({self.sparse_feature_dim})"
            raise SettingError(name="bot_layer_sizes", value=self.bot_layer_sizes, rule=rule)
        if self.top_layer_sizes[-1:] not in {(1,), (2,)}:
            rule = "a list that ends with 1 or 2"
            raise SettingError(name="top_layer_sizes", value=self.top_layer_sizes, rule=rule)
        for name, sizes in (("bot_layer_sizes", self.bot_layer_sizes),
                            ("top_layer_sizes", self.top_layer_sizes)):  # fmt: skip
            if min(sizes) < 1:
                raise SettingError(name=name, value=sizes, rule="a list of widths from 1")
        if self.num_field != self.sparse_inputs_slots - 1:
            rule = f"sparse_inputs_slots - 1 ({self.sparse_inputs_slots - 1})"
            raise SettingError(name="num_field", value=self.num_field, rule=rule)


class Dlrm(torch.nn.Module):
    """Logit of a click.

    Args:
        hyper: Sizes.
        seed: Seeds the first vector of each id.
    """

    def __init__(self, hyper: DlrmParameters, *, seed: int) -> None:
        super().__init__()
        dim, vectors = hyper.sparse_feature_dim, hyper.num_field + 1
        self.embedding = fleet.nn.Embedding(
            0,
            dim,
            padding_idx=NO_ID,
            initializer=fleet.nn.normal(std=0.1),
            seed=seed,
        )
        self.bottom = tower(hyper.dense_input_dim, *hyper.bot_layer_sizes)
        *hidden, scores = hyper.top_layer_sizes
        widths = [dim + vectors * (vectors - 1) // 2, *hidden]
        self.top = tower(*widths)
        self.out = torch.nn.Linear(widths[-1], scores)
        first, second = torch.triu_indices(vectors, vectors, offset=1)
        self.pairs = (first, second)

    @override
    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Return one logit an example, float32 [B].

        Args:
            ids: int64 [B, slots], or [B, slots, ids] with NO_ID where a slot has fewer.
            dense: float32 [B, numbers].
        """
        numbers = self.bottom(dense)
        vectors = torch.cat([slot_sums(self.embedding(ids)), numbers.unsqueeze(1)], dim=1)
        first, second = self.pairs
        products = (vectors @ vectors.transpose(1, 2))[:, first, second]
        scores = self.out(self.top(torch.cat([numbers, products], dim=1)))
        # The softmax of two scores is the logistic function of their difference.
        logits: torch.Tensor = scores[:, -1] - (scores[:, 0] if scores.shape[1] == 2 else 0)
        return logits
