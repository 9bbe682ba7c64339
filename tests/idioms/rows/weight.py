"""Reads and writes of ``embedding.weight``, and initializers."""

from collections.abc import Callable
from typing import Any

import torch
from tests.idioms.record import Differs, Refused, idiom
from tests.idioms.run import IDS, Net, Run, sgd, train

GROUP = "Writes of `embedding.weight`"
READS = "Reads of `embedding.weight`"
INITS = "Initializers"
PASS_OPEN = {"gpubox": Refused(code="contract.pass_open")}
OWN_PART = Differs(how="the gradient of this worker's part of the batch")


def _values() -> torch.Tensor:
    return torch.linspace(-0.5, 0.5, IDS * 4).reshape(IDS, 4)


def _before(run: Run, write: Callable[[Any], Any]) -> Any:
    """Write before the model is given to paramfleet, then train."""
    net = Net(run)
    write(net.emb)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


def _amid(run: Run, write: Callable[[Any], Any]) -> Any:
    """Write between two steps of the training."""
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    write(net.emb)
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses)


@idiom("`emb.weight.data.copy_(pretrained)` before training", group=GROUP)
def data_copy(run: Run) -> Any:
    return _before(run, lambda emb: emb.weight.data.copy_(_values()))


@idiom("`with torch.no_grad(): emb.weight.copy_(pretrained)`", group=GROUP)
def no_grad_copy(run: Run) -> Any:
    def write(emb: Any) -> None:
        with torch.no_grad():
            emb.weight.copy_(_values())

    return _before(run, write)


@idiom("`emb.weight.data = pretrained`", group=GROUP)
def data_assigned(run: Run) -> Any:
    def write(emb: Any) -> None:
        emb.weight.data = _values()

    return _before(run, write)


@idiom("`emb.weight = nn.Parameter(pretrained)`", group=GROUP)
def parameter_assigned(run: Run) -> Any:
    def write(emb: Any) -> None:
        emb.weight = torch.nn.Parameter(_values())

    return _before(run, write)


@idiom("`nn.Embedding.from_pretrained(vectors)`: frozen", group=GROUP)
def from_pretrained(run: Run) -> Any:
    net = Net(run)
    net.emb = run.nn.Embedding.from_pretrained(_values())
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`nn.Embedding.from_pretrained(vectors, freeze=False)`", group=GROUP)
def from_pretrained_thawed(run: Run) -> Any:
    net = Net(run)
    net.emb = run.nn.Embedding.from_pretrained(_values(), freeze=False)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`emb.weight[3] = 0` under `no_grad()`: one row", group=GROUP)
def one_row(run: Run) -> Any:
    def write(emb: Any) -> None:
        with torch.no_grad():
            emb.weight[3] = 0.0

    return _before(run, write)


@idiom("`emb.weight.data[padding_idx].zero_()`", group=GROUP)
def padding_row(run: Run) -> Any:
    net = Net(run, padding_idx=0)
    net.emb.weight.data[net.emb.padding_idx].zero_()
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`emb.weight.data[ids] = vectors`: some rows of pretrained vectors", group=GROUP)
def some_rows(run: Run) -> Any:
    def write(emb: Any) -> None:
        emb.weight.data[torch.tensor([1, 5, 7])] = _values()[:3]

    return _before(run, write)


@idiom("`emb.weight.data.mul_(0.1)`", group=GROUP)
def scaled(run: Run) -> Any:
    return _before(run, lambda emb: emb.weight.data.mul_(0.1))


@idiom("`emb.weight.data.clamp_(-0.1, 0.1)` after each step", group=GROUP, cells=PASS_OPEN)
def clamped_rows(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)

    def clamp() -> None:
        net.emb.weight.data.clamp_(-0.1, 0.1)

    return run.end(net, train(model, optimizer, run.batches(), after_step=clamp))


@idiom("`weight.copy_(...)` between two steps", group=GROUP)
def copied_amid(run: Run) -> Any:
    def write(emb: Any) -> None:
        with torch.no_grad():
            emb.weight.copy_(_values())

    return _amid(run, write)


@idiom(
    "rows renormalized after each step: `weight.data = normalize(weight.data)`",
    group=GROUP,
    cells=PASS_OPEN,
)
def renormalized(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)

    def normalize() -> None:
        net.emb.weight.data = torch.nn.functional.normalize(net.emb.weight.data, dim=1)

    return run.end(net, train(model, optimizer, run.batches(), after_step=normalize))


@idiom("a dense weight clamped after each step (WGAN)", group=GROUP)
def clamped_dense(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)

    def clamp() -> None:
        with torch.no_grad():
            for each in net.mlp.parameters():
                each.clamp_(-0.2, 0.2)

    return run.end(net, train(model, optimizer, run.batches(), after_step=clamp))


@idiom("a dense weight replaced by `weight.data = ...` between two steps", group=GROUP)
def replaced_dense(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    net.mlp[2].weight.data = torch.full((1, 8), 0.1)
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses)


@idiom("a dense weight written before `fleet.init_worker()`", group=GROUP)
def dense_before(run: Run) -> Any:
    net = Net(run)
    torch.nn.init.constant_(net.mlp[0].weight, 0.05)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


def _read(run: Run, read: Callable[[Any], Any]) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    found = read(net.emb)
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses, found=found)


@idiom("`emb.weight[ids]`", group=READS, cells={"gpubox": Refused(code="contract.no_pass")})
def read_rows(run: Run) -> Any:
    return _read(run, lambda emb: emb.weight[torch.tensor([3, 1, 4])])


@idiom("`emb.weight.detach().numpy()`", group=READS)
def read_numpy(run: Run) -> Any:
    return _read(run, lambda emb: torch.from_numpy(emb.weight.detach().numpy().copy()))


@idiom("`emb.weight.data.clone()`, `.cpu()`", group=READS)
def read_clone(run: Run) -> Any:
    return _read(run, lambda emb: emb.weight.data.clone().cpu())


@idiom("`emb.weight.norm()`, `.mean()`, `.std()` under `no_grad()`", group=READS)
def read_statistics(run: Run) -> Any:
    def read(emb: Any) -> Any:
        with torch.no_grad():
            return [emb.weight.norm(), emb.weight.mean(), emb.weight.std()]

    return _read(run, read)


@idiom("`emb.weight.shape`, `.size(0)`, `.numel()`", group=READS)
def read_shape(run: Run) -> Any:
    return _read(run, lambda emb: [*emb.weight.shape, emb.weight.size(0), emb.weight.numel()])


@idiom("`emb.weight.device`, `.dtype`, `.requires_grad`", group=READS)
def read_kind(run: Run) -> Any:
    def read(emb: Any) -> Any:
        weight = emb.weight
        found = [weight.dtype == torch.float32, weight.device.type == "cpu"]
        return [*map(float, found), float(weight.requires_grad), float(weight.is_leaf)]

    return _read(run, read)


@idiom(
    "`F.embedding(ids, emb.weight)`",
    group=READS,
    cells={"gpubox": Refused(code="contract.id_outside_pass")},
)
def functional_embedding(run: Run) -> Any:
    class Functional(Net):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            rows = torch.nn.functional.embedding(ids, self.emb.weight)
            joined = torch.cat([rows.flatten(1), dense], dim=1)
            found: torch.Tensor = self.mlp(joined).squeeze(1)
            return found

    net = Functional(run)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("scores of all items: `users @ emb.weight.T`", group=READS)
def all_items(run: Run) -> Any:
    def read(emb: Any) -> Any:
        with torch.no_grad():
            return torch.ones(2, 4) @ emb.weight.T

    return _read(run, read)


@idiom("`emb.weight.grad` after `backward()`", group=READS, cells={"sync gpubox": OWN_PART})
def read_gradient(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    norms = []

    def look() -> None:
        gradient = net.emb.weight.grad
        norms.append(0.0 if gradient is None else float(gradient.to_dense().norm()))

    losses = train(model, optimizer, run.batches(), after_backward=look)
    return run.end(net, losses, norms=norms)


INITIALIZERS: dict[str, Callable[[Any], Any]] = {
    "constant_": lambda weight: torch.nn.init.constant_(weight, 0.25),
    "zeros_": torch.nn.init.zeros_,
    "ones_": torch.nn.init.ones_,
    "eye_": torch.nn.init.eye_,
}
"""Those that draw no numbers."""

DRAWN: dict[str, Callable[[Any], Any]] = {
    "normal_": lambda weight: torch.nn.init.normal_(weight, std=1e-2),
    "uniform_": lambda weight: torch.nn.init.uniform_(weight, -0.02, 0.02),
    "trunc_normal_": lambda weight: torch.nn.init.trunc_normal_(weight, std=1e-2),
    "xavier_uniform_": torch.nn.init.xavier_uniform_,
    "xavier_normal_": torch.nn.init.xavier_normal_,
    "kaiming_uniform_": torch.nn.init.kaiming_uniform_,
    "kaiming_normal_": torch.nn.init.kaiming_normal_,
    "orthogonal_": torch.nn.init.orthogonal_,
    "sparse_": lambda weight: torch.nn.init.sparse_(weight, sparsity=0.5),
}
"""Those that draw numbers: their statistics are compared."""


def _statistics(rows: torch.Tensor) -> dict[str, Any]:
    """Return what a draw must have, in units in which chance stays below one."""
    scale = rows.std()
    return {"scale": scale.log() / 3, "mean": rows.mean() / scale}


def _add_exact(name: str) -> None:
    def loop(run: Run) -> Any:
        return _before(run, lambda emb: INITIALIZERS[name](emb.weight))

    loop.__name__ = f"init_{name.strip('_')}"
    idiom(f"`nn.init.{name}(emb.weight)`", group=INITS)(loop)


def _add_drawn(name: str) -> None:
    def loop(run: Run) -> Any:
        net = Net(run)
        DRAWN[name](net.emb.weight)
        rows = run.rows(net.emb)
        model, optimizer = sgd(run, net)
        for _ in train(model, optimizer, run.batches()):
            pass
        return run.end(None, **_statistics(rows))

    loop.__name__ = f"init_{name.strip('_')}"
    title = f"`nn.init.{name}(emb.weight)`: mean and scale of the rows"
    idiom(title, group=INITS, bound=0.3)(loop)


for each in INITIALIZERS:
    _add_exact(each)
for each in DRAWN:
    _add_drawn(each)


@idiom("`emb.reset_parameters()`", group=INITS, bound=0.3)
def reset_parameters(run: Run) -> Any:
    net = Net(run)
    net.emb.reset_parameters()
    model, optimizer = sgd(run, net)
    train(model, optimizer, run.batches(1))
    return run.end(None, **_statistics(run.rows(net.emb)))


@idiom("`model.apply(init_weights)` with a branch for `nn.Embedding`", group=INITS)
def applied(run: Run) -> Any:
    def init_weights(module: Any) -> None:
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.constant_(module.weight, 0.1)
            torch.nn.init.zeros_(module.bias)
        if "Embedding" in type(module).__name__:
            torch.nn.init.constant_(module.weight, 0.2)

    net = Net(run)
    net.apply(init_weights)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`for p in model.parameters(): if p.dim() > 1: nn.init...(p)`", group=INITS)
def over_parameters(run: Run) -> Any:
    net = Net(run)
    for each in net.parameters():
        if each.dim() > 1:
            torch.nn.init.constant_(each, 0.1)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`nn.init.normal_(emb.weight)` after some steps", group=INITS)
def init_amid(run: Run) -> Any:
    return _amid(run, lambda emb: torch.nn.init.constant_(emb.weight, 0.3))
