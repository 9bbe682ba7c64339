"""Regularizers."""

from collections.abc import Callable
from typing import Any

import torch
from tests.idioms.record import Cell, Differs, Loop, Refused, idiom
from tests.idioms.run import Net, Run, loss_of, sgd, train

GROUP = "Regularizers"


def _loop(run: Run, term: Callable[[Net], Any]) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net, lr=0.1)
    return run.end(net, train(model, optimizer, run.batches(), term=lambda: term(net)))


def _of_batch(term: Callable[[torch.Tensor], Any], *, parts: int, dense: float = 0.0) -> Loop:
    """Return the loop of torch whose term covers the rows that each worker looks up.

    Args:
        term: Of rows, each once.
        parts: Workers, each with its part of a batch; their losses have a mean.
        dense: Weight of L2 of the dense layers.
    """

    def loop(run: Run) -> Any:
        net = Net(run)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses = []
        for batch in run.batches():
            optimizer.zero_grad()
            size = len(batch.label) // parts
            loss: Any = 0.0
            for begin in range(0, len(batch.label), size):
                ids, features, label = (each[begin : begin + size] for each in batch)
                rows = net.emb.weight[ids.unique()]
                more = dense * sum(p.square().sum() for p in net.mlp.parameters())
                loss = loss + loss_of(net(ids, features), label) + term(rows) + more
            (loss / parts).backward()
            optimizer.step()
            losses.append(loss.item() / parts)
        return run.end(net, losses)

    loop.__name__ = f"rows_of_{parts}_parts"
    return loop


def _lazy(term: Callable[[torch.Tensor], Any], *, dense: float = 0.0) -> dict[str, Cell]:
    """Return the outcome of a term over the whole weight: it covers the step's rows."""
    return {
        modes: Differs(
            how="the term covers the rows of the step",
            warning="worker.lazy_regularizer",
            equals=_of_batch(term, parts=parts, dense=dense),
        )
        for modes, parts in (("alone async geo", 1), ("sync gpubox", 2))
    }


@idiom("L2 of dense layers in the loss", group=GROUP)
def l2_dense(run: Run) -> Any:
    return _loop(run, lambda net: 0.1 * sum(p.square().sum() for p in net.mlp.parameters()))


@idiom("L1 of dense layers in the loss", group=GROUP)
def l1_dense(run: Run) -> Any:
    return _loop(run, lambda net: 0.01 * sum(p.abs().sum() for p in net.mlp.parameters()))


@idiom(
    "L2 of `emb.weight` in the loss",
    group=GROUP,
    cells=_lazy(lambda rows: 0.1 * rows.square().sum()),
)
def l2_rows(run: Run) -> Any:
    return _loop(run, lambda net: 0.1 * net.emb.weight.square().sum())


@idiom(
    "`torch.norm(emb.weight, 2)` in the loss",
    group=GROUP,
    cells={"gpubox": Refused(code="contract.id_outside_pass")},
)
def norm_rows(run: Run) -> Any:
    return _loop(run, lambda net: 0.1 * torch.norm(net.emb.weight, 2))


@idiom(
    "L1 of `emb.weight` in the loss",
    group=GROUP,
    cells=_lazy(lambda rows: 0.01 * rows.abs().sum()),
)
def l1_rows(run: Run) -> Any:
    return _loop(run, lambda net: 0.01 * net.emb.weight.abs().sum())


@idiom(
    "L2 of all `model.parameters()` in the loss",
    group=GROUP,
    cells=_lazy(lambda rows: 0.1 * rows.square().sum(), dense=0.1),
)
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
