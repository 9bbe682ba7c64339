"""Copies: deepcopy, pickle, averages."""

import copy
import io
import pickle  # noqa: TID251 - what people write
from typing import Any

import torch
from tests.idioms.record import Differs, Refused, idiom
from tests.idioms.run import Net, Run, loss_of, sgd, train
from torch.optim import swa_utils

GROUP = "Copies and averages"
NO_PICKLE = {"alone jobs": Refused(code="contract.weight")}
BEFORE = {"gpubox": Differs(how="in a pass, rows of other batches read as before the pass")}
ASKED = (torch.arange(6).reshape(2, 3), torch.ones(2, 4))


def _scores(net: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = net(*ASKED)
    return found


@idiom("`best = copy.deepcopy(model)`, used for scores later", group=GROUP)
def deep_copy(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    best = copy.deepcopy(net)
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses, scores=_scores(best))


@idiom("`copy.deepcopy(model)` before training: a frozen target network", group=GROUP)
def target_network(run: Run) -> Any:
    net = Net(run)
    target = copy.deepcopy(net).requires_grad_(False)
    model, optimizer = sgd(run, net)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        with torch.no_grad():
            aim = target(ids, dense).sigmoid()
        loss = loss_of(model(ids, dense), 0.5 * label + 0.5 * aim)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom("`copy.deepcopy(model.state_dict())` of the best epoch, loaded at the end", group=GROUP)
def deep_copied_state(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    best = copy.deepcopy(net.state_dict())
    losses += train(model, optimizer, run.batches(3, seed=2))
    net.load_state_dict(best)
    return run.end(net, losses)


@idiom("`copy.deepcopy` of a dense part", group=GROUP)
def deep_copied_part(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    kept = copy.deepcopy(net.mlp)
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses, kept=[each.sum() for each in kept.parameters()])


@idiom("training a `copy.deepcopy(model)`", group=GROUP)
def trained_copy(run: Run) -> Any:
    net = copy.deepcopy(Net(run))
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "`pickle.dumps(model)`",
    group=GROUP,
    cells=NO_PICKLE,
)
def pickled(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    again = pickle.loads(pickle.dumps(net))
    return run.end(net, losses, scores=_scores(again))


@idiom(
    "`torch.save(model)`",
    group=GROUP,
    cells=NO_PICKLE,
)
def saved_model(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)  # noqa: TID251 - its own bytes
    return run.end(net, losses, scores=_scores(again))


@idiom(
    "`swa_utils.AveragedModel(model)`: SWA",
    group=GROUP,
    cells=BEFORE,
)
def averaged_model(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    average = swa_utils.AveragedModel(net)
    losses = train(
        model, optimizer, run.batches(), after_step=lambda: average.update_parameters(net)
    )
    return run.end(net, losses, scores=_scores(average))


@idiom(
    "`AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))`: EMA",
    group=GROUP,
    cells=BEFORE,
)
def averaged_ema(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    average = swa_utils.AveragedModel(net, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    losses = train(
        model, optimizer, run.batches(), after_step=lambda: average.update_parameters(net)
    )
    return run.end(net, losses, scores=_scores(average))


@idiom(
    "EMA by hand: `shadow[name].mul_(0.9).add_(p.data, alpha=0.1)` of all",
    group=GROUP,
    cells=BEFORE,
)
def ema_by_hand(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    shadow = {name: each.data.clone() for name, each in net.named_parameters()}

    def update() -> None:
        for name, each in net.named_parameters():
            shadow[name].mul_(0.9).add_(each.data, alpha=0.1)

    losses = train(model, optimizer, run.batches(), after_step=update)
    return run.end(net, losses, shadow=[each.sum() for each in shadow.values()])


@idiom("EMA by hand of dense parameters", group=GROUP)
def ema_dense(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    shadow = {name: each.data.clone() for name, each in net.mlp.named_parameters()}

    def update() -> None:
        for name, each in net.mlp.named_parameters():
            shadow[name].mul_(0.9).add_(each.data, alpha=0.1)

    losses = train(model, optimizer, run.batches(), after_step=update)
    return run.end(net, losses, shadow=[each.sum() for each in shadow.values()])
