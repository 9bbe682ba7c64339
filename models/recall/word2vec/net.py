"""Two vectors a word: as a context, which is the one that is kept, and as a target.

Mikolov et al., "Distributed Representations of Words and Phrases and their
Compositionality", NIPS 2013.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import HyperParameters

__all__ = ["SkipGram", "Word2VecParameters"]


VECTORS_AT_ONCE = 1 << 16
"""Rows of one request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Word2VecParameters(HyperParameters):
    """Sizes, and what chance decides."""

    min_learning_rate: float = 0.0001
    """What the learning rate has become at the end of the text, in a straight line."""

    embedding_dim: int = 100
    """Floats in a word's vector."""

    window: int = 5
    """Most words that a word looks to each side."""

    negatives: int = 5
    """Words drawn for each word."""

    sample: float = 0.001
    """Share of the text above which a word is thinned out."""

    min_count: int = 5
    """Words that occur less often are left out."""

    vocabulary_path: str = ""
    """Lines of a word and its count, as ``Vocabulary.save`` writes them; empty counts the
    words of the training files."""

    vocabulary_save_path: str = ""
    """Where worker 0 writes the vocabulary; ``paramfleet export`` takes it for names."""

    sparse_feature_dim: int = 0
    """PaddleRec's name of embedding_dim, which it replaces unless it is 0."""

    window_size: int = 0
    """PaddleRec's name of window, as well."""

    neg_num: int = 0
    """PaddleRec's name of negatives, as well."""

    def __post_init__(self) -> None:
        for name, theirs in (
            ("embedding_dim", self.sparse_feature_dim),
            ("window", self.window_size),
            ("negatives", self.neg_num),
        ):
            if theirs:
                object.__setattr__(self, name, theirs)


class SkipGram(torch.nn.Module):
    """Rows of words, and rows of the targets that they are to predict.

    Args:
        num_words: Words there are.
        dim: Floats of a vector.
        seed: Seeds the vectors.
    """

    def __init__(self, num_words: int, dim: int, *, seed: int) -> None:
        super().__init__()
        span = 0.5 / dim
        self.words = fleet.nn.Embedding(
            num_words, dim, name="words", initializer=fleet.nn.uniform(-span, span), seed=seed
        )
        self.targets = fleet.nn.Embedding(
            num_words, dim, name="targets", initializer=fleet.nn.constant(0.0)
        )

    @override
    def forward(self, words: torch.Tensor, targets: torch.Tensor) -> tuple[Any, Any]:
        """Return the different rows of words and of targets, each with its index.

        Args:
            words: int64 [n].
            targets: int64 [n, 1 + negatives].
        """
        return self.words(words, different=True), self.targets(targets, different=True)

    @torch.no_grad()
    def vectors(self) -> NDArray[np.float32]:
        """Return the vector of each word, float32 [words, dim]."""
        self.eval()
        num = self.words.num_embeddings
        found = [
            self.words(torch.arange(begin, min(begin + VECTORS_AT_ONCE, num)))
            for begin in range(0, num, VECTORS_AT_ONCE)
        ]
        self.train()
        return torch.cat(found).numpy()
