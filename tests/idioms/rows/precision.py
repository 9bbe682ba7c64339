"""Precision, dtypes, devices, and modules that are built late."""

from typing import Any

import torch
from tests.idioms.record import Differs, Refused, idiom
from tests.idioms.run import DENSE, FIELDS, IDS, Batch, Net, Run, loss_of, sgd, train
from torch import nn

GROUP = "Precision and devices"
BUILT = "When models are built"
ASKED = (torch.arange(6).reshape(2, 3), torch.ones(2, 4))


@idiom('`torch.autocast("cpu", dtype=torch.bfloat16)`', group=GROUP, bound=2e-2)
def autocast(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids, dense)
        loss = loss_of(logits.float(), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom("`torch.amp.GradScaler`: `scale`, `step`, `update`", group=GROUP)
def grad_scaler(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        loss = loss_of(model(ids, dense), label)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom(
    "`GradScaler.unscale_` and clipping before the step",
    group=GROUP,
    cells={
        "gpubox": Differs(
            how="each worker clips its own gradient", warning="worker.clips_own_gradient"
        )
    },
)
def grad_scaler_clipped(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        loss = loss_of(model(ids, dense), label)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return run.end(net, losses)


def _of_dtype(run: Run, dtype: torch.dtype) -> Any:
    net = Net(run).to(dtype)
    model, optimizer = sgd(run, net)

    def forward(batch: Batch) -> Any:
        return model(batch.ids, batch.dense.to(dtype))

    losses = []
    for batch in run.batches(forward=forward):
        optimizer.zero_grad()
        loss = loss_of(forward(batch).float(), batch.label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom("`model.double()`", group=GROUP)
def double(run: Run) -> Any:
    return _of_dtype(run, torch.float64)


@idiom("`model.bfloat16()`", group=GROUP, bound=2e-2)
def bfloat16(run: Run) -> Any:
    return _of_dtype(run, torch.bfloat16)


@idiom("`model.half()`", group=GROUP, bound=5e-3)
def half(run: Run) -> Any:
    return _of_dtype(run, torch.float16)


@idiom("the dense part in double, rows in float", group=GROUP)
def double_dense(run: Run) -> Any:
    class Mixed(Net):
        def __init__(self) -> None:
            super().__init__(run)
            self.mlp.double()

        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            joined = torch.cat([self.emb(ids).flatten(1), dense], 1).double()
            found: torch.Tensor = self.mlp(joined).squeeze(1).float()
            return found

    net = Mixed()
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom('`model.to("cpu")`, `model.to(device)`', group=GROUP)
def to_device(run: Run) -> Any:
    net = Net(run).to("cpu")
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    '`model.to("meta")`',
    group=GROUP,
    cells={"alone jobs": Refused(code="contract.untraceable")},
)
def to_meta(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    found = net.to("meta")(
        torch.zeros(2, 3, dtype=torch.int64, device="meta"), torch.ones(2, 4, device="meta")
    )
    return run.end(None, losses, shape=list(found.shape))


@idiom('`with torch.device("meta"): Model()`, then `to_empty`', group=GROUP)
def built_on_meta(run: Run) -> Any:
    with torch.device("meta"):
        out = nn.Linear(4, 2)
        emb = _meta(run)
    out = out.to_empty(device="cpu")
    emb = emb.to_empty(device="cpu")
    return run.end(None, shape=[emb.weight.size(0), out.weight.size(0)])


def _meta(run: Run) -> Any:
    return run.nn.Embedding.of(IDS, 4)


@idiom("quantization-aware training: `FakeQuantize` of a dense layer", group=GROUP, bound=2e-2)
def quantized_training(run: Run) -> Any:
    class Quantized(Net):
        def __init__(self) -> None:
            super().__init__(run)
            self.fake = torch.ao.quantization.FakeQuantize()

        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            joined = torch.cat([self.emb(ids).flatten(1), dense], 1)
            found: torch.Tensor = self.mlp(self.fake(joined)).squeeze(1)
            return found

    net = Quantized()
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    return run.end(None, losses, rows=run.rows(net.emb))


@idiom("`quantize_dynamic(model, {nn.Linear})` after training", group=GROUP)
def quantized_dynamic(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    quantized = torch.ao.quantization.quantize_dynamic(net.mlp, {nn.Linear})
    with torch.no_grad():
        joined = torch.cat([net.emb(ASKED[0]).flatten(1), ASKED[1]], 1)
        scores = quantized(joined)
    return run.end(net, losses, scores=scores)


@idiom("`nn.LazyLinear`", group=BUILT)
def lazy_linear(run: Run) -> Any:
    class Lazy(Net):
        def __init__(self) -> None:
            super().__init__(run)
            self.mlp[0] = nn.LazyLinear(8)

    net = Lazy()
    net(torch.zeros(1, FIELDS, dtype=torch.int64), torch.zeros(1, DENSE))
    with torch.no_grad():
        net.mlp[0].weight.fill_(0.1)
        net.mlp[0].bias.fill_(0.0)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "`nn.LazyLinear` that no batch has seen before the optimizer is made",
    group=BUILT,
    cells={"*": Refused(code="contract.uninitialized_parameter")},
)
def lazy_unseen(run: Run) -> Any:
    class Lazy(Net):
        def __init__(self) -> None:
            super().__init__(run)
            self.mlp[0] = nn.LazyLinear(8)

    net = Lazy()
    model, optimizer = sgd(run, net)
    torch.manual_seed(3)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("a module that `forward` adds later", group=BUILT)
def added_module(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    net.mlp.append(nn.Linear(1, 1))
    with torch.no_grad():
        net.mlp[3].weight.fill_(1.0)
        net.mlp[3].bias.fill_(0.1)
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses)


@idiom("a forward pass, and scores, before `fleet.distributed_model`", group=BUILT)
def forward_before(run: Run) -> Any:
    net = Net(run)
    with torch.no_grad():
        scores = net(*ASKED)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()), scores=scores)


@idiom("the optimizer made before `fleet.distributed_model`", group=BUILT)
def optimizer_before(run: Run) -> Any:
    net = Net(run)
    inner = torch.optim.SGD(net.parameters(), lr=0.5)
    model = run.model(net)
    optimizer = run.optimizer(inner)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("two models in one job", group=BUILT)
def two_models(run: Run) -> Any:
    first, second = Net(run), Net(run)
    both = nn.ModuleList([first, second])
    both.forward = lambda ids, dense: first(ids, dense) + second(ids, dense)
    model, optimizer = sgd(run, both)
    return run.end(both, train(model, optimizer, run.batches()))


@idiom(
    "`fleet.distributed_model` called for each of two models",
    group=BUILT,
    cells={
        "gpubox": Refused(code="contract.id_outside_pass"),
        "collective": Refused(code="contract.call_order"),
    },
)
def two_distributed_models(run: Run) -> Any:
    first, second = Net(run), Net(run)
    run.model(first)
    run.model(second)
    optimizer = run.optimizer(
        torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.5)
    )
    losses = []
    for ids, dense, label in run.batches(
        forward=lambda batch: first(batch.ids, batch.dense) + second(batch.ids, batch.dense)
    ):
        optimizer.zero_grad()
        loss = loss_of(first(ids, dense) + second(ids, dense), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(None, losses, first=run.rows(first.emb), second=run.rows(second.emb))


@idiom(
    "training without `fleet.distributed_model`",
    group=BUILT,
    cells={
        "gpubox": Refused(code="contract.no_pass"),
        "collective": Refused(code="contract.call_order"),
    },
)
def without_model(run: Run) -> Any:
    net = Net(run)
    optimizer = run.optimizer(torch.optim.SGD(net.parameters(), lr=0.5))
    return run.end(net, train(net, optimizer, (run.part(each) for each in run.whole())))


@idiom(
    "torch's own optimizer, without `fleet.distributed_optimizer`",
    group=BUILT,
    cells={"alone jobs": Refused(code="contract.weight")},
)
def without_optimizer(run: Run) -> Any:
    net = Net(run)
    model = run.model(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    run.optimizer(torch.optim.SGD(net.parameters(), lr=0.5))
    return run.end(net, train(model, optimizer, run.batches()))
