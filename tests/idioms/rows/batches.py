"""Batches: uneven ones, none, losses by mean and sum, accumulation."""

from typing import Any

import torch
from tests.idioms.record import Differs, Refused, idiom
from tests.idioms.run import Net, Run, loss_of, sgd

GROUP = "Batches and losses"
UNEVEN = (8, 8, 8, 8, 5)
OTHER_BATCH = Refused(code="contract.other_batch")


def _summed(run: Run, *, scale: float = 1.0, **settings: Any) -> Any:
    net = Net(run)
    model = run.model(net)
    optimizer = run.optimizer(torch.optim.SGD(net.parameters(), lr=0.05 * scale), **settings)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        loss = loss_of(model(ids, dense), label, reduction="sum")
        loss.backward()
        optimizer.step()
        losses.append(loss.item() * run.size)
    return run.end(net, losses)


def _half_rate(run: Run) -> Any:
    return _summed(run, scale=0.5)


HALF = Differs(
    how="the gradient is divided by the number of workers",
    warning="worker.loss_reduction",
    equals=_half_rate,
)


@idiom(
    'a loss with `reduction="sum"`, and `strategy.loss_reduction = "sum"`',
    group=GROUP,
)
def summed_loss(run: Run) -> Any:
    is_known = run.mode in {"sync", "gpubox", "collective"}
    settings: dict[str, Any] = {"loss_reduction": "sum"} if is_known else {}
    return _summed(run, **settings)


@idiom(
    'a loss with `reduction="sum"` alone',
    group=GROUP,
    cells={"sync gpubox collective": HALF},
)
def summed_loss_unsaid(run: Run) -> Any:
    return _summed(run)


def _halves(run: Run) -> Any:
    """Train in torch alone on the mean of the losses of two halves."""
    net = Net(run)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    losses = []
    for ids, dense, label in run.batches(sizes=UNEVEN):
        optimizer.zero_grad()
        logits, half = net(ids, dense), -(-len(label) // 2)
        first = loss_of(logits[:half], label[:half])
        second = loss_of(logits[half:], label[half:])
        ((first + second) / 2).backward()
        optimizer.step()
        losses.append(loss_of(logits, label).item())
    return run.end(net, losses)


@idiom(
    "a last batch that is smaller, and odd: one worker has one example more",
    group=GROUP,
    cells={
        "collective": Differs(how="each worker's mean counts alike, as in DDP", equals=_halves)
    },
)
def uneven_last_batch(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses, weights = [], []
    for ids, dense, label in run.batches(sizes=UNEVEN):
        optimizer.zero_grad()
        loss = loss_of(model(ids, dense), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        weights.append(len(label))
    return run.end(net, losses, weights=weights)


@idiom(
    "gradients of several batches accumulated: `backward()` twice, then `step()`",
    group=GROUP,
    cells={"gpubox": Refused(code="contract.other_batch")},
)
def accumulated(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = []
    for number, (ids, dense, label) in enumerate(run.batches()):
        loss = loss_of(model(ids, dense), label) / 2
        loss.backward()
        losses.append(loss.item())
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return run.end(net, losses)


@idiom("two losses summed into one `backward()`", group=GROUP)
def two_losses(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        logits = model(ids, dense)
        loss = loss_of(logits, label) + 0.1 * logits.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom(
    "two `backward()` calls on one graph with `retain_graph=True`",
    group=GROUP,
    cells={"collective": Refused(code="contract.second_backward")},
)
def retained_graph(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        logits = model(ids, dense)
        first, second = loss_of(logits, label), 0.1 * logits.square().mean()
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
        losses.append(first.item() + second.item())
    return run.end(net, losses)


@idiom("two forward passes and two `backward()` calls before a step", group=GROUP)
def two_forwards(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        first = loss_of(model(ids, dense), label) / 2
        first.backward()
        second = loss_of(model(ids, -dense), label) / 2
        second.backward()
        optimizer.step()
        losses.append(first.item() + second.item())
    return run.end(net, losses)


@idiom("`torch.autograd.backward([first, second])`", group=GROUP)
def backward_of_several(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        logits = model(ids, dense)
        first, second = loss_of(logits, label), 0.1 * logits.square().mean()
        torch.autograd.backward([first, second])
        optimizer.step()
        losses.append(first.item() + second.item())
    return run.end(net, losses)
