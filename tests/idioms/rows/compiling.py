"""torch.compile, export, functional calls, and other wrappers of models."""

from typing import Any

import torch
from tests.idioms.record import Refused, idiom
from tests.idioms.run import Net, Run, loss_of, sgd, train
from torch import nn

GROUP = "Compiled, exported and functional models"
ASKED = (torch.arange(6).reshape(2, 3), torch.ones(2, 4))
OTHERS = (torch.arange(12, 18).reshape(2, 3), torch.zeros(2, 4))


@idiom("`torch.compile(model)`", group=GROUP)
def compiled(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    model = torch.compile(model, backend="eager")
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`torch.compile(model)` before `fleet.distributed_model`", group=GROUP)
def compiled_before(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, torch.compile(net, backend="eager"))
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`model.compile()` in place", group=GROUP)
def compiled_in_place(run: Run) -> Any:
    net = Net(run)
    net.compile(backend="eager")
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`torch.compile` of the dense part", group=GROUP)
def compiled_part(run: Run) -> Any:
    net = Net(run)
    net.mlp.compile(backend="eager")
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "`torch.export.export(model, ...)`",
    group=GROUP,
    cells={
        "alone sync async geo": Refused(code="contract.weight"),
        "gpubox": Refused(code="contract.no_pass"),
    },
)
def exported(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    program = torch.export.export(net.eval(), ASKED)
    with torch.no_grad():
        scores = program.module()(*OTHERS)
    return run.end(net, losses, scores=scores)


@idiom(
    "`torch.jit.trace(model, ...)`",
    group=GROUP,
    cells={"alone jobs": Refused(code="contract.untraceable")},
)
def traced(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    program = torch.jit.trace(net.eval(), ASKED, check_trace=False)
    with torch.no_grad():
        scores = program(*OTHERS)
    return run.end(net, losses, scores=scores)


@idiom(
    "`torch.fx.symbolic_trace(model)`",
    group=GROUP,
    cells={"alone jobs": Refused(code="contract.untraceable")},
)
def symbolic_trace(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    program = torch.fx.symbolic_trace(net)
    with torch.no_grad():
        scores = program(*OTHERS)
    return run.end(net, losses, scores=scores)


@idiom(
    "`torch.func.functional_call(model, parameters, ...)`",
    group=GROUP,
    cells={"alone jobs": Refused(code="contract.weight")},
)
def functional_call(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    values = {name: value.detach() / 2 for name, value in net.named_parameters()}
    with torch.no_grad():
        scores = torch.func.functional_call(net, values, ASKED)
    return run.end(net, losses, scores=scores)


@idiom("`torch.func.functional_call` of the dense part", group=GROUP)
def functional_dense(run: Run) -> Any:
    class Functional(Net):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            joined = torch.cat([self.emb(ids).flatten(1), dense], 1)
            values = dict(self.mlp.named_parameters())
            found: torch.Tensor = torch.func.functional_call(self.mlp, values, (joined,))
            return found.squeeze(1)

    net = Functional(run)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "`torch.func.grad` of the loss by the parameters",
    group=GROUP,
    cells={"alone jobs": Refused(code="contract.weight")},
)
def func_grad(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    values = {name: value.detach() for name, value in net.named_parameters()}

    def loss(parameters: Any) -> Any:
        return loss_of(torch.func.functional_call(net, parameters, ASKED), torch.ones(2))

    found = torch.func.grad(loss)(values)
    return run.end(net, losses, norms=[each.norm() for each in found.values()])


@idiom("`torch.vmap` over the dense part", group=GROUP)
def vmapped(run: Run) -> Any:
    class Mapped(Net):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            joined = torch.cat([self.emb(ids).flatten(1), dense], 1)
            return torch.vmap(self.mlp)(joined).squeeze(1)

    net = Mapped(run)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "`torch.vmap` over the embedding",
    group=GROUP,
    cells={"alone jobs": Refused(code="contract.untraceable")},
)
def vmapped_rows(run: Run) -> Any:
    class Mapped(Net):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            rows = torch.vmap(self.emb)(ids)
            found: torch.Tensor = self.mlp(torch.cat([rows.flatten(1), dense], 1)).squeeze(1)
            return found

    net = Mapped(run)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`nn.DataParallel(model)` on CPUs", group=GROUP)
def data_parallel(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, nn.DataParallel(net))
    return run.end(net, train(model, optimizer, run.batches()))
