"""The embedding's weight does with rows what torch's does with its own memory, or refuses."""

import copy
import io
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional, init
from torch.nn.utils import parametrize, prune
from torch.optim import swa_utils

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.nn import IdError
from paramfleet.session.session import Session
from paramfleet.tables.embedding_errors import UntraceableError
from paramfleet.tables.weight.rows import MAX_WHOLE_VALUES, WeightError

N, D = 6, 4
IDS = torch.tensor([[0, 1], [1, 5], [3, 3]])


class Model(torch.nn.Module):
    def __init__(self, embedding: torch.nn.Module) -> None:
        super().__init__()
        self.e: Any = embedding
        self.out = torch.nn.Linear(D, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.e(ids)).mean()
        return found


class Pair:
    """A model of torch, and one with a table, that begin with the same values."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.torch = Model(torch.nn.Embedding(N, D, **options))
        session = Session()
        session.init(RoleMaker(distributed=False))
        self.fleet = session.distributed_model(Model(fleet.nn.Embedding(N, D, **options)))
        self.fleet.load_state_dict(self.torch.state_dict())
        self.reference = torch.optim.Adagrad(self.torch.parameters(), lr=0.1)
        made = torch.optim.Adagrad(self.fleet.parameters(), lr=0.1)
        self.optimizer = session.distributed_optimizer(made)

    @property
    def models(self) -> tuple[Model, Model]:
        return self.torch, self.fleet

    def step(self, loss: Callable[[Model], torch.Tensor]) -> None:
        for model, optimizer in zip(self.models, (self.reference, self.optimizer), strict=True):
            optimizer.zero_grad()
            loss(model).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()

    def assert_equal(self) -> None:
        for expected, found in zip(
            self.torch.state_dict().values(), self.fleet.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@torch.no_grad()
def _by_index(weight: Any) -> None:
    weight[2] = 5.0
    weight[torch.tensor([0, 1])] *= 2
    weight[3:5, 1] = -1


@torch.no_grad()
def _by_view(weight: Any) -> None:
    weight[0].zero_()
    weight.data[1:3].fill_(2)
    weight.data.view(-1)[-1] = 9
    weight.data.t()[0].add_(1)


@torch.no_grad()
def _vector(weight: Any) -> None:
    vector = torch.nn.utils.parameters_to_vector([weight])
    torch.nn.utils.vector_to_parameters(vector * 3, [weight])


WRITES: dict[str, Callable[[Any], Any]] = {
    "clamp_": torch.no_grad()(lambda w: w.clamp_(-0.5, 0.5)),
    "copy_": torch.no_grad()(lambda w: w.copy_(torch.full((N, D), 7.0))),
    "copy_ of a row": lambda w: w.data.copy_(torch.arange(4.0)),
    "data": lambda w: setattr(w, "data", torch.full((N, D), 7.0)),
    "data.mul_": lambda w: w.data.mul_(0.5),
    "by index": _by_index,
    "by a view": _by_view,
    "row by row": torch.no_grad()(lambda w: [row.add_(1) for row in w.data]),
    "unbind": torch.no_grad()(lambda w: [row.div_(row.norm()) for row in w.data.unbind(0)]),
    "chunk": torch.no_grad()(lambda w: w.data.chunk(2)[0].zero_()),
    "views that overlap": torch.no_grad()(
        lambda w: [view.mul_(2) for view in (w.data[:3], w.data[2:])]
    ),
    "vector_to_parameters": _vector,
    "init.constant_": lambda w: init.constant_(w, 0.25),
    "init.eye_": init.eye_,
    "init.zeros_ of a row": lambda w: init.zeros_(w[3]),
    "renorm_": lambda w: w.data.renorm_(2, 0, 1.0),
    "_foreach_add_": torch.no_grad()(lambda w: torch._foreach_add_([w], 1.5)),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_changes_the_rows_as_it_changes_torchs_weight(name: str) -> None:
    pair = Pair()
    pair.step(lambda model: model(IDS))

    for model in pair.models:
        WRITES[name](model.e.weight)

    pair.assert_equal()
    pair.step(lambda model: model(IDS))
    pair.assert_equal()


READS: dict[str, Callable[[Any], Any]] = {
    "shape": lambda w: [*w.shape, w.size(0), w.size(1), len(w), w.numel(), w.dim()],
    "norm": lambda w: w.detach().norm(),
    "rows": lambda w: w[torch.tensor([4, -1])],
    "a row": lambda w: w[2],
    "numpy": lambda w: torch.tensor(w.detach().numpy()),
    "std": lambda w: w.std(),
    "cosine": lambda w: functional.cosine_similarity(w[0], w.data, dim=1),
    "clone": lambda w: w.detach().clone(),
    "equal": lambda w: torch.equal(w.data, w.data),
    "vector": lambda w: torch.nn.utils.parameters_to_vector([w]),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_returns_what_torchs_weight_returns(name: str) -> None:
    pair = Pair()
    pair.step(lambda model: model(IDS))

    expected, found = (READS[name](model.e.weight) for model in pair.models)

    torch.testing.assert_close(found, expected)


LOSSES: dict[str, Callable[[Model], torch.Tensor]] = {
    "tied logits": lambda m: functional.linear(m.e(IDS), m.e.weight).square().mean(),
    "matmul": lambda m: (m.e(IDS) @ m.e.weight.t()).logsumexp(-1).mean(),
    "rows by index": lambda m: (m.e.weight[IDS] * m.e(IDS)).sum(),
    "functional.embedding": lambda m: functional.embedding(IDS, m.e.weight).square().sum(),
    "norm of all": lambda m: m(IDS) + m.e.weight.norm(),
    "normalized rows": lambda m: functional.normalize(m.e.weight, dim=1)[IDS].sum(),
    "mean row": lambda m: m(IDS) + (m.e(IDS) * m.e.weight.mean(0)).sum(),
    "centered": lambda m: m(IDS) + (m.e.weight - m.e.weight.mean(0)).pow(2).mean(1)[IDS].sum(),
    "indexed squares": lambda m: m.e.weight.square()[IDS].sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_uses_the_weight_trains_it_as_torch_does(name: str) -> None:
    pair = Pair()

    for _ in range(3):
        pair.step(LOSSES[name])

    pair.assert_equal()


TERMS: dict[str, Callable[[Any], Any]] = {
    "square": lambda w: 0.01 * w.square().sum(),
    "power": lambda w: torch.sum(0.01 * w**2),
    "product": lambda w: torch.sum(0.01 * w * w),
    "by rows": lambda w: (w.pow(2).sum(dim=1) * 0.01).sum(),
    "mean": lambda w: (w * w).mean(),
    "absolute": lambda w: 0.01 * torch.norm(w, p=1, dim=1).sum(),
}


@pytest.mark.parametrize("name", TERMS)
def test_a_regularizer_covers_each_row_of_the_step_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As torch's dense term would, of which the rows that aren't looked up are left out."""
    pair = Pair()
    touched = torch.tensor([0, 1, 3, 5])

    def lazily(model: Model) -> torch.Tensor:
        loss = model(IDS) + model(IDS[:2])  # the rows of two lookups overlap
        weight: Any = model.e.weight
        if model is pair.torch:
            mask = torch.zeros(N, 1).index_fill_(0, touched, 1.0)
            weight = weight * mask
        found: torch.Tensor = loss + TERMS[name](weight)
        return found

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            pair.step(lazily)

    pair.assert_equal()
    events = [each.message for each in caplog.records]
    assert events.count("worker.lazy_regularizer") == 1


def test_rows_of_former_steps_are_no_part_of_a_regularizer() -> None:
    pair = Pair()

    def step(ids: torch.Tensor) -> None:
        loss = pair.fleet(ids) * 0 + 0.5 * pair.fleet.e.weight.square().sum()
        pair.optimizer.zero_grad()
        loss.backward()
        pair.optimizer.step()
        assert len(pair.fleet.e.table.pending_ids) == len(ids)

    step(torch.tensor([0, 1]))
    before = pair.fleet.state_dict()["e.weight"].clone()
    for _ in range(3):
        step(torch.tensor([2, 3]))
    after = pair.fleet.state_dict()["e.weight"]

    assert torch.equal(before[:2], after[:2])
    assert not torch.equal(before[2:4], after[2:4])


@pytest.mark.parametrize(
    ("initializer", "low", "high"),
    [
        (lambda w: init.uniform_(w, 2, 3), 2, 3),
        (lambda w: w.data.uniform_(-3, -2), -3, -2),
        (lambda w: init.normal_(w, mean=5.0, std=1e-4), 4.9, 5.1),
        (lambda w: init.xavier_uniform_(w, gain=0.1), -0.08, 0.08),
        (lambda w: init.kaiming_uniform_(w, a=1.0), -0.9, 0.9),
        (lambda w: init.trunc_normal_(w, 0.0, 1.0, -0.5, 0.5), -0.5, 0.5),
        (init.ones_, 1, 1),
        (init.orthogonal_, -1, 1),
    ],
)
def test_an_initializer_of_torch_initializes_a_table(
    initializer: Callable[[Any], Any], low: float, high: float
) -> None:
    made = fleet.nn.Embedding(200, D)
    initializer(made.weight)

    rows = made(torch.arange(200)).detach()

    assert low <= float(rows.min()) <= float(rows.max()) <= high
    assert torch.equal(rows, made.weight.detach().clone())


def test_what_was_read_before_the_table_had_its_name_stays() -> None:
    model = fleet.nn.Embedding(N, D)
    before = model.weight.detach().clone()

    session = Session()
    session.init(RoleMaker(distributed=False))
    session.distributed_model(torch.nn.Sequential(model))

    assert torch.equal(model(torch.arange(N)), before)


def test_a_checkpoint_of_torch_is_loaded_and_keys_are_reported() -> None:
    pair = Pair()
    pair.assert_equal()

    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "e.weight"'):
        pair.fleet.load_state_dict(
            {k: v for k, v in pair.torch.state_dict().items() if "out" in k}
        )
    with pytest.raises(RuntimeError, match=r"size mismatch for e.weight"):
        pair.fleet.load_state_dict(pair.torch.state_dict() | {"e.weight": torch.ones(N + 1, D)})
    found = pair.fleet.load_state_dict({"e.weight": torch.ones(N, D)}, strict=False)

    assert found.missing_keys == ["out.weight", "out.bias"]
    assert torch.equal(pair.fleet.e.weight.detach(), torch.ones(N, D))


def test_a_table_without_a_number_of_rows_says_what_its_state_lacks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = torch.nn.Sequential(fleet.nn.Embedding(0, D))

    with caplog.at_level(logging.WARNING):
        states = [model.state_dict() for _ in range(2)]

    assert states[0]["0.weight"].shape == (0, D)
    assert [each.message for each in caplog.records] == ["worker.rows_not_in_state_dict"]
    model.load_state_dict(states[0])
    model.load_state_dict({"0.weight": torch.full((3, D), 2.0)})
    assert torch.equal(model(torch.arange(3)), torch.full((3, D), 2.0))


def test_pretrained_rows_are_frozen_unless_they_are_not_to_be() -> None:
    rows = torch.arange(N * D, dtype=torch.float32).view(N, D)

    frozen = fleet.nn.Embedding.from_pretrained(rows)
    trained = fleet.nn.EmbeddingBag.from_pretrained(rows, freeze=False, mode="sum")

    assert torch.equal(frozen(torch.arange(N)), rows)
    assert torch.equal(trained(torch.tensor([[1, 2]])), rows[1:2] + rows[2:3])
    assert not frozen(torch.arange(N)).requires_grad
    assert trained.weight.requires_grad


def test_an_assignment_writes_rows_or_shares_a_table() -> None:
    one, other = (fleet.nn.Embedding(N, D) for _ in range(2))

    one.weight = torch.nn.Parameter(torch.full((N, D), 7.0))
    other.weight = one.weight

    assert other.table is one.table
    assert torch.equal(other(torch.arange(N)), torch.full((N, D), 7.0))
    assert isinstance(one, torch.nn.Embedding)


def test_a_copy_of_a_trained_model_is_frozen_and_its_own() -> None:
    pair = Pair()
    pair.step(lambda model: model(IDS))

    copied = copy.deepcopy(pair.fleet)
    expected = pair.fleet.state_dict()["e.weight"].clone()
    pair.step(lambda model: model(IDS))

    assert torch.equal(copied.e.weight.detach(), expected)
    assert torch.equal(copied.e(IDS), expected[IDS])
    assert not copied.e.weight.requires_grad


def test_a_copy_of_a_model_without_rows_is_trained_by_itself() -> None:
    first = fleet.nn.Embedding(N, D, initializer=fleet.nn.constant(1.0))
    model = torch.nn.ModuleList([first, copy.deepcopy(first)])
    session = Session()
    session.init(RoleMaker(distributed=False))
    session.distributed_model(model)
    optimizer = session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))

    optimizer.minimize(model[1](torch.arange(N)).sum())

    assert torch.equal(model[0](torch.arange(N)), torch.ones(N, D))
    assert torch.equal(model[1](torch.arange(N)), torch.zeros(N, D))


@pytest.mark.parametrize("decay", [None, 0.9])
def test_an_averaged_model_has_torchs_average_of_all_rows(decay: float | None) -> None:
    pair = Pair()
    averaging = None if decay is None else swa_utils.get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    averages = [swa_utils.AveragedModel(model, multi_avg_fn=averaging) for model in pair.models]

    for _ in range(3):
        pair.step(lambda model: model(IDS))
        for average, model in zip(averages, pair.models, strict=True):
            average.update_parameters(model)

    expected, found = (average.module.state_dict()["e.weight"] for average in averages)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


class _Doubled(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2


def _parametrized(embedding: fleet.nn.Embedding) -> None:
    parametrize.register_parametrization(embedding, "weight", _Doubled())
    embedding(IDS)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "a hook": lambda e: e.weight.register_hook(lambda grad: grad * 2),
    "pruning": lambda e: prune.l1_unstructured(e, "weight", 0.5),  # type: ignore[no-untyped-call]  # torch leaves it untyped
    "a parametrization": _parametrized,
    "a functional call": lambda e: torch.func.functional_call(
        e, {"weight": torch.zeros(N, D)}, (IDS,)
    ),
    "pickle": lambda e: torch.save(e, io.BytesIO()),
    "autograd.grad": lambda e: torch.autograd.grad(e(IDS).sum(), e.weight),
    "a term before the forward": lambda e: e.weight.square().sum(),
    "a step by hand": lambda e: (
        e(IDS).sum().backward(),
        torch.no_grad()(lambda: e.weight.sub_(e.weight.grad))(),
    ),
    "set_": lambda e: e.weight.data.set_(torch.zeros(N, D)),
    "another shape": lambda e: setattr(e.weight, "data", torch.zeros(N, D + 1)),
    "numbers that aren't finite": lambda e: e.weight.data.fill_(float("nan")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_for_a_table_is_refused_by_name(name: str) -> None:
    made = fleet.nn.Embedding(N, D)
    before = made(torch.arange(N)).detach().clone()

    with pytest.raises(WeightError):
        REFUSED[name](made)

    if name not in {"a parametrization", "pruning"}:
        assert torch.equal(made(torch.arange(N)), before)


@pytest.mark.parametrize("rows", [0, MAX_WHOLE_VALUES // D + 1])
def test_a_weight_that_is_no_whole_is_read_by_id_alone(rows: int) -> None:
    made = fleet.nn.Embedding(rows, D)

    with pytest.raises(WeightError, match=r"weight\[ids\]"):
        made.weight.detach().norm()
    id_ = rows - 1 if rows else 1 << 40
    assert made.weight[torch.tensor([id_])].shape == (1, D)
    assert made.weight.shape == (rows, D)


def test_an_id_outside_of_the_weight_is_said_and_the_weight_is_no_whole_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = fleet.nn.Embedding(N, D, padding_idx=N)
    made(torch.tensor([N]))  # padding has no row
    made.weight.detach().norm()

    with caplog.at_level(logging.WARNING):
        made(torch.tensor([N + 1, 2]))

    assert [each.message for each in caplog.records] == ["worker.id_outside_num_embeddings"]
    with pytest.raises(WeightError, match="were looked up"):
        made.weight.detach().norm()


TRACED: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda e: torch.vmap(e)(IDS),
    "jit.trace": lambda e: torch.jit.trace(e, (IDS,)),  # type: ignore[no-untyped-call]  # torch leaves it untyped
    "jit.script": torch.jit.script,
    "fx": torch.fx.symbolic_trace,
    "meta": lambda e: e(torch.zeros(2, dtype=torch.int64, device="meta")),
}


@pytest.mark.parametrize("name", TRACED)
@pytest.mark.filterwarnings("ignore")
def test_rows_are_not_looked_up_where_ids_have_no_values(name: str) -> None:
    with pytest.raises(UntraceableError):
        TRACED[name](fleet.nn.Embedding(N, D))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_trains_as_the_model_does() -> None:
    pair = Pair()
    compiled = torch.compile(pair.fleet, backend="eager")

    for _ in range(2):
        pair.step(lambda model: compiled(IDS) if model is pair.fleet else model(IDS))

    pair.assert_equal()


GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "rows that are masked": lambda g: g.__setitem__([1, 3], 0.0),
    "a mask of all rows": lambda g: g.mul_(torch.arange(N).unsqueeze(1) % 2),
    "noise": lambda g: g.add_(torch.linspace(-1, 1, N * D).view(N, D)),
    "clamped": lambda g: g.clamp_(-0.01, 0.01),
    "scaled": lambda g: g.mul_(0.5),
    "raised": lambda g: g.clamp_(min=0.01),
    "clipped": lambda g: torch.nn.utils.clip_grads_with_norm_([], 1.0, g.norm()),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_is_changed_as_that_of_torchs_weight(name: str) -> None:
    pair = Pair()

    for _ in range(2):
        for model in pair.models:
            model.zero_grad()
            model(IDS).backward()
            GRADIENTS[name](model.e.weight.grad)
        pair.reference.step()
        pair.optimizer.step()
        pair.optimizer.zero_grad()

    pair.assert_equal()


def test_a_gradient_is_assigned_as_that_of_torchs_weight() -> None:
    pair = Pair()
    mask = torch.arange(N).unsqueeze(1) % 2

    for model in pair.models:
        model(IDS).backward()
        weight = model.e.weight
        weight.grad += torch.linspace(-1, 1, N * D).view(N, D)
        kept = weight.grad
        weight.grad *= mask
        kept[1] = 0.5
        weight.grad = weight.grad * 2
    pair.reference.step()
    pair.optimizer.step()

    pair.assert_equal()


def test_a_gradient_is_read_as_that_of_torchs_weight() -> None:
    pair = Pair()
    for model in pair.models:
        model(IDS).backward()
    expected, found = (model.e.weight.grad for model in pair.models)

    for read in (
        lambda g: g[4],
        lambda g: g[torch.tensor([5, 0])],
        lambda g: g.mean(),
        lambda g: g.norm(dim=1),
        lambda g: g.abs().max(),
        lambda g: torch.tensor(g.shape),
        lambda g: g.to_sparse(1).to_dense(),
    ):
        torch.testing.assert_close(read(found), read(expected))


def test_the_values_of_a_state_dict_are_the_rows_as_torchs_are_the_parameters() -> None:
    pair = Pair()
    states = [model.state_dict() for model in pair.models]
    copies = [copy.deepcopy(state) for state in states]
    pair.step(lambda model: model(IDS))

    with torch.no_grad():
        for state in states:
            state["e.weight"].mul_(0.5)
            state["e.weight"][2] = 1.0
    pair.assert_equal()
    for model, state in zip(pair.models, states, strict=True):
        model.load_state_dict(state)
    pair.assert_equal()
    for model, state in zip(pair.models, copies, strict=True):
        model.load_state_dict(state)
    pair.assert_equal()
    assert type(copies[1]["e.weight"]) is torch.Tensor


def test_a_saved_state_dict_holds_plain_tensors() -> None:
    pair, file = Pair(), io.BytesIO()
    torch.save(pair.fleet.state_dict(), file)

    file.seek(0)
    loaded = torch.load(file, weights_only=True)  # noqa: TID251 - what a user does

    assert type(loaded["e.weight"]) is torch.Tensor
    pair.torch.load_state_dict(loaded)


def test_the_memory_of_a_state_dicts_rows_holds_the_rows() -> None:
    """A format of files that reads the memory of tensors itself reads no other memory."""
    made = fleet.nn.Embedding(N, D, initializer=fleet.nn.constant(2.0))
    rows = made.state_dict()["weight"]

    storage = rows.untyped_storage()

    assert storage.nbytes() == N * D * 4
    assert storage.data_ptr() == rows.data_ptr()
    read = torch.empty(0).set_(storage, rows.storage_offset(), rows.shape, rows.stride())
    assert torch.equal(read, torch.full((N, D), 2.0))


def test_a_view_of_rows_undoes_no_training() -> None:
    pair = Pair()
    heads = [model.e.weight.data[:4] for model in pair.models]
    pair.step(lambda model: model(IDS))

    for head in heads:
        head[0].zero_()

    pair.assert_equal()
    torch.testing.assert_close(heads[1] * 1, heads[0] * 1)


@pytest.mark.parametrize("index", [N, -N - 1, [0, N]])
def test_a_row_that_the_weight_has_not_is_an_index_error(index: Any) -> None:
    made = fleet.nn.Embedding(N, D)

    with pytest.raises(IndexError, match="out of bounds"):
        made.weight.data[index]
    with pytest.raises(IndexError, match="out of bounds"), torch.no_grad():
        made.weight[index] = 0.0


def test_values_beyond_float32_are_refused() -> None:
    made = fleet.nn.Embedding(N, D)

    with pytest.raises(WeightError, match="float32"):
        made.weight.data.copy_(torch.full((N, D), 1e39, dtype=torch.float64))


def test_the_mode_of_a_module_decides_nothing_but_new_rows() -> None:
    pair = Pair()
    for model in pair.models:
        model.eval()

    for _ in range(2):
        pair.step(lambda model: model(IDS))

    pair.assert_equal()
    with pytest.raises(IdError):
        pair.fleet(torch.tensor([-1]))


def test_the_padding_row_stays_zeros_and_a_write_to_it_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = fleet.nn.Embedding(N, D, padding_idx=0)

    with caplog.at_level(logging.WARNING):
        init.ones_(made.weight)
        made.weight.data.fill_(3.0)

    assert [each.message for each in caplog.records] == ["worker.padding_stays_zero"]
    rows = made.weight.detach()
    assert torch.equal(rows[0], torch.zeros(D))
    assert torch.equal(rows[1:], torch.full((N - 1, D), 3.0))


def test_gradients_without_an_optimizer_of_the_job_are_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = fleet.nn.Embedding(N, D)

    with caplog.at_level(logging.WARNING):
        made(IDS).sum().backward()

    assert "worker.rows_without_optimizer" in [each.message for each in caplog.records]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_rows_have_the_dtype_of_the_module(dtype: torch.dtype) -> None:
    made = fleet.nn.Embedding(N, D, dtype=dtype)
    moved = fleet.nn.Embedding(N, D).to(dtype)

    assert made(IDS).dtype == moved(IDS).dtype == made.weight.dtype == dtype


def test_another_optimizer_goes_on_with_the_rows_of_the_one_before() -> None:
    pair = Pair()
    pair.step(lambda model: model(IDS))
    before = pair.fleet.state_dict()["e.weight"].clone()

    session = Session()
    session.init(RoleMaker(distributed=False))
    session.distributed_optimizer(torch.optim.SGD(pair.fleet.parameters(), lr=0.1))

    assert torch.equal(pair.fleet.state_dict()["e.weight"], before)
