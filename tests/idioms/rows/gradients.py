"""Gradients: clipping, hooks, checkpointing, second derivatives."""

from collections.abc import Callable
from typing import Any

import torch
from tests.idioms.record import Differs, Refused, idiom
from tests.idioms.run import Net, Run, loss_of, sgd, train
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.checkpoint import checkpoint

CLIPPING = "Clipping"
OWN_PART = Differs(how="the gradient of this worker's part of the batch")
GROUP = "Gradients and hooks"


OWN_NORM = Differs(how="each worker's own norm", warning="worker.clips_own_gradient")
OWN_VALUES = Differs(
    how="each worker's own gradient, before they are merged",
    warning="worker.clips_own_gradient",
)


def _clipped(run: Run, clip: Callable[[Net], Any]) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    norms = []

    def after() -> None:
        norms.append(clip(net))

    losses = train(model, optimizer, run.batches(), after_backward=after)
    return run.end(net, losses, norms=[0.0 if each is None else each for each in norms])


@idiom("`clip_grad_norm_(model.parameters(), 0.1)`", group=CLIPPING, cells={"gpubox": OWN_NORM})
def clip_norm(run: Run) -> Any:
    return _clipped(run, lambda net: clip_grad_norm_(net.parameters(), 0.1))


@idiom("`clip_grad_norm_` of dense layers alone", group=CLIPPING, cells={"gpubox": OWN_NORM})
def clip_norm_dense(run: Run) -> Any:
    return _clipped(run, lambda net: clip_grad_norm_(net.mlp.parameters(), 0.1))


@idiom("`clip_grad_norm_` of rows alone", group=CLIPPING, cells={"gpubox": OWN_NORM})
def clip_norm_rows(run: Run) -> Any:
    return _clipped(run, lambda net: clip_grad_norm_(net.emb.parameters(), 0.01))


@idiom("`clip_grad_norm_` of each group by itself", group=CLIPPING, cells={"gpubox": OWN_NORM})
def clip_norm_groups(run: Run) -> Any:
    def clip(net: Net) -> Any:
        clip_grad_norm_(net.emb.parameters(), 0.01)
        return clip_grad_norm_(net.mlp.parameters(), 0.1)

    return _clipped(run, clip)


@idiom('`clip_grad_norm_(..., norm_type="inf")`', group=CLIPPING, cells={"gpubox": OWN_NORM})
def clip_norm_inf(run: Run) -> Any:
    return _clipped(run, lambda net: clip_grad_norm_(net.parameters(), 0.01, float("inf")))


@idiom(
    "`clip_grad_value_(model.parameters(), 0.01)`",
    group=CLIPPING,
    cells={"sync gpubox": OWN_VALUES},
)
def clip_value(run: Run) -> Any:
    return _clipped(run, lambda net: clip_grad_value_(net.parameters(), 0.01))


@idiom(
    "`clip_grad_value_` of dense layers alone",
    group=CLIPPING,
    cells={"sync gpubox": OWN_VALUES},
)
def clip_value_dense(run: Run) -> Any:
    return _clipped(run, lambda net: clip_grad_value_(net.mlp.parameters(), 0.01))


@idiom(
    "the norm of the gradients by hand: `p.grad.norm()`",
    group=CLIPPING,
    cells={"sync gpubox": OWN_PART},
)
def norm_by_hand(run: Run) -> Any:
    return _clipped(
        run,
        lambda net: torch.stack([p.grad.norm() for p in net.mlp.parameters()]).norm(),
    )


@idiom("`p.grad.mul_(0.5)` of dense parameters before the step", group=GROUP)
def scaled_gradients(run: Run) -> Any:
    def scale(net: Net) -> None:
        for each in net.mlp.parameters():
            assert each.grad is not None
            each.grad.mul_(0.5)

    return _clipped(run, scale)


@idiom("`emb.weight.grad.mul_(0.5)` before the step", group=GROUP)
def scaled_row_gradients(run: Run) -> Any:
    def scale(net: Net) -> None:
        if net.emb.weight.grad is not None:
            net.emb.weight.grad.mul_(0.5)

    return _clipped(run, scale)


@idiom("`p.register_hook(lambda grad: grad * 0.5)` on a dense parameter", group=GROUP)
def parameter_hook(run: Run) -> Any:
    net = Net(run)
    net.mlp[0].weight.register_hook(lambda grad: grad * 0.5)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "`emb.weight.register_hook(lambda grad: grad * 0.5)`",
    group=GROUP,
    cells={"alone jobs": Refused(code="contract.weight")},
)
def weight_hook(run: Run) -> Any:
    net = Net(run)
    net.emb.weight.register_hook(lambda grad: grad * 0.5)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`register_post_accumulate_grad_hook` on a dense parameter", group=GROUP)
def post_accumulate_hook(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    seen: list[float] = []
    net.mlp[2].bias.register_post_accumulate_grad_hook(lambda each: seen.append(1.0))
    losses = train(model, optimizer, run.batches())
    return run.end(net, losses, seen=len(seen))


@idiom("`rows.register_hook(...)` on the output of the embedding", group=GROUP)
def output_hook(run: Run) -> Any:
    class Hooked(Net):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            rows = self.emb(ids)
            if rows.requires_grad:
                rows.register_hook(lambda grad: grad * 2)
            found: torch.Tensor = self.mlp(torch.cat([rows.flatten(1), dense], 1)).squeeze(1)
            return found

    net = Hooked(run)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`register_forward_hook` on the embedding", group=GROUP)
def forward_hook(run: Run) -> Any:
    net = Net(run)
    net.emb.register_forward_hook(lambda module, given, found: found * 2)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "`register_forward_pre_hook` that changes ids",
    group=GROUP,
    cells={"gpubox": Refused(code="contract.id_outside_pass")},
)
def forward_pre_hook(run: Run) -> Any:
    net = Net(run)
    net.emb.register_forward_pre_hook(lambda module, given: ((given[0] + 1) % 24,))
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`register_full_backward_hook` on the embedding", group=GROUP)
def backward_hook(run: Run) -> Any:
    net = Net(run)
    seen: list[float] = []
    net.emb.register_full_backward_hook(lambda *given: seen.append(1.0))
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    return run.end(net, losses, seen=len(seen))


@idiom("`retain_grad()` on the rows of a forward pass", group=GROUP)
def retained_gradient(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    rows: list[torch.Tensor] = []
    net.emb.register_forward_hook(lambda module, given, found: rows.append(found))
    losses, norms = [], []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        rows.clear()
        loss = loss_of(model(ids, dense), label, reduction="sum")
        rows[-1].retain_grad()
        (loss / len(label)).backward()
        assert rows[-1].grad is not None
        norms.append(float(rows[-1].grad.shape[1]))
        optimizer.step()
        losses.append(loss.item() / len(label))
    return run.end(net, losses, norms=norms)


@idiom("`checkpoint(block, x, use_reentrant=False)` of dense layers", group=GROUP)
def checkpointed_dense(run: Run) -> Any:
    class Checked(Net):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            joined = torch.cat([self.emb(ids).flatten(1), dense], 1)
            found: torch.Tensor = checkpoint(self.mlp, joined, use_reentrant=False)
            return found.squeeze(1)

    net = Checked(run)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "`checkpoint(emb, ids, use_reentrant=False)`: the lookup is computed again",
    group=GROUP,
    cells={"gpubox": Refused(code="contract.lookup_in_backward")},
)
def checkpointed_rows(run: Run) -> Any:
    class Checked(Net):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            rows = checkpoint(self.emb, ids, use_reentrant=False)
            found: torch.Tensor = self.mlp(torch.cat([rows.flatten(1), dense], 1)).squeeze(1)
            return found

    net = Checked(run)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "`checkpoint(model, ids, dense, use_reentrant=True)`",
    group=GROUP,
    cells={"gpubox": Refused(code="contract.lookup_in_backward")},
)
def checkpointed_reentrant(run: Run) -> Any:
    class Checked(Net):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            dense = dense.detach().requires_grad_()
            found: torch.Tensor = checkpoint(super().forward, ids, dense, use_reentrant=True)
            return found

    net = Checked(run)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "a gradient penalty: `autograd.grad(..., create_graph=True)` of dense inputs", group=GROUP
)
def penalty_of_inputs(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net, lr=0.1)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        inputs = dense.clone().requires_grad_()
        logits = model(ids, inputs)
        (slope,) = torch.autograd.grad(logits.sum(), inputs, create_graph=True)
        loss = loss_of(logits, label) + 0.1 * slope.square().sum(1).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom("a gradient penalty of rows: `autograd.grad` of the embedding's output", group=GROUP)
def penalty_of_rows(run: Run) -> Any:
    class Kept(Net):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            self.rows = self.emb(ids)
            joined = torch.cat([self.rows.flatten(1), dense], 1)
            found: torch.Tensor = self.mlp(joined).squeeze(1)
            return found

    net = Kept(run)
    model, optimizer = sgd(run, net, lr=0.1)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        logits = model(ids, dense)
        (slope,) = torch.autograd.grad(logits.sum(), net.rows, create_graph=True)
        loss = loss_of(logits, label) + 0.1 * slope.square().sum((1, 2)).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom(
    "`autograd.grad(loss, parameters)`, written to `p.grad`",
    group=GROUP,
    cells={
        "alone jobs": Refused(code="contract.weight"),
        "collective": Refused(code="contract.local_gradients"),
    },
)
def grad_by_hand(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = []
    for ids, dense, label in run.batches():
        loss = loss_of(model(ids, dense), label)
        parameters = list(net.parameters())
        for each, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            each.grad = grad
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom("adversarial training of rows (FGM): the embedding's output is moved", group=GROUP)
def adversarial(run: Run) -> Any:
    class Moved(Net):
        shift: Any = 0.0

        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            self.rows = self.emb(ids)
            joined = torch.cat([(self.rows + self.shift).flatten(1), dense], 1)
            found: torch.Tensor = self.mlp(joined).squeeze(1)
            return found

    net = Moved(run)
    model, optimizer = sgd(run, net)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        loss = loss_of(model(ids, dense), label)
        (slope,) = torch.autograd.grad(loss, net.rows, retain_graph=True)
        net.shift = 0.1 * slope.sign()
        moved = loss_of(model(ids, dense), label)
        net.shift = 0.0
        (loss + moved).backward()
        optimizer.step()
        losses.append(loss.item() + moved.item())
    return run.end(net, losses)


@idiom("`torch.autograd.set_detect_anomaly(True)`", group=GROUP)
def anomaly(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        losses = train(model, optimizer, run.batches())
    return run.end(net, losses)
