"""The models of ``quality.py``: what is done with rows, wherever these come from.

A job looks rows up in servers or in a replica, and ``bare.py`` in a plain tensor; both call
``logits``.
"""

from itertools import pairwise

import torch

import paramfleet as fleet

__all__ = ["DeepFM", "Model", "SkipGram"]

FACTORS = 8
HIDDEN = (64, 32)
WORD_DIM = 16


class Model(torch.nn.Module):
    """A table ``rows``, and what makes logits of them."""

    rows: fleet.nn.Embedding

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the logits, [n], of rows [n, columns, width]."""
        raise NotImplementedError

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits, [n], of ids [n, columns]."""
        return self.logits(self.rows(ids))


class DeepFM(Model):
    """Guo et al., 2017, with rows of a bias and 8 factors, and 64 and 32 hidden units.

    Args:
        num_columns: Ids of an example.
        seed: Of all first values.
    """

    def __init__(self, num_columns: int, *, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        first = fleet.nn.normal(0.0, 0.01)
        self.rows = fleet.nn.Embedding(
            0, FACTORS + 1, name="rows", initializer=first, seed=seed
        )
        widths = (num_columns * FACTORS, *HIDDEN)
        hidden = [
            layer
            for before, after in pairwise(widths)
            for layer in (torch.nn.Linear(before, after), torch.nn.ReLU())
        ]
        self.deep = torch.nn.Sequential(*hidden, torch.nn.Linear(widths[-1], 1))

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the logits, [n], of rows [n, columns, 9]."""
        factors = rows[..., 1:]
        total = factors.sum(1)
        pairs = 0.5 * (total * total - (factors * factors).sum(1)).sum(1)
        deep: torch.Tensor = self.deep(factors.flatten(1)).squeeze(1)
        logits: torch.Tensor = rows[..., 0].sum(1) + pairs + deep
        return logits


class SkipGram(Model):
    """Mikolov et al., 2013: a row of 16 values for each word, and one for it as a neighbour.

    Args:
        num_columns: 2: a word and a neighbour.
        seed: Of all first values.
    """

    def __init__(self, num_columns: int, *, seed: int) -> None:
        super().__init__()
        assert num_columns == 2, "a word and a neighbour"
        first = fleet.nn.normal(0.0, 0.1)
        self.rows = fleet.nn.Embedding(0, WORD_DIM, name="rows", initializer=first, seed=seed)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the logits, [n], of rows [n, 2, 16]."""
        return (rows[:, 0] * rows[:, 1]).sum(1)
