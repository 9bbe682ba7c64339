"""Normalization, dropout, seeds, pruning and parametrizations."""

from typing import Any

import torch
from tests.idioms.record import Differs, Refused, idiom
from tests.idioms.run import DENSE, FIELDS, Net, Run, sgd, train
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

GROUP = "Normalization, dropout and seeds"
CHANGED = "Pruning and parametrizations"
NO_TABLE = {"alone jobs": Refused(code="contract.weight")}


class Normed(Net):
    """A model with another layer before the linear ones."""

    def __init__(self, run: Run, layer: nn.Module) -> None:
        super().__init__(run)
        self.layer = layer

    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Return logits [B]."""
        joined = self.layer(torch.cat([self.emb(ids).flatten(1), dense], 1))
        found: torch.Tensor = self.mlp(joined).squeeze(1)
        return found


WIDTH = FIELDS * 4 + DENSE


def _with(run: Run, layer: nn.Module) -> Any:
    net = Normed(run, layer)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


OWN_HALF = Differs(
    how="each worker normalizes by its own part of the batch", warning="worker.local_batch_norm"
)
OWN_MASK = Differs(how="each worker draws a mask for its own part of the batch")


@idiom("`nn.BatchNorm1d`", group=GROUP, cells={"sync gpubox collective": OWN_HALF})
def batch_norm(run: Run) -> Any:
    return _with(run, nn.BatchNorm1d(WIDTH))


@idiom("`nn.BatchNorm1d` in `eval()`, or with `track_running_stats=False`", group=GROUP)
def batch_norm_frozen(run: Run) -> Any:
    return _with(run, nn.BatchNorm1d(WIDTH).eval())


@idiom(
    "`nn.BatchNorm1d` and `strategy.sync_batch_norm = True`",
    group=GROUP,
    cells={
        "gpubox": Refused(code="contract.strategy"),
        "collective": Refused(code="contract.collective_setup"),
    },
)
def shared_batch_norm(run: Run) -> Any:
    net = Normed(run, nn.BatchNorm1d(WIDTH))
    model = run.model(net)
    is_known = run.mode in {"sync", "gpubox", "collective"}
    settings: dict[str, Any] = {"sync_batch_norm": True} if is_known else {}
    optimizer = run.optimizer(torch.optim.SGD(net.parameters(), lr=0.5), **settings)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`nn.LayerNorm`", group=GROUP)
def layer_norm(run: Run) -> Any:
    return _with(run, nn.LayerNorm(WIDTH))


@idiom(
    "`nn.SyncBatchNorm.convert_sync_batchnorm(model)`",
    group=GROUP,
    cells={"sync gpubox collective": Refused(code="contract.sync_batch_norm")},
)
def sync_batch_norm(run: Run) -> Any:
    net = Normed(run, nn.BatchNorm1d(WIDTH))
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net) if not run.is_torch else net
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "`nn.Dropout` with `torch.manual_seed`",
    group=GROUP,
    cells={"sync gpubox collective": OWN_MASK},
)
def dropout(run: Run) -> Any:
    torch.manual_seed(5)
    return _with(run, nn.Dropout(0.5))


@idiom("`nn.Dropout(p)` in `eval()`", group=GROUP)
def dropout_eval(run: Run) -> Any:
    return _with(run, nn.Dropout(0.5).eval())


@idiom("`torch.manual_seed`: the first values of dense layers", group=GROUP)
def seeded_layers(run: Run) -> Any:
    torch.manual_seed(7)
    net = Net(run)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches(1)))


@idiom("`torch.use_deterministic_algorithms(True)`", group=GROUP)
def deterministic(run: Run) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        net = Net(run)
        model, optimizer = sgd(run, net)
        return run.end(net, train(model, optimizer, run.batches()))
    finally:
        torch.use_deterministic_algorithms(False)


@idiom("`register_buffer`: a counter that `forward` changes", group=GROUP)
def buffer(run: Run) -> Any:
    class Counting(Net):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__(run)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                self.count = self.count + 1
            return super().forward(ids, dense)

    net = Counting()
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`prune.l1_unstructured` of a dense layer", group=CHANGED)
def pruned(run: Run) -> Any:
    net = Net(run)
    prune.l1_unstructured(net.mlp[0], "weight", amount=0.5)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`prune` of a dense layer between two steps", group=CHANGED)
def pruned_amid(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(3))
    prune.l1_unstructured(net.mlp[0], "weight", amount=0.5)
    losses += train(model, optimizer, run.batches(3, seed=2))
    return run.end(net, losses)


@idiom(
    "`prune.l1_unstructured(emb, 'weight')`",
    group=CHANGED,
    cells=NO_TABLE,
)
def pruned_rows(run: Run) -> Any:
    net = Net(run)
    prune.l1_unstructured(net.emb, "weight", amount=0.5)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    return run.end(None, losses, rows=net.emb.weight if run.is_torch else run.rows(net.emb))


class _Symmetric(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.tanh()


@idiom("`parametrize.register_parametrization` of a dense layer", group=CHANGED)
def parametrized(run: Run) -> Any:
    net = Net(run)
    parametrize.register_parametrization(net.mlp[0], "weight", _Symmetric())
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "`parametrize.register_parametrization(emb, 'weight', ...)`",
    group=CHANGED,
    cells=NO_TABLE,
)
def parametrized_rows(run: Run) -> Any:
    net = Net(run)
    parametrize.register_parametrization(net.emb, "weight", _Symmetric())
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    return run.end(None, losses, rows=net.emb.weight)


@idiom("`parametrizations.weight_norm` of a dense layer", group=CHANGED)
def weight_norm(run: Run) -> Any:
    net = Net(run)
    parametrizations.weight_norm(net.mlp[0])
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`parametrizations.spectral_norm` of a dense layer", group=CHANGED, bound=1e-4)
def spectral_norm(run: Run) -> Any:
    net = Net(run)
    parametrizations.spectral_norm(net.mlp[0])
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom(
    "`weight_norm(emb)`",
    group=CHANGED,
    cells=NO_TABLE,
)
def weight_norm_rows(run: Run) -> Any:
    net = Net(run)
    parametrizations.weight_norm(net.emb)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches())
    return run.end(None, losses, rows=net.emb.weight)
