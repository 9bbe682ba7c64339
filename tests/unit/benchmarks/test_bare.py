"""That the bare loops of torch take each gradient with as much delay as they say."""

import numpy as np
import pytest
import torch

from bare import BareLoop
from quality_models import DeepFM, SkipGram

NUM_IDS = 20


def make_loop(*, delay: int, optimizer: str = "sgd") -> BareLoop:
    model = SkipGram(2, seed=3)
    return BareLoop(model, optimizer, rate=0.5, num_ids=NUM_IDS, delay=delay)


def pairs_of(step: int) -> torch.Tensor:
    dice = np.random.default_rng(step)
    return torch.from_numpy(dice.integers(0, NUM_IDS, (6, 2)))


def rows_of(loop: BareLoop) -> torch.Tensor:
    """Return each row's product with row 0, which changes wherever a row does."""
    with torch.no_grad():
        ids = torch.stack([torch.zeros(NUM_IDS).long(), torch.arange(NUM_IDS)], 1)
        return loop.logits(ids)


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_a_gradient_lacks_as_many_updates_as_its_delay(delay: int) -> None:
    loop = make_loop(delay=delay)
    model = SkipGram(2, seed=3).eval()
    rows = model.rows(torch.arange(NUM_IDS)).detach().clone()
    kept = [rows.clone()]

    for step in range(8):
        loop.step(loop.logits(pairs_of(step)).sigmoid().sum())
        own = kept[max(0, step - delay)].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(
            model.logits(own[pairs_of(step)]).sigmoid().sum(), own
        )
        kept.append(kept[-1] - 0.5 * gradient)
    loop.finish()

    torch.testing.assert_close(rows_of(loop), kept[-1] @ kept[-1][0])


def test_rows_that_a_batch_lacks_stay_with_adam_too() -> None:
    loop = make_loop(delay=0, optimizer="adam")
    before = rows_of(loop)

    for _ in range(3):
        loop.step(loop.logits(torch.tensor([[4, 5], [4, 6]])).sum())

    changed = (rows_of(loop) != before).nonzero().flatten().tolist()
    assert changed == [4, 5, 6]


def test_dense_layers_are_trained_too() -> None:
    model = DeepFM(2, seed=3)
    layers = list(model.deep.parameters())
    first = layers[0].detach().clone()
    loop = BareLoop(model, "adagrad", rate=0.1, num_ids=NUM_IDS, delay=1)

    loop.step(loop.logits(pairs_of(0)).sigmoid().sum())
    assert torch.equal(layers[0], first)
    loop.step(loop.logits(pairs_of(1)).sigmoid().sum())

    assert not torch.equal(layers[0], first)
