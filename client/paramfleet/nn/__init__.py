"""Modules for ids: ``torch.nn``'s embeddings over unbounded sparse tables."""

from paramfleet.config.accessor import AccessorOptionError, CtrAccessor, SparseRule
from paramfleet.config.entries import CountFilterEntry, EntryOptionError, ProbabilityEntry
from paramfleet.nn.counting import continuous_value_model
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
    "AccessorOptionError",
    "CountFilterEntry",
    "CtrAccessor",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingOptionError",
    "EntryOptionError",
    "IdError",
    "ProbabilityEntry",
    "SkipGramRateError",
    "SparseRule",
    "constant",
    "continuous_value_model",
    "normal",
    "skip_gram_loss",
    "uniform",
]
