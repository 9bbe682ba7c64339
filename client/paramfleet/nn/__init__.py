"""Modules for ids: ``torch.nn``'s embeddings over unbounded sparse tables."""

from typing import TYPE_CHECKING, Any

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

_INSTEAD = {
    "ShowClickEntry": "use Embedding(..., accessor=fleet.nn.CtrAccessor()), and give the "
    "counts with the ids: embedding(ids, show=..., click=...)",
}
"""Names of Fleet that aren't here, and what is used instead."""

if not TYPE_CHECKING:  # a type checker knows the names, and which there aren't

    def __getattr__(name: str) -> Any:
        """Say what is used instead of a name of Fleet.

        Raises:
            AttributeError: always.
        """
        message = f"module {__name__!r} has no attribute {name!r}"
        if name in _INSTEAD:
            message += f": {_INSTEAD[name]}"
        raise AttributeError(message)
