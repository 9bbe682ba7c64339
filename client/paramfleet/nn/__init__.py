"""Modules for ids: ``torch.nn``'s embeddings over unbounded sparse tables."""

from paramfleet.nn.embedding import (
    Embedding,
    EmbeddingBag,
    EmbeddingOptionError,
    IdError,
    constant,
    normal,
    uniform,
)
from paramfleet.nn.skip_gram import SkipGramRateError, skip_gram_loss

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingOptionError",
    "IdError",
    "SkipGramRateError",
    "constant",
    "normal",
    "skip_gram_loss",
    "uniform",
]
