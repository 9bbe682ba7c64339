"""Modes of modules: train, eval, frozen, thawed."""

from typing import Any

import torch
from tests.idioms.record import Refused, idiom
from tests.idioms.run import Net, Run, loss_of, sgd, train

GROUP = "Modes of modules"
UNUSED = Refused(code="contract.unused_parameters")


@idiom("`zero_grad()`, `loss.backward()`, `step()`: a plain loop", group=GROUP)
def plain_loop(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        loss = loss_of(model(ids, dense), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom("`model.eval()` for an evaluation, `model.train()` only once, before it", group=GROUP)
def eval_without_train(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    model.train()
    losses = train(model, optimizer, run.batches(3))
    model.eval()
    with torch.no_grad():
        scores = model(torch.arange(6).reshape(2, 3), torch.ones(2, 4))
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses, scores=scores)


@idiom("`model.eval()` and `model.train()` around each evaluation", group=GROUP)
def eval_and_train(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses, scores = [], []
    for epoch in range(3):
        model.train()
        losses += train(model, optimizer, run.batches(2, seed=epoch))
        model.eval()
        with torch.no_grad():
            scores.append(model(torch.arange(6).reshape(2, 3), torch.ones(2, 4)))
    return run.end(net, losses, scores=scores)


@idiom("training in `eval()` from the beginning", group=GROUP)
def trained_in_eval(run: Run) -> Any:
    net = Net(run).eval()
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`net.emb.eval()` alone: one module in eval, the others in train", group=GROUP)
def mixed_modes(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    net.emb.eval()
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("an evaluation by `torch.inference_mode()` without `eval()`", group=GROUP)
def inference_mode(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    with torch.inference_mode():
        scores = model(torch.arange(6).reshape(2, 3), torch.ones(2, 4)).clone()
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses, scores=scores)


@idiom("`torch.set_grad_enabled(training)` around the forward pass", group=GROUP)
def set_grad_enabled(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = []
    for number, (ids, dense, label) in enumerate(run.batches()):
        training = number % 3 != 2
        with torch.set_grad_enabled(training):
            loss = loss_of(model(ids, dense), label)
        if training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom("`net.emb.weight.requires_grad_(False)`: frozen rows", group=GROUP)
def frozen_rows(run: Run) -> Any:
    net = Net(run)
    net.emb.weight.requires_grad_(False)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("frozen rows, thawed after some steps", group=GROUP)
def thawed_rows(run: Run) -> Any:
    net = Net(run)
    net.emb.weight.requires_grad_(False)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    net.emb.weight.requires_grad_(True)
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses)


@idiom("rows frozen after some steps", group=GROUP)
def rows_frozen_later(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    net.emb.requires_grad_(False)
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses)


@idiom("a dense layer with `requires_grad_(False)`", group=GROUP)
def frozen_layer(run: Run) -> Any:
    net = Net(run)
    net.mlp[0].requires_grad_(False)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("a frozen dense layer, thawed after some steps", group=GROUP)
def thawed_layer(run: Run) -> Any:
    net = Net(run)
    net.mlp[0].requires_grad_(False)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    net.mlp[0].requires_grad_(True)
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses)


@idiom("frozen parameters left out of the optimizer by `filter(requires_grad)`", group=GROUP)
def filtered_parameters(run: Run) -> Any:
    net = Net(run)
    net.mlp[0].requires_grad_(False)
    model = run.model(net)
    kept = filter(lambda each: each.requires_grad, net.parameters())
    optimizer = run.optimizer(torch.optim.SGD(kept, lr=0.5))
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "a layer that only every second step uses",
    group=GROUP,
    cells={"collective": UNUSED},
)
def alternating_layer(run: Run) -> Any:
    class Two(Net):
        def __init__(self) -> None:
            super().__init__(run)
            self.extra = torch.nn.Linear(4, 1)
            self.count = 0

        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            found = super().forward(ids, dense)
            self.count += torch.is_grad_enabled()  # not a look at the lookups
            return found + self.extra(dense).squeeze(1) if self.count % 2 else found

    net = Two()
    model = run.model(net)
    dense = [*net.mlp.parameters(), *net.extra.parameters()]
    groups = [{"params": net.emb.parameters()}, {"params": dense, "momentum": 0.9}]
    optimizer = run.optimizer(torch.optim.SGD(groups, lr=0.1))
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "detached rows: `net.emb(ids).detach()`",
    group=GROUP,
    cells={"collective": UNUSED},
)
def detached_rows(run: Run) -> Any:
    class Detached(Net):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            joined = torch.cat([self.emb(ids).detach().flatten(1), dense], dim=1)
            found: torch.Tensor = self.mlp(joined).squeeze(1)
            return found

    net = Detached(run)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("a part of the forward pass under `torch.no_grad()`", group=GROUP)
def part_without_grad(run: Run) -> Any:
    class Half(Net):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                first = self.emb(ids[:, :1])
            joined = torch.cat([first, self.emb(ids[:, 1:])], dim=1).flatten(1)
            found: torch.Tensor = self.mlp(torch.cat([joined, dense], dim=1)).squeeze(1)
            return found

    net = Half(run)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))
