"""Vectors that attend to each other, beside a network and a linear part.

Song et al., "AutoInt", 2019 (arXiv 1810.11921). Numbers take part as PaddleRec has it: each
has a vector that it scales.
"""

import itertools
from dataclasses import dataclass

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import NO_ID, CtrParameters, slot_sums, tower
from paramfleet_shared.settings.config import SettingError, check_ranges

__all__ = ["AutoInt", "AutoIntParameters", "Interacting"]

_RANGES: dict[str, tuple[float, float]] = {"head_num": (1, 1024)}


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoIntParameters(CtrParameters):
    """Those of the attention, beside the sizes of all models of clicks.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    attn_layer_sizes: tuple[int, ...] = (64, 64, 64)
    """Width of each attending layer, a multiple of head_num."""

    head_num: int = 2
    """Attentions of a layer."""

    use_residual: bool = True
    """Whether a layer adds its input, made as wide as it."""

    scaling: bool = True
    """Whether products are divided by the root of an attention's width."""

    use_wide: bool = True
    """Whether there is a linear part."""

    num_field: int = 0
    """Pairs of an id and a value, as PaddleRec's reader has them; 0 for slots and numbers."""

    feature_number: int = 0
    """sparse_feature_number of pairs."""

    embedding_dim: int = 0
    """sparse_feature_dim of pairs; 0 for that."""

    def __post_init__(self) -> None:
        CtrParameters.__post_init__(self)
        check_ranges(self, _RANGES)
        sizes = self.attn_layer_sizes
        if min(sizes, default=0) < 1 or any(size % self.head_num for size in sizes):
            rule = f"a list of multiples of head_num ({self.head_num}), from it"
            raise SettingError(name="attn_layer_sizes", value=sizes, rule=rule)


class Interacting(torch.nn.Module):
    """Attention of each vector to all, in several heads.

    Args:
        before: Width of a vector.
        width: What it becomes.
        hyper: Says the heads, the residual and the scaling.
    """

    def __init__(self, before: int, width: int, hyper: AutoIntParameters) -> None:
        super().__init__()
        self.query = torch.nn.Linear(before, width, bias=False)
        self.key = torch.nn.Linear(before, width, bias=False)
        self.value = torch.nn.Linear(before, width, bias=False)
        self.residual = (
            torch.nn.Linear(before, width, bias=False) if hyper.use_residual else None
        )
        self.norm = torch.nn.LayerNorm(width)
        self.heads = hyper.head_num
        self.scale = (width // hyper.head_num) ** -0.5 if hyper.scaling else 1.0

    @override
    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the vectors as wide as the layer, float32 [B, fields, width].

        Args:
            vectors: float32 [B, fields, before].
        """
        query, key, value = (
            layer(vectors).relu().unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        weights = (query @ key.transpose(2, 3) * self.scale).softmax(dim=3)
        attended = (weights @ value).transpose(1, 2).flatten(2)
        if self.residual is not None:
            attended = attended + self.residual(vectors).relu()
        normed: torch.Tensor = self.norm(attended.relu())
        return normed


class AutoInt(torch.nn.Module):
    """Logit of a click.

    Args:
        hyper: Sizes; without fc_sizes there is no network beside the attention.
        seed: Seeds the first vector of each id.
    """

    def __init__(self, hyper: AutoIntParameters, *, seed: int) -> None:
        super().__init__()
        dim, slots = hyper.sparse_feature_dim, hyper.sparse_inputs_slots - 1
        numbers = hyper.dense_input_dim
        self.has_values = bool(hyper.num_field)
        if self.has_values:
            dim = hyper.embedding_dim or dim
            slots, numbers = hyper.num_field, 0
        self.embedding = fleet.nn.Embedding(
            0, dim, padding_idx=NO_ID, initializer=fleet.nn.normal(std=0.03), seed=seed
        )
        self.dense_vectors = torch.nn.Parameter(0.03 * torch.randn(numbers, dim))
        self.attention = torch.nn.Sequential(
            *(
                Interacting(before, width, hyper)
                for before, width in itertools.pairwise([dim, *hyper.attn_layer_sizes])
            )
        )
        self.deep = tower((slots + numbers) * dim, *hyper.fc_sizes) if hyper.fc_sizes else None
        width = (slots + numbers) * hyper.attn_layer_sizes[-1] + sum(hyper.fc_sizes[-1:])
        self.out = torch.nn.Linear(width, 1)
        self.use_wide = hyper.use_wide
        if self.use_wide:
            self.first_ids = fleet.nn.EmbeddingBag(
                0, 1, padding_idx=NO_ID, mode="sum", initializer=fleet.nn.constant(0.0)
            )
            self.first_dense = torch.nn.Linear(max(1, numbers), 1)

    @override
    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Return one logit an example, float32 [B].

        Args:
            ids: int64 [B, slots], or [B, slots, ids] with NO_ID where a slot has fewer.
            dense: float32 [B, numbers]; with num_field the value of each id.
        """
        looked_up = slot_sums(self.embedding(ids))
        if self.has_values:
            vectors = looked_up * dense.unsqueeze(2)
        else:
            vectors = torch.cat([looked_up, dense.unsqueeze(2) * self.dense_vectors], dim=1)
        features = self.attention(vectors).flatten(1)
        if self.deep is not None:
            features = torch.cat([features, self.deep(vectors.flatten(1))], dim=1)
        logits: torch.Tensor = self.out(features)
        if self.use_wide and self.has_values:
            weighted = self.first_ids(ids, per_sample_weights=dense)
            logits = logits + weighted + self.first_dense(torch.zeros_like(dense[:, :1]))
        elif self.use_wide:
            logits = logits + self.first_ids(ids.flatten(1)) + self.first_dense(dense)
        return logits.squeeze(1)
