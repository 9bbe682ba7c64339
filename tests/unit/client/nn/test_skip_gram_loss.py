"""The loss of skip-gram against plain formulas: its value, its gradients, its walk."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from paramfleet.nn.skip_gram import SkipGramRateError, skip_gram_loss

WORDS, UNIQUE, TARGETS = 11, 6, 4
RANDOM = np.random.default_rng(4)
REACHES = RANDOM.integers(0, 4, WORDS)
INDEX = RANDOM.integers(0, UNIQUE, WORDS)
OUT_INDEX = RANDOM.integers(0, UNIQUE, (WORDS, TARGETS))
OUT_INDEX[3, 2] = OUT_INDEX[3, 0]  # a negative that is the word itself
OUT_INDEX[5, 1] = OUT_INDEX[5, 2]  # and one that comes twice

DIMS = [1, 3, 8, 20, 33]


def rows(dim: int, *, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(UNIQUE, dim, generator=random, dtype=dtype).requires_grad_()


def loss_of(
    inputs: torch.Tensor, outputs: torch.Tensor, *, rate: float | None = None
) -> torch.Tensor:
    index, targets = torch.from_numpy(INDEX), torch.from_numpy(OUT_INDEX)
    reaches = torch.from_numpy(REACHES)
    return skip_gram_loss((inputs, index), (outputs, targets), reaches, rate=rate)


def pairs() -> Iterator[tuple[int, int]]:
    """Yield a word's place and its context's."""
    for at in range(WORDS):
        for other in range(WORDS):
            if other != at and abs(other - at) <= REACHES[at]:
                yield at, other


def scores(at: int) -> Iterator[tuple[int, float]]:
    """Yield the row of each target that counts, and 1 for the word, 0 for a negative."""
    for place, row in enumerate(OUT_INDEX[at].tolist()):
        if place == 0 or row != OUT_INDEX[at, 0]:
            yield row, float(place == 0)


def plain_loss(inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    terms = []
    for at, other in pairs():
        for row, wanted in scores(at):
            score = inputs[INDEX[other]] @ outputs[row]
            terms.append(-torch.nn.functional.logsigmoid(score if wanted else -score))
    return torch.stack(terms).sum()


def plain_walk(
    inputs: NDArray[np.float64], outputs: NDArray[np.float64], rate: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Learn pair after pair as word2vec.c does; returns where the rows got to."""
    inputs, outputs = inputs.copy(), outputs.copy()
    for at, other in pairs():
        own, pull = INDEX[other], np.zeros(inputs.shape[1])
        for row, wanted in scores(at):
            chance = 1 / (1 + np.exp(-inputs[own] @ outputs[row]))
            factor = rate * (wanted - chance)
            pull += factor * outputs[row]
            outputs[row] += factor * inputs[own]
        inputs[own] += pull
    return inputs, outputs


@pytest.mark.parametrize("dim", DIMS)
def test_loss_and_gradients_are_those_of_the_plain_formula(dim: int) -> None:
    inputs, outputs = rows(dim, seed=1), rows(dim, seed=2)
    expected = plain_loss(inputs, outputs)

    found = loss_of(inputs, outputs)

    torch.testing.assert_close(found, expected)
    mine = torch.autograd.grad(3 * found, (inputs, outputs))
    theirs = torch.autograd.grad(3 * expected, (inputs, outputs))
    torch.testing.assert_close(mine, theirs)


def test_other_types_go_through_torch_and_pass_its_check() -> None:
    inputs = rows(3, seed=1, dtype=torch.float64)
    outputs = rows(3, seed=2, dtype=torch.float64)

    assert torch.autograd.gradcheck(loss_of, (inputs, outputs))
    torch.testing.assert_close(loss_of(inputs, outputs), plain_loss(inputs, outputs))


@pytest.mark.parametrize("dim", DIMS)
def test_with_a_rate_sgd_goes_where_word2vec_would(dim: int) -> None:
    inputs, outputs = rows(dim, seed=1), rows(dim, seed=2)
    starts = [each.detach().double().numpy() for each in (inputs, outputs)]
    expected = plain_walk(starts[0], starts[1], 0.3)

    loss_of(inputs, outputs, rate=0.3).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    torch.optim.SGD([inputs, outputs], lr=0.3).step()

    for mine, theirs in zip((inputs, outputs), expected, strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), theirs, atol=2e-5)


def test_a_small_rate_leaves_the_gradient_of_the_sum() -> None:
    inputs, outputs = rows(8, seed=1), rows(8, seed=2)
    expected = torch.autograd.grad(loss_of(inputs, outputs), (inputs, outputs))

    found = torch.autograd.grad(loss_of(inputs, outputs, rate=1e-3), (inputs, outputs))

    torch.testing.assert_close(found, expected, atol=0.1, rtol=0.02)


def test_scores_far_from_zero_have_exact_losses() -> None:
    inputs = torch.full((UNIQUE, 8), 6.0, requires_grad=True)
    outputs = torch.full((UNIQUE, 8), 6.0, requires_grad=True)

    loss = loss_of(inputs, outputs)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    torch.testing.assert_close(loss, plain_loss(inputs, outputs))
    assert inputs.grad is not None
    assert inputs.grad.isfinite().all()


def test_a_batch_without_pairs_has_no_loss() -> None:
    inputs, outputs = rows(4, seed=1), rows(4, seed=2)
    nothing = torch.empty(0, dtype=torch.int64)

    loss = skip_gram_loss((inputs, nothing), (outputs, nothing.view(0, 3)), nothing)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    assert loss.item() == 0
    assert inputs.grad is not None
    assert not inputs.grad.any()


def test_a_rate_is_above_zero_and_needs_float32() -> None:
    with pytest.raises(SkipGramRateError, match="above 0"):
        loss_of(rows(4, seed=1), rows(4, seed=2), rate=0.0)
    double = rows(4, seed=1, dtype=torch.float64)
    with pytest.raises(SkipGramRateError, match="float32"):
        loss_of(double, double, rate=0.1)
