"""Schedulers of torch.optim.lr_scheduler."""

from collections.abc import Callable
from typing import Any

import torch
from tests.idioms.record import Differs, idiom
from tests.idioms.run import Net, Run, loss_of, train
from torch.optim import lr_scheduler as schedulers

GROUP = "Schedulers"
STAY = Differs(how="rows without a gradient stay", warning="worker.idle_rows_stay")

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda optimizer: schedulers.StepLR(optimizer, 2, 0.5),
    "MultiStepLR": lambda optimizer: schedulers.MultiStepLR(optimizer, [1, 3], 0.5),
    "ConstantLR": lambda optimizer: schedulers.ConstantLR(optimizer, 0.5, 3),
    "LinearLR": lambda optimizer: schedulers.LinearLR(optimizer, 0.1, 1.0, 4),
    "ExponentialLR": lambda optimizer: schedulers.ExponentialLR(optimizer, 0.8),
    "PolynomialLR": lambda optimizer: schedulers.PolynomialLR(optimizer, 6),
    "LambdaLR": lambda optimizer: schedulers.LambdaLR(optimizer, lambda n: 1 / (n + 1)),
    "MultiplicativeLR": lambda optimizer: schedulers.MultiplicativeLR(optimizer, lambda n: 0.9),
    "CosineAnnealingLR": lambda optimizer: schedulers.CosineAnnealingLR(optimizer, 6),
    "CosineAnnealingWarmRestarts": lambda optimizer: schedulers.CosineAnnealingWarmRestarts(
        optimizer, 3
    ),
    "CyclicLR": lambda optimizer: schedulers.CyclicLR(
        optimizer, 0.01, 0.2, step_size_up=2, cycle_momentum=False
    ),
    "SequentialLR": lambda optimizer: schedulers.SequentialLR(
        optimizer,
        [schedulers.ConstantLR(optimizer, 0.1, 2), schedulers.ExponentialLR(optimizer, 0.9)],
        milestones=[2],
    ),
    "ChainedScheduler": lambda optimizer: schedulers.ChainedScheduler(
        [
            schedulers.ConstantLR(optimizer, 0.1, 2),
            schedulers.ExponentialLR(optimizer, 0.9),
        ]
    ),
    "ReduceLROnPlateau": lambda optimizer: schedulers.ReduceLROnPlateau(optimizer, patience=0),
}


def _train(run: Run, optimizer: Any, net: Net, model: Any, make: Callable[[Any], Any]) -> Any:
    scheduler = make(optimizer)
    rates: list[float] = []

    def step() -> None:
        if isinstance(scheduler, schedulers.ReduceLROnPlateau):
            scheduler.step(1.0)
        else:
            scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])

    losses = train(model, optimizer, run.batches(), after_step=step)
    return run.end(net, losses, rates=rates)


def _add(name: str) -> None:
    def loop(run: Run) -> Any:
        net = Net(run)
        model = run.model(net)
        optimizer = run.optimizer(torch.optim.SGD(net.parameters(), lr=0.5))
        return _train(run, optimizer, net, model, SCHEDULERS[name])

    loop.__name__ = name.lower()
    idiom(f"`{name}`", group=GROUP)(loop)


for each in SCHEDULERS:
    _add(each)


def _grouped(net: Net, make: Callable[[Any], Any], **options: Any) -> Any:
    """Rows by plain SGD or Adagrad, which leave rows without a gradient as they are."""
    return [torch.optim.SGD(net.emb.parameters(), lr=0.5), make(net.mlp.parameters())]


@idiom(
    "`OneCycleLR` with momentum, which it changes",
    group=GROUP,
    cells={"alone jobs": STAY},
)
def one_cycle_momentum(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    optimizer = run.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    return _train(
        run, optimizer, net, model, lambda o: schedulers.OneCycleLR(o, 0.2, total_steps=8)
    )


@idiom(
    "`OneCycleLR` with Adam, whose betas it changes",
    group=GROUP,
    cells={"alone jobs": STAY},
)
def one_cycle_adam(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    optimizer = run.optimizer(torch.optim.Adam(net.parameters(), lr=0.01))
    return _train(
        run, optimizer, net, model, lambda o: schedulers.OneCycleLR(o, 0.02, total_steps=8)
    )


@idiom(
    "`CyclicLR` with momentum, which it changes",
    group=GROUP,
    cells={"alone jobs": STAY},
)
def cyclic_momentum(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    optimizer = run.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    return _train(
        run, optimizer, net, model, lambda o: schedulers.CyclicLR(o, 0.01, 0.2, step_size_up=2)
    )


@idiom("momentum of dense layers changed by hand between steps", group=GROUP)
def momentum_by_hand(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    dense = {"params": list(net.mlp.parameters()), "momentum": 0.9}
    optimizer = run.optimizer(
        torch.optim.SGD([{"params": net.emb.parameters()}, dense], lr=0.1)
    )

    def change() -> None:
        optimizer.param_groups[1]["momentum"] *= 0.8

    losses = train(model, optimizer, run.batches(), after_step=change)
    return run.end(net, losses)


@idiom("weight decay of dense layers changed by hand between steps", group=GROUP)
def decay_by_hand(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    dense = {"params": list(net.mlp.parameters()), "weight_decay": 0.1}
    optimizer = run.optimizer(
        torch.optim.SGD([{"params": net.emb.parameters()}, dense], lr=0.1)
    )

    def change() -> None:
        optimizer.param_groups[1]["weight_decay"] *= 0.5

    losses = train(model, optimizer, run.batches(), after_step=change)
    return run.end(net, losses)


@idiom("`betas` of dense layers' Adam changed by hand between steps", group=GROUP)
def betas_by_hand(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    pair = [
        torch.optim.SGD(net.emb.parameters(), lr=0.1),
        torch.optim.Adam(net.mlp.parameters(), lr=0.01),
    ]
    chosen = pair if run.is_torch else [run.optimizer(pair)]
    groups = [group for each in chosen for group in each.param_groups]
    losses = []
    for number, batch in enumerate(run.batches()):
        groups[1]["betas"] = (0.9 - 0.05 * number, 0.99)
        for each in chosen:
            each.zero_grad()
        loss = loss_of(model(batch.ids, batch.dense), batch.label)
        loss.backward()
        for each in chosen:
            each.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom(
    "a scheduler made before `fleet.distributed_optimizer`, of torch's optimizer", group=GROUP
)
def scheduler_of_inner(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    inner = torch.optim.SGD(net.parameters(), lr=0.5)
    scheduler = schedulers.ExponentialLR(inner, 0.7)
    optimizer = run.optimizer(inner)
    losses = train(model, optimizer, run.batches(), after_step=scheduler.step)
    return run.end(net, losses)


@idiom("`scheduler.state_dict()` and `load_state_dict()`", group=GROUP)
def scheduler_state(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    optimizer = run.optimizer(torch.optim.SGD(net.parameters(), lr=0.5))
    scheduler = schedulers.StepLR(optimizer, 2, 0.5)
    losses = train(model, optimizer, run.batches(3), after_step=scheduler.step)
    again = schedulers.StepLR(optimizer, 2, 0.5)
    again.load_state_dict(scheduler.state_dict())
    optimizer.param_groups[0]["lr"] = again.get_last_lr()[0]
    losses += train(model, optimizer, run.batches(3, seed=2), after_step=again.step)
    return run.end(net, losses)
