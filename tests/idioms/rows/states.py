"""State dicts, names and counts of parameters."""

import io
from typing import Any

import torch
from tests.idioms.record import Refused, idiom
from tests.idioms.run import IDS, Net, Run, sgd, train

GROUP = "State dicts"
NAMES = "Names, counts and norms of parameters"


def _torch_state() -> dict[str, torch.Tensor]:
    """Return the state of the model as torch saved it elsewhere."""
    return {
        "emb.weight": torch.linspace(-0.5, 0.5, IDS * 4).reshape(IDS, 4),
        "mlp.0.weight": torch.full((8, 16), 0.05),
        "mlp.0.bias": torch.zeros(8),
        "mlp.2.weight": torch.full((1, 8), 0.1),
        "mlp.2.bias": torch.zeros(1),
    }


@idiom("`load_state_dict(torch_state)` before training", group=GROUP)
def load_state(run: Run) -> Any:
    net = Net(run)
    net.load_state_dict(_torch_state())
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`load_state_dict(torch_state)` between two steps", group=GROUP)
def load_state_amid(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    net.load_state_dict(_torch_state())
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses)


@idiom("`load_state_dict(part, strict=False)`: missing and unexpected keys", group=GROUP)
def load_partial(run: Run) -> Any:
    net = Net(run)
    state = _torch_state()
    del state["emb.weight"], state["mlp.2.bias"]
    state["other"] = torch.zeros(1)
    keys = net.load_state_dict(state, strict=False)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    return run.end(
        net,
        losses,
        missing=float("emb.weight" in keys.missing_keys) + len(keys.missing_keys),
        unexpected=len(keys.unexpected_keys),
    )


@idiom("`load_state_dict(without_rows)` with `strict=True`: torch's RuntimeError", group=GROUP)
def load_missing(run: Run) -> Any:
    net = Net(run)
    state = _torch_state()
    del state["emb.weight"]
    refused = 0.0
    try:
        net.load_state_dict(state)
    except RuntimeError as error:
        refused = float("emb.weight" in str(error))
    model, optimizer = sgd(run, net)
    return run.end(None, train(model, optimizer, run.batches(1)) and [], refused=refused)


@idiom("`load_state_dict` of rows of another width: torch's RuntimeError", group=GROUP)
def load_other_width(run: Run) -> Any:
    net = Net(run)
    state = _torch_state() | {"emb.weight": torch.zeros(IDS, 5)}
    refused = 0.0
    try:
        net.load_state_dict(state)
    except RuntimeError as error:
        refused = float("size mismatch for emb.weight" in str(error))
    model, optimizer = sgd(run, net)
    return run.end(None, train(model, optimizer, run.batches(1)) and [], refused=refused)


@idiom("`state_dict()` after some steps: names and rows", group=GROUP)
def state_of(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    state = {name: value.clone() for name, value in net.state_dict().items()}
    return run.end(net, losses, **{f"state {name}": value for name, value in state.items()})


@idiom("best model so far: `state_dict()` kept, loaded at the end", group=GROUP)
def best_state(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    best = {name: value.clone() for name, value in net.state_dict().items()}
    losses += train(model, optimizer, run.batches(3, seed=2))
    net.load_state_dict(best)
    return run.end(net, losses)


@idiom("`torch.save(model.state_dict())`, `torch.load`, `load_state_dict`", group=GROUP)
def saved_state(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    losses += train(model, optimizer, run.batches(3, seed=2))
    file.seek(0)
    net.load_state_dict(torch.load(file, weights_only=True))  # noqa: TID251 - its own bytes
    return run.end(net, losses)


@idiom("our `state_dict()` loaded by the model in torch alone", group=GROUP)
def state_into_torch(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    plain = Net(Run("torch"))
    plain.load_state_dict(net.state_dict())
    with torch.no_grad():
        scores = plain(torch.arange(6).reshape(2, 3), torch.ones(2, 4))
    return run.end(net, losses, scores=scores)


@idiom("`optimizer.state_dict()` and `load_state_dict()`: rates and groups", group=GROUP)
def optimizer_state(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    state = optimizer.state_dict()
    optimizer.param_groups[0]["lr"] = 9.0
    optimizer.load_state_dict(state)
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses, rate=optimizer.param_groups[0]["lr"])


@idiom("`named_parameters()`: the names", group=NAMES)
def names(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    found = [name for name, _ in net.named_parameters()]
    expected = ["emb.weight", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias"]
    return run.end(net, losses, names=float(found == expected))


@idiom("`sum(p.numel() for p in model.parameters())`", group=NAMES)
def count(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    return run.end(net, losses, count=sum(each.numel() for each in net.parameters()))


@idiom("the norm of all parameters, for a log", group=NAMES)
def norm_of_all(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    with torch.no_grad():
        norm = torch.stack([each.norm() for each in net.parameters()]).norm()
    return run.end(net, losses, norm=norm)


@idiom("`parameters_to_vector(model.parameters())`", group=NAMES)
def vector(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    with torch.no_grad():
        found = torch.nn.utils.parameters_to_vector(net.parameters())
    return run.end(net, losses, vector=found)


@idiom(
    "`vector_to_parameters` between two steps",
    group=NAMES,
    cells={"gpubox": Refused(code="contract.no_pass")},
)
def vector_written(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    size = sum(each.numel() for each in net.parameters())
    torch.nn.utils.vector_to_parameters(torch.linspace(-0.3, 0.3, size), net.parameters())
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses)


@idiom("parameters chosen by `isinstance(module, nn.Embedding)`", group=NAMES)
def by_class(run: Run) -> Any:
    net = Net(run)
    rows = [m for m in net.modules() if isinstance(m, run.nn.Embedding.of)]
    return run.end(None, found=len(rows), **_trained(run, net))


def _trained(run: Run, net: Net) -> dict[str, Any]:
    model, optimizer = sgd(run, net)
    train(model, optimizer, run.batches(1))
    return {}
