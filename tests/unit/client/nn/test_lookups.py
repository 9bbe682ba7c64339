"""The backward of embeddings against torch's own."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from paramfleet.nn.lookups import bags_of_rows, rows_of_ids

NUM, DIM = 9, 5
RANDOM = torch.Generator().manual_seed(0)
INDEX = torch.randint(0, NUM, (6, 4), generator=RANDOM)
OFFSETS = torch.tensor([0, 0, 5, 5, 11])
BAGS: dict[str, tuple[torch.Tensor, torch.Tensor | None, bool]] = {
    "table": (INDEX, None, False),
    "offsets": (INDEX.flatten(), OFFSETS, False),
    "last offset": (INDEX.flatten(), torch.cat([OFFSETS, torch.tensor([24])]), True),
    "int32 offsets": (INDEX.flatten(), OFFSETS.to(torch.int32), False),
    "no ids": (torch.empty(0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), False),
}


def rows() -> torch.Tensor:
    made = torch.randn(NUM, DIM, generator=torch.Generator().manual_seed(1))
    return made.requires_grad_()


def gradient(found: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(found.numel(), dtype=torch.float32).reshape(found.shape).cos()
    (grad,) = torch.autograd.grad((found * weights).sum(), leaf)
    return grad


def test_rows_and_their_gradients_are_torchs() -> None:
    leaf, index = rows(), INDEX.flatten()

    found, expected = rows_of_ids(leaf, index), functional.embedding(index, leaf)

    assert torch.equal(found, expected)
    torch.testing.assert_close(gradient(found, leaf), gradient(expected, leaf))


@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("bags", BAGS)
def test_bags_and_their_gradients_are_torchs(
    bags: str, mode: Any, padding_idx: int | None
) -> None:
    leaf = rows()
    index, offsets, include_last = BAGS[bags]

    found = bags_of_rows(
        leaf,
        index,
        offsets,
        mode=mode,
        per_sample_weights=None,
        include_last_offset=include_last,
        padding_idx=padding_idx,
    )
    wide = offsets if offsets is None else offsets.to(torch.int64)
    expected = functional.embedding_bag(
        index,
        leaf,
        wide,
        mode=mode,
        include_last_offset=include_last,
        padding_idx=padding_idx,
    )

    assert torch.equal(found, expected)
    ours, theirs = gradient(found, leaf), gradient(expected, leaf)
    if padding_idx is not None:  # what becomes of its row is nobody's concern
        ours[padding_idx] = theirs[padding_idx] = 0
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("mode", ["rows", "sum", "mean"])
def test_a_second_derivative_goes_through(mode: str) -> None:
    leaf = rows()
    if mode == "rows":
        found = rows_of_ids(leaf, INDEX.flatten())
        expected = functional.embedding(INDEX.flatten(), leaf)
    else:
        found = bags_of_rows(
            leaf,
            INDEX,
            None,
            mode=mode,
            per_sample_weights=None,
            include_last_offset=False,
            padding_idx=None,
        )
        picked = functional.embedding(INDEX, leaf)
        expected = picked.sum(1) if mode == "sum" else picked.mean(1)

    seconds = []
    for values in (found, expected):
        (first,) = torch.autograd.grad(values.pow(3).sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), leaf)
        seconds.append(second)

    torch.testing.assert_close(seconds[0], seconds[1])


def test_other_types_are_torchs_alone() -> None:
    leaf = rows().detach().double().requires_grad_()

    found = rows_of_ids(leaf, INDEX.flatten())

    assert found.dtype == torch.float64
    torch.testing.assert_close(
        gradient(found, leaf), gradient(functional.embedding(INDEX.flatten(), leaf), leaf)
    )
