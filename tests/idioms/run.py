"""What a loop of an idiom gets: torch's names or ours, and its part of the data."""

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import paramfleet as fleet

__all__ = [
    "DENSE",
    "FIELDS",
    "IDS",
    "Batch",
    "IdleRows",
    "Net",
    "Run",
    "loss_of",
    "sgd",
    "train",
]

IDS: Final = 24
"""Number of ids of a table."""

FIELDS: Final = 3
"""Ids of an example."""

DENSE: Final = 4
"""Dense features of an example."""

STEPS: Final = 6
SIZE: Final = 8
"""Examples of a whole batch, those of all workers."""


class Batch(NamedTuple):
    """A worker's part of a batch."""

    ids: torch.Tensor
    """int64 [B, FIELDS]."""
    dense: torch.Tensor
    """float [B, DENSE]."""
    label: torch.Tensor
    """float [B]."""


class Run:
    """One run of a loop: in torch alone, or in a mode of paramfleet.

    Args:
        mode: ``torch``, or one of ``MODES``.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.nn = types.SimpleNamespace(
            Embedding=_Layer(self, "Embedding"), EmbeddingBag=_Layer(self, "EmbeddingBag")
        )
        """``Embedding`` and ``EmbeddingBag``: torch's, or those of ``fleet.nn``."""
        self._tables = 0
        self._model: torch.nn.Module | None = None
        self._is_started = False

    @property
    def is_torch(self) -> bool:
        """Whether the run is the reference."""
        return self.mode == "torch"

    @property
    def rank(self) -> int:
        """This worker's rank, from 0."""
        return 0 if self.is_torch else fleet.worker_index()

    @property
    def size(self) -> int:
        """Number of workers."""
        return 1 if self.is_torch else fleet.worker_num()

    def layer(self, kind: str, num: int, dim: int, options: dict[str, Any]) -> Any:
        """Return a new embedding or bag, whose first values are the same in every run."""
        ours = self.options_of_table() | {"initializer": fleet.nn.uniform(-0.5, 0.5)}
        if not self.has_torch_rows:
            return getattr(fleet.nn, kind)(num, dim, **ours, **options)
        state = torch.get_rng_state()
        made = getattr(torch.nn, kind)(num, dim, **options)
        first = fleet.nn.Embedding(0, dim, **ours)
        with torch.no_grad():
            made.weight.copy_(first(torch.arange(num)))
            if made.padding_idx is not None:
                made.weight[made.padding_idx].zero_()
        torch.set_rng_state(state)  # our modules draw no numbers
        return made

    def options_of_table(self) -> dict[str, Any]:
        """Return the options that name the next table."""
        self._tables += 1
        return {"name": f"table_{self._tables}"}

    @property
    def has_torch_rows(self) -> bool:
        """Whether embeddings are torch's own."""
        return self.mode in {"torch", "collective"}

    def model(self, module: Any) -> Any:
        """Return ``fleet.distributed_model(module)``, or the module itself."""
        self._model = module if self.is_torch else fleet.distributed_model(module)
        return self._model

    def optimizer(self, optimizer: Any, *, starts: bool = True, **settings: Any) -> Any:
        """Return the distributed optimizer of one or a list, or the optimizer itself.

        Args:
            optimizer: An optimizer of torch, or several.
            starts: Call ``fleet.init_worker``, too.
            settings: Attributes of the strategy.
        """
        if self.is_torch:
            return optimizer
        made = fleet.distributed_optimizer(optimizer, self._strategy(settings))
        if starts:
            self.start()
        return made

    def start(self) -> None:
        """Call ``fleet.init_worker``."""
        if not self.is_torch and self.mode != "collective":
            fleet.init_worker()

    def _strategy(self, settings: Mapping[str, Any]) -> Any:
        strategy = fleet.DistributedStrategy()
        if self.mode == "sync":
            strategy.a_sync = False
        if self.mode == "geo":
            strategy.a_sync_configs = {"k_steps": 1, "geo_growth": 0}
        if self.mode == "gpubox":
            strategy.a_sync_configs = {"use_ps_gpu": 1}
        for name, value in settings.items():
            setattr(strategy, name, value)
        return strategy

    def batches(
        self,
        steps: int = STEPS,
        *,
        sizes: Sequence[int] = (),
        seed: int = 1,
        forward: Callable[[Batch], object] | None = None,
    ) -> Iterator[Batch]:
        """Yield this worker's part of each batch.

        Args:
            steps: Number of batches.
            sizes: Examples of each whole batch instead; an odd one gives worker 0 one more.
            seed: Of the data; another epoch has another one.
            forward: Computes the model of a batch, which tells gpubox what it looks up.
        """
        found = [self.part(batch) for batch in _data(sizes or [SIZE] * steps, seed)]
        if self.mode != "gpubox":
            yield from found
            return
        model = self._model
        assert model is not None
        forward = forward or (lambda batch: model(batch.ids, batch.dense))
        yield from fleet.device_pass(found, model, forward=forward)

    def whole(self, steps: int = STEPS, seed: int = 1) -> Iterator[Batch]:
        """Yield the whole batches, those of all workers."""
        yield from _data([SIZE] * steps, seed)

    def part(self, batch: Batch) -> Batch:
        """Return this worker's part of a batch."""
        count = len(batch.label)
        begin, end = (-(-count * rank // self.size) for rank in (self.rank, self.rank + 1))
        return Batch(*(each[begin:end] for each in batch))

    def end(
        self,
        net: torch.nn.Module | None,
        losses: Sequence[torch.Tensor | float] = (),
        *,
        weights: Sequence[float] = (),
        **numbers: Any,
    ) -> dict[str, Any]:
        """Finish the training, and return its numbers.

        Args:
            net: The model; its rows and dense parameters and buffers are compared.
            losses: This worker's, of each step; their mean over the workers is compared.
            weights: What each worker's loss counts in the mean; by default all the same.
            numbers: Further numbers, which every worker must have.
        """
        if not self.is_torch and self.mode != "alone":
            fleet.finish_training()
        found: dict[str, Any] = {name: _listed(value) for name, value in numbers.items()}
        if net is not None:
            found |= self._state(net)
        if losses:
            scaled = [float(each) for each in losses]
            counts = list(weights) or [1.0] * len(scaled)
            found["losses"] = scaled
            found["loss_weights"] = [float(each) for each in counts]
        return found

    def _state(self, net: torch.nn.Module) -> dict[str, Any]:
        found: dict[str, Any] = {}
        own: list[str] = []
        for path, module in net.named_modules():
            if isinstance(module, (*_TORCH, *_FLEET, IdleRows)):
                own.append(f"{path}.")
                found[f"rows of {path}"] = _listed(self.rows(module))
        for path, value in (*net.named_parameters(), *net.named_buffers()):
            if not path.startswith(tuple(own)):
                found[path] = _listed(value)
        return found

    def rows(self, module: Any, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Return rows of an embedding or a bag as they are, [n, D], past its hooks."""
        ids = torch.arange(IDS) if ids is None else ids
        if isinstance(module, (*_TORCH, IdleRows)):
            return module.weight.detach()[ids].clone()
        with torch.no_grad():
            found: torch.Tensor = module.forward(ids if _is_plain(module) else ids[:, None])
        return found.clone()


class _Layer:
    """``nn.Embedding`` or ``nn.EmbeddingBag`` of a run."""

    def __init__(self, run: Run, kind: str) -> None:
        self._run = run
        self._kind = kind
        self.of = getattr(torch.nn if run.has_torch_rows else fleet.nn, kind)
        """The class."""

    def __call__(self, num: int, dim: int, **options: Any) -> Any:
        return self._run.layer(self._kind, num, dim, options)

    def from_pretrained(self, values: torch.Tensor, **options: Any) -> Any:
        named = {} if self._run.has_torch_rows else self._run.options_of_table()
        return self.of.from_pretrained(values, **named, **options)


_TORCH = (torch.nn.Embedding, torch.nn.EmbeddingBag)
_FLEET = (fleet.nn.Embedding, fleet.nn.EmbeddingBag)


def _is_plain(module: Any) -> bool:
    return isinstance(module, fleet.nn.Embedding)


def _listed(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().double().flatten().tolist()
    if isinstance(value, (list, tuple)):
        return [each for one in value for each in _as_list(_listed(one))]
    return [float(value)]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _data(sizes: Sequence[int], seed: int) -> Iterator[Batch]:
    random = torch.Generator().manual_seed(seed)
    for size in sizes:
        ids = torch.randint(0, IDS, (size, FIELDS), generator=random)
        dense = torch.randn(size, DENSE, generator=random)
        yield Batch(ids, dense, ((ids % 5).sum(1) > 5).float())


class Net(torch.nn.Module):
    """A small model: an embedding, dense features, and two linear layers.

    Args:
        run: Whose ``Embedding`` it has.
        options: Of the embedding.
    """

    emb: Any
    mlp: Any

    def __init__(self, run: Run, **options: Any) -> None:
        super().__init__()
        self.emb = run.nn.Embedding(IDS, 4, **options)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(FIELDS * 4 + DENSE, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        )

    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Return logits [B]."""
        joined = torch.cat([self.emb(ids).flatten(1), dense], dim=1)
        logits: torch.Tensor = self.mlp(joined).squeeze(1)
        return logits


class IdleRows(torch.nn.Module):
    """An embedding of torch whose rows without a gradient have none, so that they stay.

    Args:
        values: The first values, [N, D].
    """

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.rows = torch.nn.ParameterList(torch.nn.Parameter(each) for each in values.detach())
        self._seen: set[int] = set()

    @property
    def weight(self) -> torch.Tensor:
        """All rows, [N, D]."""
        return torch.stack(list(self.rows))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids."""
        self._seen |= set(ids.flatten().tolist())
        return self.weight[ids]

    def drop_idle(self) -> None:
        """Forget the gradients of rows that were not looked up since the last call."""
        for number, each in enumerate(self.rows):
            if number not in self._seen:
                each.grad = None
        self._seen.clear()


loss_of: Any = binary_cross_entropy_with_logits
"""The loss of all loops; ``Any``, because torch leaves ``backward`` untyped."""


def sgd(run: Run, net: Any, lr: float = 0.5) -> tuple[Any, Any]:
    """Return the model and its optimizer, plain SGD, ready to train."""
    model = run.model(net)
    return model, run.optimizer(torch.optim.SGD(net.parameters(), lr=lr))


def train(
    model: Any,
    optimizer: Any,
    batches: Iterable[Batch],
    *,
    after_backward: Callable[[], object] = lambda: None,
    after_step: Callable[[], object] = lambda: None,
    term: Callable[[], Any] = lambda: 0.0,
) -> list[float]:
    """Train as the tutorials of torch do; return the losses.

    Args:
        model: Takes ids and dense features.
        optimizer: Its optimizer.
        batches: The data.
        after_backward: Called between ``backward`` and ``step``.
        after_step: Called behind ``step``.
        term: Added to the loss of each batch, after the forward pass.
    """
    losses = []
    for ids, dense, label in batches:
        optimizer.zero_grad()
        loss = loss_of(model(ids, dense), label) + term()
        loss.backward()
        after_backward()
        optimizer.step()
        after_step()
        losses.append(loss.item())
    return losses
