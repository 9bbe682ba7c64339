"""Regularizers."""

from collections.abc import Callable
from typing import Any

import torch
from tests.idioms.record import idiom
from tests.idioms.run import Net, Run, sgd, train

GROUP = "Regularizers"


def _loop(run: Run, term: Callable[[Net], Any]) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net, lr=0.1)
    return run.end(net, train(model, optimizer, run.batches(), term=lambda: term(net)))


@idiom("L2 of dense layers in the loss", group=GROUP)
def l2_dense(run: Run) -> Any:
    return _loop(run, lambda net: 0.1 * sum(p.square().sum() for p in net.mlp.parameters()))


@idiom("L1 of dense layers in the loss", group=GROUP)
def l1_dense(run: Run) -> Any:
    return _loop(run, lambda net: 0.01 * sum(p.abs().sum() for p in net.mlp.parameters()))


@idiom("L2 of `emb.weight` in the loss", group=GROUP)
def l2_rows(run: Run) -> Any:
    return _loop(run, lambda net: 0.1 * net.emb.weight.square().sum())


@idiom("`torch.norm(emb.weight, 2)` in the loss", group=GROUP)
def norm_rows(run: Run) -> Any:
    return _loop(run, lambda net: 0.1 * torch.norm(net.emb.weight, 2))


@idiom("L1 of `emb.weight` in the loss", group=GROUP)
def l1_rows(run: Run) -> Any:
    return _loop(run, lambda net: 0.01 * net.emb.weight.abs().sum())


@idiom("L2 of all `model.parameters()` in the loss", group=GROUP)
def l2_all(run: Run) -> Any:
    return _loop(run, lambda net: 0.1 * sum(p.square().sum() for p in net.parameters()))


@idiom("L2 of the rows of the batch: `emb(ids).square().mean()`", group=GROUP)
def l2_batch(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net, lr=0.1)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        logits = model(ids, dense)
        loss = (logits - label).square().mean() + 0.1 * net.emb(ids).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom("L2 only of every second step", group=GROUP)
def l2_sometimes(run: Run) -> Any:
    steps = iter(range(100))
    return _loop(
        run,
        lambda net: 0.1 * net.mlp[0].weight.square().sum() if next(steps) % 2 else 0.0,
    )
