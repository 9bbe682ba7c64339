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

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingOptionError",
    "IdError",
    "constant",
    "normal",
    "uniform",
]
