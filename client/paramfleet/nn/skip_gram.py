"""The loss of skip-gram with negative sampling, computed from a batch's different rows.

In plain PyTorch it is a row a pair and target, gathered, multiplied and scattered again. On
the processor one kernel does it here pair by pair, without the GIL; devices and other types
go through torch's operations. There is no second derivative.

Shape legend: n = words of a batch, U = different ones, K = targets of a word, M = pairs,
D = row width.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus
from typing_extensions import override

from paramfleet.nn.skip_gram_kernels import list_pairs, num_pairs, walk
from paramfleet_shared.errors import ContractError

__all__ = ["SkipGramRateError", "skip_gram_loss"]

Rows = tuple[torch.Tensor, torch.Tensor]
"""Different rows float [U, D], and which of them a place has, int64."""


class SkipGramRateError(ContractError):
    """``rate`` is not above 0, or cannot be used with these rows."""

    code = "contract.skip_gram_rate"
    rate: float
    rule: str
    sentence = "rate = {rate}: {rule}"


def skip_gram_loss(
    inputs: Rows, outputs: Rows, reaches: torch.Tensor, *, rate: float | None = None
) -> torch.Tensor:
    """Return the loss of skip-gram with negative sampling, summed over all pairs.

    A word is paired with each word at a distance of at most its reach. The loss of a pair is
    ``-log sigmoid(c.w)``, plus ``-log sigmoid(-c.v)`` for each negative v that is not the word
    itself. Here c is the input row of the other word, and w and v are output rows. This is the
    loss of word2vec; all pairs of a word share its negatives (Ji et al., "Parallelizing
    Word2Vec in Shared and Distributed Memory", 2016).

    Frequent words occur many times in a batch. If all their gradients are computed from the
    same rows, their sum can be too large for SGD. With ``rate`` each pair therefore uses the
    rows as the pairs before it have changed them, as in word2vec.c. The gradient is then the
    total change of a row divided by ``rate``, so that SGD with this learning rate gives
    exactly that change.

    Args:
        inputs: Rows [U, D] of words as contexts, and the index of each word's row, int64 [n]:
            what ``embedding(words, different=True)`` returns.
        outputs: Rows of words as targets, and the index of each target's row, int64 [n, K]:
            the word itself, then its negatives.
        reaches: int64 [n], at least 0.
        rate: The learning rate of this step; None for the gradient of the sum.

    Raises:
        SkipGramRateError: if ``rate`` is not above 0, or the rows are not float32 in host
            memory.
    """
    (rows, index), (others, targets) = inputs, outputs
    both = (rows, others)
    is_plain = any(each.device.type != "cpu" or each.dtype != torch.float32 for each in both)
    if rate is not None and is_plain:
        raise SkipGramRateError(rate=rate, rule="only for float32 rows on the CPU")
    if rate is not None and not rate > 0:
        raise SkipGramRateError(rate=rate, rule="must be above 0, or None")
    if is_plain:
        return _plain(rows, index, others, targets, reaches)
    loss: torch.Tensor = _Fused.apply(rows, index, others, targets, reaches, rate)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return loss


def _plain(
    rows: torch.Tensor,
    index: torch.Tensor,
    others: torch.Tensor,
    targets: torch.Tensor,
    reaches: torch.Tensor,
) -> torch.Tensor:
    """Return the loss by torch's operations."""
    reach = reaches.cpu().numpy()
    count = num_pairs(reach)
    centres, contexts = np.empty(count, np.int64), np.empty(count, np.int64)
    list_pairs(reach, centres, contexts)
    of_pair = targets[torch.from_numpy(centres).to(targets.device)]
    context_MD = rows[index[torch.from_numpy(contexts).to(index.device)]]
    score_MK = torch.einsum("md,mkd->mk", context_MD, others[of_pair])
    itself = of_pair[:, 1:] == of_pair[:, :1]
    negative = softplus(score_MK[:, 1:]).masked_fill(itself, 0.0)
    return softplus(-score_MK[:, 0]).sum() + negative.sum()


class _Fused(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        index: torch.Tensor,
        others: torch.Tensor,
        targets: torch.Tensor,
        reaches: torch.Tensor,
        rate: float | None,
    ) -> torch.Tensor:
        before = rows.numpy(), others.numpy()
        dim = rows.shape[1]
        if rate is None:
            sums = np.zeros_like(before[0]), np.zeros_like(before[1])
            starts, factor = before, np.float32(-1)
        else:
            sums = before[0].copy(), before[1].copy()
            starts, factor = sums, np.float32(rate)
        loss = walk(
            (_flat(starts[0]), _flat(sums[0]), index.contiguous().numpy()),
            (_flat(starts[1]), _flat(sums[1]), targets.contiguous().numpy()),
            reaches.contiguous().numpy(),
            np.zeros(dim, np.float32),
            factor,
        )
        if rate is not None:
            for start, moved in zip(before, sums, strict=True):
                np.subtract(start, moved, out=moved)
                np.divide(moved, factor, out=moved)
        ctx.gradients = [torch.from_numpy(each) for each in sums]
        return rows.new_tensor(loss)

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        factor = grads[0].item()
        of_rows, of_others = (each if factor == 1 else each * factor for each in ctx.gradients)
        return of_rows, None, of_others, None, None, None


def _flat(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(rows).reshape(-1)
