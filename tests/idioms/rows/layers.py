"""Layers with rows: options of embeddings and bags, tied weights, shared modules."""

from typing import Any

import torch
from tests.idioms.record import Differs, Refused, idiom
from tests.idioms.run import DENSE, FIELDS, IDS, Net, Run, loss_of, sgd, train
from torch import nn

GROUP = "Embeddings and bags"
REFUSED = {
    "alone jobs": Refused(code="contract.embedding_option"),
    "collective": Refused(code="contract.collective_setup"),
}
OUTSIDE = {"gpubox": Refused(code="contract.id_outside_pass")}
SHARED = "Shared and tied weights"


def _with(run: Run, **options: Any) -> Any:
    net = Net(run, **options)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`padding_idx=0`", group=GROUP)
def padding(run: Run) -> Any:
    return _with(run, padding_idx=0)


def _without_padding(run: Run) -> Any:
    return _with(run)


@idiom(
    "`padding_idx=-1`: torch counts it from the end",
    group=GROUP,
    cells={
        "alone jobs": Differs(
            how="-1 is an id", warning="worker.padding_is_an_id", equals=_without_padding
        )
    },
)
def padding_negative(run: Run) -> Any:
    return _with(run, padding_idx=-1)


@idiom("`max_norm=0.5`", group=GROUP, cells=REFUSED)
def max_norm(run: Run) -> Any:
    return _with(run, max_norm=0.5)


@idiom("`scale_grad_by_freq=True`", group=GROUP, cells=REFUSED)
def scale_by_freq(run: Run) -> Any:
    return _with(run, scale_grad_by_freq=True)


@idiom("`sparse=True`", group=GROUP)
def sparse(run: Run) -> Any:
    return _with(run, sparse=True)


@idiom("`nn.Embedding(..., dtype=torch.float64)` in a model in double", group=GROUP)
def double_rows(run: Run) -> Any:
    net = Net(run, dtype=torch.float64).double()
    model, optimizer = sgd(run, net)
    losses = []
    for ids, dense, label in run.batches(
        forward=lambda batch: model(batch.ids, batch.dense.double())
    ):
        optimizer.zero_grad()
        loss = loss_of(model(ids, dense.double()), label.double())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom("ids of dtype int32", group=GROUP)
def narrow_ids(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        loss = loss_of(model(ids.int(), dense), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


@idiom(
    "ids of dtype float: torch's RuntimeError",
    group=GROUP,
    cells={"alone jobs": Refused(code="contract.id")},
)
def float_ids(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(1))
    refused = 0.0
    if run.is_torch or run.mode == "collective":
        try:
            net.emb(torch.ones(2))
        except RuntimeError:
            refused = 1.0
        return run.end(net, losses, refused=refused)
    net.emb(torch.ones(2))
    return run.end(net, losses, refused=refused)


@idiom(
    "an id that is too large: torch's IndexError",
    group=GROUP,
    cells={
        "alone jobs": Differs(
            how="the id gets a row, too", warning="worker.id_outside_num_embeddings"
        )
    },
)
def large_id(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = train(model, optimizer, run.batches(1))
    with torch.no_grad():
        net.eval()
        try:
            net.emb(torch.tensor([IDS + 7]))
            refused = 0.0
        except IndexError:
            refused = 1.0
    return run.end(net, losses, refused=refused)


@idiom("a lookup of no ids: `emb(torch.empty(0))`", group=GROUP)
def no_ids(run: Run) -> Any:
    net = Net(run)
    model, optimizer = sgd(run, net)
    losses = []
    for ids, dense, label in run.batches():
        optimizer.zero_grad()
        loss = loss_of(model(ids, dense), label) + net.emb(ids[:0]).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)


class Bags(nn.Module):
    """A model with a bag."""

    def __init__(self, run: Run, **options: Any) -> None:
        super().__init__()
        self.emb = run.nn.EmbeddingBag(IDS, 4, **options)
        self.out = nn.Linear(4 + DENSE, 1)

    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(torch.cat([self.emb(ids), dense], 1)).squeeze(1)
        return found


def _bags(run: Run, **options: Any) -> Any:
    net = Bags(run, **options)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom('`nn.EmbeddingBag(mode="sum")`', group=GROUP)
def bag_sum(run: Run) -> Any:
    return _bags(run, mode="sum")


@idiom('`nn.EmbeddingBag(mode="mean")`', group=GROUP)
def bag_mean(run: Run) -> Any:
    return _bags(run, mode="mean")


@idiom('`nn.EmbeddingBag(mode="max")`', group=GROUP)
def bag_max(run: Run) -> Any:
    return _bags(run, mode="max")


@idiom("`nn.EmbeddingBag(padding_idx=0)`", group=GROUP)
def bag_padding(run: Run) -> Any:
    return _bags(run, mode="sum", padding_idx=0)


@idiom("`nn.EmbeddingBag` with `per_sample_weights`", group=GROUP)
def bag_weights(run: Run) -> Any:
    class Weighted(Bags):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            rows = self.emb(ids, per_sample_weights=dense[:, :FIELDS].abs().contiguous())
            found: torch.Tensor = self.out(torch.cat([rows, dense], 1)).squeeze(1)
            return found

    net = Weighted(run, mode="sum")
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`nn.EmbeddingBag` with learned `per_sample_weights`", group=GROUP)
def bag_learned_weights(run: Run) -> Any:
    class Weighted(Bags):
        def __init__(self) -> None:
            super().__init__(run, mode="sum")
            self.gate = nn.Linear(DENSE, FIELDS)

        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            rows = self.emb(ids, per_sample_weights=self.gate(dense))
            found: torch.Tensor = self.out(torch.cat([rows, dense], 1)).squeeze(1)
            return found

    net = Weighted()
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`nn.EmbeddingBag` with `offsets`", group=GROUP)
def bag_offsets(run: Run) -> Any:
    class Ragged(Bags):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            offsets = torch.arange(0, ids.numel(), FIELDS)
            rows = self.emb(ids.flatten(), offsets)
            found: torch.Tensor = self.out(torch.cat([rows, dense], 1)).squeeze(1)
            return found

    net = Ragged(run, mode="mean")
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("an empty bag", group=GROUP)
def bag_empty(run: Run) -> Any:
    class Ragged(Bags):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            offsets = torch.arange(0, ids.numel(), FIELDS)
            offsets[1::4] = offsets[0::4]
            rows = self.emb(ids.flatten(), offsets)
            found: torch.Tensor = self.out(torch.cat([rows, dense], 1)).squeeze(1)
            return found

    net = Ragged(run, mode="mean")
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("one embedding called twice in a forward pass", group=SHARED)
def called_twice(run: Run) -> Any:
    class Twice(Net):
        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            rows = self.emb(ids) + self.emb(ids.flip(1))
            found: torch.Tensor = self.mlp(torch.cat([rows.flatten(1), dense], 1)).squeeze(1)
            return found

    net = Twice(run)
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("one embedding module in two places of a model", group=SHARED)
def shared_module(run: Run) -> Any:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            rows = run.nn.Embedding(IDS, 4)
            self.left = nn.ModuleDict({"emb": rows, "out": nn.Linear(4, 4)})
            self.right = nn.ModuleDict({"emb": rows, "out": nn.Linear(4, 4)})

        def forward(self, ids: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            left = self.left["out"](self.left["emb"](ids[:, 0]))
            right = self.right["out"](self.right["emb"](ids[:, 1]))
            found: torch.Tensor = (left * right).sum(1)
            return found

    net = Towers()
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`other.weight = emb.weight`: two embeddings share rows", group=SHARED)
def shared_weight(run: Run) -> Any:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = run.nn.Embedding(IDS, 4)
            self.right = run.nn.Embedding(IDS, 4)
            self.right.weight = self.left.weight

        def forward(self, ids: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = (self.left(ids[:, 0]) * self.right(ids[:, 1])).sum(1)
            return found

    net = Towers()
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("a tied output layer: `linear.weight = emb.weight`", group=SHARED, cells=OUTSIDE)
def tied_output(run: Run) -> Any:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = run.nn.Embedding(IDS, 4)
            self.out = nn.Linear(4, IDS, bias=False)
            self.out.weight = self.emb.weight

        def forward(self, ids: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.log_softmax(self.out(self.emb(ids[:, 0])), 1)[:, 0]

    net = Tied()
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("tied logits: `hidden @ emb.weight.T` in the loss", group=SHARED, cells=OUTSIDE)
def tied_logits(run: Run) -> Any:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = run.nn.Embedding(IDS, 4)

        def forward(self, ids: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            logits = self.emb(ids[:, 0]) @ self.emb.weight.T
            return torch.nn.functional.log_softmax(logits, 1)[:, 0]

    net = Tied()
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("tied dense layers: `b.weight = a.weight`", group=SHARED)
def tied_dense(run: Run) -> Any:
    class Tied(Net):
        def __init__(self) -> None:
            super().__init__(run)
            self.mlp.insert(1, nn.Linear(8, 8))
            self.mlp.insert(2, nn.Linear(8, 8))
            self.mlp[2].weight = self.mlp[1].weight

    net = Tied()
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("embeddings in a `ModuleList`, and in a `ModuleDict`", group=SHARED)
def many_embeddings(run: Run) -> Any:
    class Fields(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embs = nn.ModuleList(run.nn.Embedding(IDS, 4) for _ in range(FIELDS))
            self.wide = nn.ModuleDict({"first": run.nn.Embedding(IDS, 1)})
            self.out = nn.Linear(FIELDS * 4, 1)

        def forward(self, ids: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            rows = [emb(ids[:, n]) for n, emb in enumerate(self.embs)]
            wide = self.wide["first"](ids).sum(1)
            found: torch.Tensor = (self.out(torch.cat(rows, 1)) + wide).squeeze(1)
            return found

    net = Fields()
    model, optimizer = sgd(run, net)
    return run.end(net, train(model, optimizer, run.batches()))


@idiom("`nn.Sequential(nn.Embedding(...), nn.Flatten(), nn.Linear(...))`", group=SHARED)
def sequential(run: Run) -> Any:
    net = nn.Sequential(run.nn.Embedding(IDS, 4), nn.Flatten(), nn.Linear(FIELDS * 4, 1))
    model, optimizer = sgd(run, net)
    losses = []
    for ids, _, label in run.batches(forward=lambda batch: model(batch.ids)):
        optimizer.zero_grad()
        loss = loss_of(model(ids).squeeze(1), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return run.end(net, losses)
