"""The embeddings against torch's own, trained in one process."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.nn import EmbeddingOptionError, IdError
from paramfleet.session.session import Session, TableConflictError
from paramfleet.tables.combined import CombinedError
from paramfleet.tables.row_store import RowStore
from paramfleet.tables.rules import OptimizerNotServedError
from paramfleet.telemetry.examples_count import ExampleCounter
from paramfleet.training.modes.base import GradientError, TableSharedLateError
from paramfleet.training.optimizer import NotAnOptimizerError

NUM, DIM = 50, 4


@pytest.fixture
def session() -> Session:
    made = Session()
    made.init(RoleMaker(distributed=False))
    return made


def twin(module: fleet.nn.Embedding | fleet.nn.EmbeddingBag) -> torch.Tensor:
    """Return the rows of ids 0 .. NUM - 1, as a table that torch can hold."""
    source = fleet.nn.Embedding(NUM, DIM, name=module.table.name).eval()
    with torch.no_grad():
        found: torch.Tensor = source(torch.arange(NUM))
    return found


@settings(max_examples=25)
@given(st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=12))
def test_any_id_has_a_row_that_depends_on_nothing_else(ids: list[int]) -> None:
    one = fleet.nn.Embedding(1, DIM, name="same")
    other = fleet.nn.Embedding(1, DIM, name="same")

    forward = one(torch.tensor(ids))
    backward = other(torch.tensor(ids[::-1])).flip(0)

    assert forward.shape == (len(ids), DIM)
    assert torch.equal(forward, backward)


def test_the_seed_and_the_name_change_the_rows() -> None:
    ids = torch.arange(8)
    rows = [
        fleet.nn.Embedding(8, DIM, name=name, seed=seed)(ids)
        for name, seed in (("a", 0), ("b", 0), ("a", 1))
    ]

    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def test_evaluation_makes_no_rows() -> None:
    module = fleet.nn.Embedding(8, DIM, name="t").eval()
    before = module(torch.arange(5))

    module.train()
    assert torch.equal(before, module(torch.arange(5)))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_is_torchs_bag(mode: str) -> None:
    bag = fleet.nn.EmbeddingBag(NUM, DIM, mode=mode, name="bag")
    ids = torch.randint(0, NUM, (6, 3), generator=torch.Generator().manual_seed(0))
    reference = torch.nn.functional.embedding_bag(ids, twin(bag), mode=mode)

    assert torch.allclose(bag(ids), reference)
    offsets = torch.arange(0, ids.numel(), 3)
    assert torch.allclose(bag(ids.flatten(), offsets), reference)
    with_last = fleet.nn.EmbeddingBag(NUM, DIM, mode=mode, name="bag", include_last_offset=True)
    last = torch.cat([offsets, torch.tensor([ids.numel()])])
    assert torch.allclose(with_last(ids.flatten(), last), reference)


def test_a_bag_weighs_its_samples() -> None:
    bag = fleet.nn.EmbeddingBag(NUM, DIM, mode="sum", name="bag")
    ids, weights = torch.tensor([[1, 2], [3, 3]]), torch.tensor([[0.5, 2.0], [1.0, -1.0]])

    found = bag(ids, per_sample_weights=weights)

    assert torch.allclose(found[1], torch.zeros(DIM))
    assert torch.allclose(found[0], 0.5 * twin(bag)[1] + 2.0 * twin(bag)[2])


@pytest.mark.parametrize("padding_idx", [-1, 0, 7])
def test_the_padding_id_reads_as_zeros_and_learns_nothing(padding_idx: int) -> None:
    module = fleet.nn.Embedding(NUM, DIM, padding_idx=padding_idx, name="p")
    bag = fleet.nn.EmbeddingBag(NUM, DIM, mode="mean", padding_idx=padding_idx, name="p")
    ids = torch.tensor([[padding_idx, 3], [padding_idx, padding_idx]])

    rows = module(ids)
    rows.sum().backward()

    assert torch.equal(rows[0, 0], torch.zeros(DIM))
    assert torch.equal(rows[1], torch.zeros(2, DIM))
    pending = module.table.pending()
    assert pending is not None
    assert pending.ids.tolist() == [3]
    assert torch.allclose(bag(ids)[0], rows[0, 1]), "padding doesn't count in a mean"


@pytest.mark.parametrize("kind", [fleet.nn.Embedding, fleet.nn.EmbeddingBag])
def test_hashes_above_two_to_the_63_are_ids_where_that_is_said(kind: Any) -> None:
    hashes = torch.tensor([[-1, 1], [-(2**63), 2**63 - 1]])  # 2**64 - 1, 1, 2**63, 2**63 - 1
    one = fleet.nn.constant(1.0)

    with pytest.raises(IdError, match="hashes of 64 bits, make the module with negative_ids"):
        kind(NUM, DIM)(hashes)
    looked_up = kind(NUM, DIM, initializer=one, padding_idx=-1, negative_ids=True)(hashes)

    zeros = (looked_up == 0).all(-1)
    assert zeros.tolist() == (
        [[True, False], [False, False]] if zeros.ndim == 2 else [False] * 2
    )


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([1, -5, -5]), "2 negative ids, the first -5 at position 1"),
        (torch.tensor([1.0]), "dtype torch.float32: ids must be int64 or int32$"),
        (
            torch.tensor([1], dtype=torch.uint64),
            r"uint64: .* view\(torch.int64\), which keeps the bits",
        ),
        (torch.tensor([True]), "dtype torch.bool"),
    ],
)
def test_what_is_no_id_is_refused_by_table_and_place(ids: torch.Tensor, message: str) -> None:
    with pytest.raises(IdError, match=message) as caught:
        fleet.nn.Embedding(NUM, DIM, padding_idx=-1, name="users")(ids)

    assert "users" in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fleet.nn.Embedding(5, 4, max_norm=1.0),
        lambda: fleet.nn.Embedding(5, 4, scale_grad_by_freq=True),
        lambda: fleet.nn.Embedding(5, 0),
        lambda: fleet.nn.Embedding(5, 4, storage="int8"),  # type: ignore[arg-type]
        lambda: fleet.nn.EmbeddingBag(5, 4, rounding="up"),  # type: ignore[arg-type]
        lambda: fleet.nn.EmbeddingBag(5, 4, mode="median"),
    ],
)
def test_an_option_that_tables_do_not_have_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(EmbeddingOptionError):
        make()


@pytest.mark.parametrize("kind", [fleet.nn.Embedding, fleet.nn.EmbeddingBag])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"initializer": "normal"}, r"initializer='normal': must be made by fleet\.nn\.normal"),
        ({"initializer": torch.nn.init.normal_}, r"initializer=<function .*fleet\.nn\.uniform"),
        ({"initializer": fleet.nn.normal}, r"initializer=<function .*fleet\.nn\.constant"),
        ({"initializer": 0.0}, "initializer=0.0: must be"),
        ({"embedding_dim": "8"}, "embedding_dim='8': must be a whole number"),
        ({"embedding_dim": 8.0}, "embedding_dim=8.0: must be a whole number"),
        ({"embedding_dim": None}, "embedding_dim=None: must be a whole number"),
        ({"padding_idx": "0"}, "padding_idx='0': must be a whole number"),
        ({"seed": "one"}, "seed='one': must be a whole number"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_may_be_given(
    kind: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(EmbeddingOptionError, match=says):
        kind(**{"num_embeddings": 0, "embedding_dim": 4, **options})


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_lookup_without_gradients_creates_no_rows(without: Any) -> None:
    table = fleet.nn.Embedding(0, DIM, name="rows")
    with without():
        first = table(torch.arange(3))

    source = table.table.source
    assert isinstance(source, RowStore)
    assert source.num_rows == 0
    assert torch.equal(table(torch.arange(3)), first)
    assert source.num_rows == 3


def test_a_frozen_table_creates_no_rows() -> None:
    table = fleet.nn.Embedding(0, DIM)
    table.weight.requires_grad_(False)

    table(torch.arange(3))

    source = table.table.source
    assert isinstance(source, RowStore)
    assert source.num_rows == 0


def test_whole_numbers_of_numpy_are_taken() -> None:
    made = fleet.nn.Embedding(0, np.int64(4), padding_idx=np.int32(0))  # type: ignore[arg-type]  # index of torch takes them

    assert type(made.table.dim) is int
    assert made(torch.tensor([0, 1])).shape == (2, 4)


def test_modules_of_one_name_share_rows_and_gradients(session: Session) -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = fleet.nn.Embedding(5, 2, name="shared")
            self.right = fleet.nn.Embedding(5, 2, name="shared")

    model = session.distributed_model(Both())
    (
        model.left(torch.tensor([1, 2])).sum() + model.right(torch.tensor([2, 3])).sum()
    ).backward()

    pending = model.left.table.pending()
    assert pending is not None
    assert dict(zip(pending.ids.tolist(), pending.values[:, 0].tolist(), strict=True)) == {
        1: 1.0,
        2: 2.0,
        3: 1.0,
    }


def test_one_name_with_two_widths_is_refused(session: Session) -> None:
    model = torch.nn.ModuleList(
        [fleet.nn.Embedding(5, 2, name="t"), fleet.nn.Embedding(5, 3, name="t")]
    )

    with pytest.raises(TableConflictError, match="'t' is declared twice"):
        session.distributed_model(model)


OPTIMIZERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.5), lambda p: torch.optim.SGD(p, lr=0.5)),
    "adagrad": (
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    ),
    "adam": (
        lambda p: torch.optim.Adam(p, lr=0.05),
        lambda p: torch.optim.SparseAdam(p, lr=0.05),
    ),
}


def batches() -> Iterator[torch.Tensor]:
    ids = torch.Generator().manual_seed(3)
    for _ in range(25):
        yield torch.randint(0, NUM, (16,), generator=ids)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_alone_rows_train_as_torchs_sparse_embedding(session: Session, name: str) -> None:
    ours, theirs = OPTIMIZERS[name]
    model = session.distributed_model(fleet.nn.Embedding(NUM, DIM, name=name))
    reference = torch.nn.Embedding(NUM, DIM, sparse=name == "adam")
    with torch.no_grad():
        reference.weight.copy_(twin(model))
    optimizer = session.distributed_optimizer(ours(model.parameters()))
    expected = theirs(reference.parameters())

    for ids in batches():
        optimizer.minimize(model(ids).pow(2).sum())
        expected.zero_grad()
        reference(ids).pow(2).sum().backward()
        expected.step()

    rows = model.eval()(torch.arange(NUM))
    assert torch.allclose(rows, reference.weight, atol=1e-6)


@pytest.mark.parametrize("steps_between", [1, 3])
def test_gradients_accumulate_over_several_backwards(
    session: Session, steps_between: int
) -> None:
    model = session.distributed_model(fleet.nn.Embedding(NUM, DIM, name="acc"))
    reference = torch.nn.Embedding(NUM, DIM)
    with torch.no_grad():
        reference.weight.copy_(twin(model))
    optimizer = session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    expected = torch.optim.SGD(reference.parameters(), lr=0.1)

    for number, ids in enumerate(batches()):
        model(ids).pow(2).sum().backward()
        reference(ids).pow(2).sum().backward()
        if number % steps_between == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            expected.step()
            expected.zero_grad()

    assert torch.allclose(model.eval()(torch.arange(NUM)), reference.weight, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Adadelta,
     torch.optim.Rprop, torch.optim.Adamax, torch.optim.RAdam],
)  # fmt: skip
def test_any_elementwise_optimizer_steps_rows(session: Session, make: Any) -> None:
    """With every row in every batch the lazy variant is torch's dense one."""
    model = session.distributed_model(fleet.nn.Embedding(NUM, DIM, name="any"))
    reference = torch.nn.Embedding(NUM, DIM)
    with torch.no_grad():
        reference.weight.copy_(twin(model))
    optimizer = session.distributed_optimizer(make(model.parameters(), lr=0.01))
    expected = make(reference.parameters(), lr=0.01)
    order = torch.Generator().manual_seed(0)

    for _ in range(12):
        ids = torch.randperm(NUM, generator=order)
        optimizer.minimize((model(ids) - 1).pow(2).sum())
        expected.zero_grad()
        (reference(ids) - 1).pow(2).sum().backward()
        expected.step()

    assert torch.allclose(model.eval()(torch.arange(NUM)), reference.weight, atol=1e-5)


def test_adam_on_rows_follows_its_options(session: Session) -> None:
    model = session.distributed_model(fleet.nn.Embedding(NUM, DIM, name="up"))
    reference = torch.nn.Embedding(NUM, DIM, sparse=True)
    with torch.no_grad():
        reference.weight.copy_(twin(model))
    inner = torch.optim.Adam(model.parameters(), lr=0.05, maximize=True)
    optimizer = session.distributed_optimizer(inner)
    expected = torch.optim.SparseAdam(reference.parameters(), lr=0.05, maximize=True)

    for number, ids in enumerate(batches()):
        betas = (0.9, 0.999) if number < 10 else (0.5, 0.99)
        optimizer.param_groups[0]["betas"] = betas
        expected.param_groups[0]["betas"] = betas
        optimizer.minimize(model(ids).sum())
        expected.zero_grad()
        reference(ids).sum().backward()
        expected.step()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    assert torch.allclose(model.eval()(torch.arange(NUM)), reference.weight, atol=1e-6)


def test_what_adam_does_not_do_on_rows_is_refused(session: Session) -> None:
    model = session.distributed_model(fleet.nn.Embedding(NUM, DIM, name="refused"))

    with pytest.raises(OptimizerNotServedError) as caught:
        session.distributed_optimizer(torch.optim.Adam(model.parameters(), amsgrad=True))
    assert "or train in geo mode" not in str(caught.value), "one process trains as GEO does"


@pytest.mark.parametrize(
    ("made", "got"),
    [
        ([], "an empty list"),
        ((), "an empty tuple"),
        ([torch.nn.Linear(1, 1)], "Linear"),
        (None, "NoneType"),
        (torch.nn.Linear(1, 1), "Linear"),
        ({}, "dict"),
    ],
)
def test_what_is_no_optimizer_is_refused(session: Session, made: Any, got: str) -> None:
    with pytest.raises(NotAnOptimizerError, match=f"and not {got}$"):
        session.distributed_optimizer(made)


def test_optimizers_that_share_a_table_are_named(session: Session) -> None:
    model = session.distributed_model(fleet.nn.Embedding(NUM, DIM, name="both"))
    optimizers = [
        each(model.parameters(), lr=0.1) for each in (fleet.optim.FTRL, torch.optim.SGD)
    ]

    with pytest.raises(CombinedError, match=r"0 \(FTRL\) and 1 \(SGD\) both .* table 'both'"):
        session.distributed_optimizer(optimizers)


def test_a_table_that_the_optimizer_lacks_is_named_alone_too(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    model = session.distributed_model(
        torch.nn.ModuleDict({"w": fleet.nn.Embedding(5, 2), "d": torch.nn.Linear(2, 1)})
    )
    session.distributed_optimizer(torch.optim.SGD(model["d"].parameters(), lr=0.1))

    session.init_worker()

    (record,) = [each for each in caplog.records if each.message == "worker.table_not_trained"]
    assert record.__dict__["table"] == "w"
    assert "A job has one optimizer" in record.__dict__["reason"]


def test_parameters_that_the_optimizer_lacks_are_named(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    rows, wide, deep = fleet.nn.Embedding(5, 2), torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    frozen = torch.nn.Linear(2, 1).requires_grad_(False)
    parts = {"rows": rows, "wide": wide, "deep": deep, "frozen": frozen}
    session.distributed_model(torch.nn.ModuleDict(parts))
    session.distributed_optimizer(
        [
            torch.optim.Adagrad(rows.parameters()),
            fleet.optim.FTRL([{"params": [wide.weight]}, {"params": [deep.bias]}]),
        ]
    )

    session.init_worker()

    (record,) = caplog.records
    assert record.message == "worker.parameters_not_trained"
    assert record.__dict__["parameters"] == ["wide.bias", "deep.weight"]
    assert "requires_grad=False" in record.__dict__["reason"]


def test_an_optimizer_made_before_tables_are_shared_is_refused(session: Session) -> None:
    model = torch.nn.ModuleList(
        [fleet.nn.Embedding(5, 2, name="s"), fleet.nn.Embedding(5, 2, name="s")]
    )
    early = torch.optim.SGD(model.parameters(), lr=0.1)

    with pytest.raises(TableSharedLateError, match="before making the optimizer"):
        session.distributed_optimizer(early)


@pytest.mark.parametrize("zeroed", ["optimizer", "model"])
def test_zero_grad_lets_the_rows_of_the_batch_go(session: Session, zeroed: str) -> None:
    model = session.distributed_model(fleet.nn.Embedding(NUM, DIM, name="go"))
    optimizer = session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    for ids in batches():
        model(ids).sum().backward()
        optimizer.step()
        (optimizer if zeroed == "optimizer" else model).zero_grad(set_to_none=False)

    assert model.table.pending() is None


@pytest.mark.parametrize(
    ("batch", "examples"),
    [
        (torch.zeros(6, 2), 6),
        ({"ids": torch.zeros(4, 3), "x": torch.zeros(9)}, 4),
        ([torch.tensor(1.0), (torch.zeros(3),)], 3),
        ("nothing", 1),
    ],
)
def test_a_batchs_examples_are_counted_in_any_container(batch: Any, examples: int) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def forward(self, batch: Any) -> torch.Tensor:
            del batch
            return self.scale * 2

    counter, model = ExampleCounter(), Model().eval()
    counter.watch(model)

    model(batch).backward()
    assert counter.take() == examples, "the mode of a module doesn't matter"
    model(batch)
    with torch.no_grad():
        model(batch)
    assert counter.take() == 1, "a forward without a gradient doesn't count"


def test_a_not_finite_gradient_changes_nothing(session: Session) -> None:
    model = session.distributed_model(fleet.nn.Embedding(NUM, DIM, name="nan"))
    optimizer = session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    before = model(torch.arange(NUM)).detach()

    with pytest.raises(GradientError, match="'nan'"):
        optimizer.minimize((model(torch.arange(NUM)) * float("nan")).sum())

    optimizer.zero_grad()
    assert np.array_equal(model(torch.arange(NUM)).detach(), before)
