"""Optimizers."""

from collections.abc import Callable
from typing import Any

import torch
from tests.idioms.record import Cell, Differs, Loop, Refused, idiom
from tests.idioms.run import IdleRows, Net, Run, loss_of, train

GROUP = "Optimizers"
NOT_SERVED = Refused(code="contract.optimizer_not_served")


def _loop(run: Run, make: Callable[[Net], Any], **options: Any) -> Any:
    net = Net(run, **options)
    model = run.model(net)
    optimizer = run.optimizer(make(net))
    return run.end(net, train(model, optimizer, run.batches()))


def _idle(make: Callable[[Any], Any]) -> Loop:
    """Return the loop of torch in which rows without a gradient stay."""

    def idle_rows(run: Run) -> Any:
        net = Net(run)
        net.emb = IdleRows(net.emb.weight)
        optimizer = make(net)
        after = net.emb.drop_idle
        return run.end(net, train(net, optimizer, run.batches(), after_backward=after))

    return idle_rows


def _stay(make: Callable[[Any], Any] | None = None) -> Differs:
    """Return the outcome where torch's optimizer moves rows that have no gradient."""
    how = "rows without a gradient stay"
    equals = None if make is None else _idle(make)
    return Differs(how=how, warning="worker.idle_rows_stay", equals=equals)


@idiom("`torch.optim.SGD`", group=GROUP)
def sgd_plain(run: Run) -> Any:
    return _loop(run, lambda net: torch.optim.SGD(net.parameters(), lr=0.5))


def _momentum(net: Any) -> Any:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


@idiom("`torch.optim.SGD(momentum=0.9)`", group=GROUP, cells={"alone jobs": _stay(_momentum)})
def sgd_momentum(run: Run) -> Any:
    return _loop(run, _momentum)


def _nesterov(net: Any) -> Any:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)


@idiom(
    "`torch.optim.SGD(momentum=0.9, nesterov=True)`",
    group=GROUP,
    cells={"alone jobs": _stay(_nesterov)},
)
def sgd_nesterov(run: Run) -> Any:
    return _loop(run, _nesterov)


def _decay(net: Any) -> Any:
    return torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.01)


@idiom(
    "`torch.optim.SGD(weight_decay=0.01)` of all parameters",
    group=GROUP,
    cells={"alone jobs": _stay(_decay)},
)
def sgd_decay(run: Run) -> Any:
    return _loop(run, _decay)


@idiom("weight decay of dense layers alone, by parameter groups", group=GROUP)
def grouped_decay(run: Run) -> Any:
    def make(net: Net) -> Any:
        dense = {"params": net.mlp.parameters(), "weight_decay": 0.01}
        return torch.optim.SGD([dense, {"params": net.emb.parameters()}], lr=0.1)

    return _loop(run, make)


@idiom("`torch.optim.Adagrad`", group=GROUP)
def adagrad(run: Run) -> Any:
    return _loop(run, lambda net: torch.optim.Adagrad(net.parameters(), lr=0.1))


def _two_adams(run: Run) -> Any:
    """Train in torch alone: rows by SparseAdam, dense layers by Adam."""
    net = Net(run, sparse=True)
    pair = [
        torch.optim.SparseAdam(net.emb.parameters(), lr=0.01),
        torch.optim.Adam(net.mlp.parameters(), lr=0.01),
    ]
    losses = []
    for ids, dense, label in run.batches():
        for each in pair:
            each.zero_grad()
        loss = loss_of(net(ids, dense), label)
        loss.backward()
        for each in pair:
            each.step()
        losses.append(loss.item())
    return run.end(net, losses)


AS_SPARSE_ADAM = Differs(
    how="rows without a gradient stay, as with `SparseAdam`",
    warning="worker.idle_rows_stay",
    equals=_two_adams,
)


@idiom(
    "`torch.optim.Adam` of all parameters", group=GROUP, cells={"alone jobs": AS_SPARSE_ADAM}
)
def adam(run: Run) -> Any:
    return _loop(run, lambda net: torch.optim.Adam(net.parameters(), lr=0.01))


@idiom("`torch.optim.SparseAdam` of rows, `Adam` of dense layers", group=GROUP)
def sparse_adam(run: Run) -> Any:
    if run.is_torch:
        return _two_adams(run)
    net = Net(run, sparse=True)
    model = run.model(net)
    optimizer = run.optimizer(
        [
            torch.optim.SparseAdam(net.emb.parameters(), lr=0.01),
            torch.optim.Adam(net.mlp.parameters(), lr=0.01),
        ]
    )
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "`torch.optim.AdamW` of all parameters, with its default decay",
    group=GROUP,
    cells={"alone jobs": _stay()},
)
def adamw(run: Run) -> Any:
    return _loop(run, lambda net: torch.optim.AdamW(net.parameters(), lr=0.01))


OTHERS: dict[str, Callable[[Any], Any]] = {
    "RMSprop": lambda net: torch.optim.RMSprop(net.parameters(), lr=0.01),
    "Adadelta": lambda net: torch.optim.Adadelta(net.parameters(), lr=0.5),
    "Adamax": lambda net: torch.optim.Adamax(net.parameters(), lr=0.01),
    "NAdam": lambda net: torch.optim.NAdam(net.parameters(), lr=0.01),
    "RAdam": lambda net: torch.optim.RAdam(net.parameters(), lr=0.01),
    "Rprop": lambda net: torch.optim.Rprop(net.parameters(), lr=0.01),
    "ASGD": lambda net: torch.optim.ASGD(net.parameters(), lr=0.1),
}
"""Optimizers without a rule on pservers."""


def _add(name: str) -> None:
    def loop(run: Run) -> Any:
        return _loop(run, OTHERS[name])

    loop.__name__ = name.lower()
    counts_steps = name in {"Adamax", "NAdam", "RAdam"}  # of the table, not of each row
    stays = _stay(None if counts_steps else OTHERS[name])
    cells: dict[str, Cell] = {"alone geo": stays, "sync async gpubox": NOT_SERVED}
    idiom(f"`torch.optim.{name}`", group=GROUP, cells=cells)(loop)


for each in OTHERS:
    _add(each)


@idiom(
    "`torch.optim.LBFGS` with a closure",
    group=GROUP,
    cells={"*": Refused(code="contract.closure_optimizer")},
)
def lbfgs(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    optimizer = run.optimizer(torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3))
    losses = []
    for batch in run.batches():

        def closure(batch: Any = batch) -> Any:
            optimizer.zero_grad()
            loss = loss_of(model(batch.ids, batch.dense), batch.label)
            loss.backward()
            return loss

        losses.append(float(optimizer.step(closure)))
    return run.end(net, losses)


@idiom("`optimizer.step(closure)`", group=GROUP)
def closure_step(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    optimizer = run.optimizer(torch.optim.SGD(net.parameters(), lr=0.5))
    losses = []
    for batch in run.batches():

        def closure(batch: Any = batch) -> Any:
            optimizer.zero_grad()
            loss = loss_of(model(batch.ids, batch.dense), batch.label)
            loss.backward()
            return loss

        losses.append(float(optimizer.step(closure)))
    return run.end(net, losses)


@idiom("`Adam(amsgrad=True)`", group=GROUP, cells={"alone jobs": NOT_SERVED})
def amsgrad(run: Run) -> Any:
    return _loop(run, lambda net: torch.optim.Adam(net.parameters(), lr=0.01, amsgrad=True))


@idiom("`SGD(maximize=True)`", group=GROUP, cells={"sync async gpubox": NOT_SERVED})
def maximize(run: Run) -> Any:
    return _loop(run, lambda net: torch.optim.SGD(net.parameters(), lr=0.01, maximize=True))


@idiom("`foreach=True`, `fused=True`", group=GROUP)
def fused(run: Run) -> Any:
    return _loop(run, lambda net: torch.optim.SGD(net.parameters(), lr=0.5, fused=True))


@idiom("parameter groups with different learning rates", group=GROUP)
def groups(run: Run) -> Any:
    def make(net: Net) -> Any:
        return torch.optim.SGD(
            [
                {"params": net.emb.parameters(), "lr": 0.2},
                {"params": net.mlp[0].parameters()},
                {"params": net.mlp[2].parameters(), "momentum": 0.5},
            ],
            lr=0.1,
        )

    return _loop(run, make)


@idiom("`optimizer.param_groups[0]['lr'] = ...` between steps", group=GROUP)
def rate_by_hand(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    optimizer = run.optimizer(torch.optim.SGD(net.parameters(), lr=0.5))

    def shrink() -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 0.7

    return run.end(net, train(model, optimizer, run.batches(), after_step=shrink))


@idiom(
    "`optimizer.add_param_group(...)` after some steps",
    group=GROUP,
    cells={"jobs": Refused(code="contract.group_added")},
)
def added_group(run: Run) -> Any:
    net = Net(run)
    net.mlp[0].requires_grad_(False)
    model = run.model(net)
    parameters = [*net.emb.parameters(), *net.mlp[2].parameters()]
    optimizer = run.optimizer(torch.optim.SGD(parameters, lr=0.5))
    losses = train(model, optimizer, run.batches(3))
    net.mlp[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(net.mlp[0].parameters()), "lr": 0.1})
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses)


@idiom("several optimizers, each with its own part of the model", group=GROUP)
def several(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    pair = [
        torch.optim.Adagrad(net.emb.parameters(), lr=0.1),
        torch.optim.Adam(net.mlp.parameters(), lr=0.01),
    ]
    optimizers = pair if run.is_torch else [run.optimizer(pair)]
    losses = []
    for ids, dense, label in run.batches():
        for each in optimizers:
            each.zero_grad()
        loss = loss_of(model(ids, dense), label)
        loss.backward()
        for each in optimizers:
            each.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom(
    "`fleet.distributed_optimizer` called twice, for two optimizers",
    group=GROUP,
    cells={
        "jobs": Refused(code="contract.table_not_trained"),
        "collective": Refused(code="contract.call_order"),
    },
)
def two_distributed(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    first = run.optimizer(torch.optim.SGD(net.emb.parameters(), lr=0.5), starts=False)
    second = run.optimizer(torch.optim.SGD(net.mlp.parameters(), lr=0.5), starts=False)
    run.start()
    losses = []
    for ids, dense, label in run.batches():
        first.zero_grad()
        second.zero_grad()
        loss = loss_of(model(ids, dense), label)
        loss.backward()
        first.step()
        second.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom("`model.zero_grad()` in place of `optimizer.zero_grad()`", group=GROUP)
def model_zero_grad(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    optimizer = run.optimizer(torch.optim.SGD(net.parameters(), lr=0.5))
    losses = []
    for ids, dense, label in run.batches():
        model.zero_grad()
        loss = loss_of(model(ids, dense), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom("`optimizer.zero_grad(set_to_none=False)`", group=GROUP)
def zeroed_gradients(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    optimizer = run.optimizer(torch.optim.SGD(net.parameters(), lr=0.5))
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model(ids, dense), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom(
    "no `zero_grad()` at all: gradients add up",
    group=GROUP,
    cells={"gpubox": Refused(code="contract.other_batch")},
)
def no_zero_grad(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    optimizer = run.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    losses = []
    for ids, dense, label in run.batches():
        loss = loss_of(model(ids, dense), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom("alternating optimizers, as a GAN has them", group=GROUP)
def alternating(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    first = torch.optim.SGD(net.emb.parameters(), lr=0.5)
    second = torch.optim.SGD(net.mlp.parameters(), lr=0.5)
    a, b = (first, second) if run.is_torch else (run.optimizer([first, second]),) * 2
    losses = []
    for number, (ids, dense, label) in enumerate(run.batches()):
        net.emb.requires_grad_(number % 2 == 0)
        net.mlp.requires_grad_(number % 2 == 1)
        chosen = b if number % 2 else a
        chosen.zero_grad()
        loss = loss_of(model(ids, dense), label)
        loss.backward()
        chosen.step()
        losses.append(loss.item())
    return run.end(net, losses)
