"""Embeddings that count shows and clicks, trained in one process."""

import dataclasses
import datetime as dt
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import paramfleet as fleet
from paramfleet.api.shrinking import Shrinking
from paramfleet.config.errors import CallOrderError
from paramfleet.config.roles import RoleMaker
from paramfleet.config.strategy import StrategyError
from paramfleet.nn import AccessorOptionError, CtrAccessor, EmbeddingOptionError, SparseRule
from paramfleet.session.session import Session
from paramfleet.tables.row_store import RowStore
from paramfleet.tables.rules import OptimizerNotServedError
from paramfleet.training.passes.running import DevicePasses

PLAIN = SparseRule("SparseNaiveSGDRule", learning_rate="optimizer")


@pytest.fixture
def session() -> Session:
    made = Session()
    made.init(RoleMaker(distributed=False))
    return made


def accessor(**options: Any) -> CtrAccessor:
    return CtrAccessor(**{"embed": PLAIN, "embedx": PLAIN, "embedx_threshold": 1.0, **options})


def trained(session: Session, module: torch.nn.Module) -> Any:
    model = session.distributed_model(module)
    optimizer = session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    session.init_worker()
    return optimizer


def rows_of(module: Any, *ids: int) -> Any:
    """Return rows with their counts, as the table has them."""
    store = module.table.source
    assert isinstance(store, RowStore)
    keys = np.array(ids, np.int64)
    return store.lookup(module.table, keys, np.array([0, len(ids)]), create=False)


def test_a_step_counts_shows_and_clicks_of_each_instance(session: Session) -> None:
    module = fleet.nn.Embedding(0, 1, accessor=accessor())
    optimizer = trained(session, module)

    ids = torch.tensor([[1, 2], [2, 3], [2, 2]])
    show, click = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.0, 1.0, 3.0])
    optimizer.minimize(module(ids, show=show, click=click).sum())

    counts = rows_of(module, 1, 2, 3)[:, :2]
    np.testing.assert_array_equal(counts, [[1, 0], [1 + 2 + 4 + 4, 1 + 3 + 3], [2, 1]])


def test_without_counts_each_id_is_shown_once(session: Session) -> None:
    module = fleet.nn.Embedding(0, 1, accessor=accessor(), padding_idx=0)
    optimizer = trained(session, module)

    optimizer.minimize(module(torch.tensor([[1, 1], [2, 0]])).sum())

    np.testing.assert_array_equal(rows_of(module, 1, 2, 0)[:, :2], [[2, 0], [1, 0], [0, 0]])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_counts_as_its_instance(session: Session, mode: str) -> None:
    module = fleet.nn.EmbeddingBag(0, 2, mode=mode, accessor=accessor())
    optimizer = trained(session, module)

    ids, offsets = torch.tensor([1, 2, 2, 3]), torch.tensor([0, 1, 1, 3])
    click = torch.tensor([1.0, 9.0, 0.0, 1.0])
    optimizer.minimize(module(ids, offsets, click=click).sum())

    np.testing.assert_array_equal(rows_of(module, 1, 2, 3)[:, :2], [[1, 1], [2, 0], [1, 1]])


def test_both_forms_train_alike(session: Session) -> None:
    click = torch.tensor([1.0, 0.0])
    found = []
    for cvm in (False, True):
        own = Session()
        own.init(RoleMaker(distributed=False))
        module = fleet.nn.Embedding(0, 2 + 2 * cvm, name="t", accessor=accessor(cvm=cvm))
        optimizer = trained(own, module)
        for _ in range(3):
            ids = torch.tensor([[1, 2], [2, 3]])
            if cvm:
                counts = torch.stack([torch.ones(2), click], dim=1)
                rows = fleet.nn.continuous_value_model(module(ids), counts, use_cvm=False)
            else:
                rows = module(ids, click=click)
            optimizer.minimize((rows * torch.arange(2)).mean() - rows.mean())
        found.append(rows_of(module, 1, 2, 3))
    del session

    np.testing.assert_array_equal(*found)
    assert found[0][:, 3].any(), "rows with a click have grown"


def test_gradients_are_sums_over_instances(session: Session) -> None:
    module = fleet.nn.Embedding(0, 1, accessor=accessor())
    optimizer = trained(session, module)

    optimizer.minimize(module(torch.tensor([1, 1, 2, 3])).mean())

    np.testing.assert_allclose(rows_of(module, 1, 2)[:, 2], [-0.5 * 2, -0.5], atol=2e-4)


def test_with_grad_scale_mean_they_are_as_autograd_made_them(session: Session) -> None:
    module = fleet.nn.Embedding(0, 1, accessor=accessor(grad_scale="mean"))
    optimizer = trained(session, module)

    optimizer.minimize(module(torch.tensor([1, 1, 2, 3])).mean())

    np.testing.assert_allclose(rows_of(module, 1, 2)[:, 2], [-0.25, -0.125], atol=2e-4)


def test_lookups_of_one_step_are_added_up(session: Session) -> None:
    module = fleet.nn.Embedding(0, 1, accessor=accessor())
    optimizer = trained(session, module)

    first = module(torch.tensor([1, 2, 3, 4]), click=torch.ones(4)).mean()
    second = module(torch.tensor([4, 1])).mean()
    optimizer.minimize(first + second)

    expected = np.array([[2, 1, -1], [1, 1, -0.5], [2, 1, -1]])
    np.testing.assert_allclose(rows_of(module, 1, 2, 4), expected, atol=2e-4)


def test_clipping_leaves_counts_as_they_are(session: Session) -> None:
    module = fleet.nn.Embedding(0, 1, accessor=accessor())
    optimizer = trained(session, module)

    module(torch.tensor([1, 1, 1])).sum().backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1e-3)
    optimizer.step()

    row = rows_of(module, 1)[0]
    assert row[0] == 3
    assert abs(row[2]) < 0.01


def test_evaluation_makes_no_rows_and_counts_nothing(session: Session) -> None:
    module = fleet.nn.Embedding(0, 3, accessor=accessor())
    trained(session, module)
    module.eval()

    assert not module(torch.tensor([1, 2])).any()
    assert module.table.source.num_rows == 0  # type: ignore[attr-defined]  # a RowStore


def test_the_cvm_operator_has_fleets_numbers() -> None:
    rows = torch.tensor([[3.0, 1.0, 0.5], [0.0, 0.0, -1.0]], requires_grad=True)
    cvm = torch.tensor([[1.0, 1.0], [2.0, 0.0]])

    made = fleet.nn.continuous_value_model(rows, cvm)
    made.sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    log = np.log
    expected = [[log(4), log(2) - log(4), 0.5], [0, 0, -1]]
    np.testing.assert_allclose(made.detach(), expected, rtol=1e-6)
    assert rows.grad is not None
    np.testing.assert_array_equal(rows.grad, [[1, 1, 1], [2, 0, 1]])


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: SparseRule("SparseAdagradSGDRule"), "rule"),
        (lambda: SparseRule(initial_g2sums=1.0), "initial_g2sums"),
        (lambda: SparseRule(learning_rate="adam"), "learning_rate"),
        (lambda: SparseRule(weight_bounds=3), "weight_bounds"),
        (lambda: CtrAccessor(embed="adagrad"), "embed"),  # type: ignore[arg-type]  # a mistake
        (lambda: CtrAccessor(nonclk_coeff=float("nan")), "nonclk_coeff"),
        (lambda: CtrAccessor(embedx=SparseRule(weight_bounds=(1, -1))), "embedx_max_bound"),
    ],
)
def test_a_wrong_option_is_named(make: Any, option: str) -> None:
    with pytest.raises(AccessorOptionError) as raised:
        make()
    assert raised.value.option == option


def test_a_misspelt_rule_is_told_the_nearest() -> None:
    with pytest.raises(AccessorOptionError, match="did you mean SparseAdaGradSGDRule"):
        SparseRule("SparseAdagradSGDRule")


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"storage": "float16"}, "storage"),
        ({"embedding_dim": 2, "accessor": accessor(cvm=True)}, "embedding_dim"),
        ({"accessor": "ctr"}, "accessor"),
    ],
)
def test_a_table_that_can_have_none_says_so(options: Any, option: str) -> None:
    given = {"embedding_dim": 3, "accessor": accessor(), **options}
    with pytest.raises(EmbeddingOptionError) as raised:
        fleet.nn.Embedding(0, **given)
    assert raised.value.option == option


@pytest.mark.parametrize(
    ("counts", "option"),
    [
        ({"show": torch.tensor([1.0, 0.0])}, "show"),
        ({"click": torch.tensor([1.0, -1.0])}, "click"),
        ({"show": torch.tensor([1.0, float("nan")])}, "show"),
        ({"show": torch.ones(3)}, "show"),
    ],
)
def test_wrong_counts_are_named(session: Session, counts: Any, option: str) -> None:
    module = fleet.nn.Embedding(0, 3, accessor=accessor())
    trained(session, module)

    with pytest.raises(AccessorOptionError) as raised:
        module(torch.tensor([[1], [2]]), **counts)
    assert raised.value.option == option


def test_counts_need_an_accessor() -> None:
    with pytest.raises(EmbeddingOptionError, match="needs a table with an accessor"):
        fleet.nn.Embedding(0, 3)(torch.tensor([1]), click=torch.ones(1))


def test_rows_with_cvm_must_go_through_the_operator(session: Session) -> None:
    module = fleet.nn.Embedding(0, 3, accessor=accessor(cvm=True))
    optimizer = trained(session, module)
    with pytest.raises(AccessorOptionError, match=r"by fleet\.nn\.continuous_value_model"):
        module(torch.tensor([1]), click=torch.ones(1))

    module(torch.tensor([1]))[:, 2].sum().backward()
    with pytest.raises(AccessorOptionError, match="0 or less for 1 rows of table"):
        optimizer.step()
    assert module.table.source.num_rows == 0  # type: ignore[attr-defined]  # a RowStore


def test_modules_that_share_a_table_share_its_accessor(session: Session) -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = fleet.nn.Embedding(0, 3, name="t", accessor=accessor())
            self.b = fleet.nn.EmbeddingBag(0, 3, name="t", accessor=accessor(click_coeff=2.0))

    with pytest.raises(EmbeddingOptionError, match="has another one by another module"):
        trained(session, Two())


def test_an_optimizer_that_maximizes_is_refused(session: Session) -> None:
    module = session.distributed_model(fleet.nn.Embedding(0, 3, accessor=accessor()))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, maximize=True)
    with pytest.raises(OptimizerNotServedError, match="has an accessor"):
        session.distributed_optimizer(optimizer)


def _lookup(module: Any, batch: torch.Tensor) -> list[Any]:
    return [(module, batch)]


@pytest.mark.parametrize("cvm", [False, True])
@pytest.mark.parametrize("grad_scale", ["show", "mean"])
def test_a_pass_on_a_device_trains_to_the_bits_of_training_without(
    grad_scale: str, cvm: bool
) -> None:
    draw = np.random.default_rng(3)
    batches = [torch.from_numpy(draw.integers(0, 20, (4, 2))) for _ in range(8)]
    found = []
    for by_pass in (False, True):
        session = Session()
        session.init(RoleMaker(distributed=False))
        kind = accessor(cvm=cvm, grad_scale=grad_scale, embedx_threshold=2.0)
        module = fleet.nn.Embedding(0, 4 + 2 * cvm, name="t", accessor=kind)
        optimizer = trained(session, module)
        passes = DevicePasses(optimizer.running.passes, device=torch.device("cpu"))
        shrinking = Shrinking(session)
        feed: Any = batches
        if by_pass:
            feed = passes.run(batches, partial(_lookup, module))
        for number, ids in enumerate(feed):
            shrinking.set_date(f"202611{number + 1:02}")
            counts = torch.stack([1.0 + ids[:, 0] % 3, (ids[:, 1] % 2).float()], dim=1)
            if cvm:
                rows = fleet.nn.continuous_value_model(module(ids), counts)
            else:
                rows = module(ids, show=counts[:, 0], click=counts[:, 1])
            optimizer.minimize((rows * rows - rows).mean())
        found.append(rows_of(module, *range(20)))
        assert shrinking.shrink(dry_run=True).keys() == {"t"}

    np.testing.assert_array_equal(*found)
    grown = found[0][:, 3] != 0
    assert 0 < grown.sum() < len(grown)


def test_rows_expire_by_the_date_and_a_dry_run_counts_them(session: Session) -> None:
    module = fleet.nn.Embedding(0, 1, name="t", accessor=accessor(delete_threshold=0.15))
    plain = fleet.nn.Embedding(0, 1, name="plain")
    optimizer = trained(session, torch.nn.ModuleList([module, plain]))
    shrinking = Shrinking(session)

    def train(*ids: int) -> None:
        used = torch.tensor(ids)
        optimizer.minimize((module(used, show=2 * torch.ones(len(ids))) + plain(used)).sum())

    shrinking.set_date("20261101")
    train(1, 2)
    assert shrinking.shrink() == {"t": 0}
    shrinking.set_date(dt.date(2026, 11, 20))  # .2 fades to .136
    train(2, 3)

    assert shrinking.shrink(dry_run=True) == {"t": 1}
    assert shrinking.shrink("t") == {"t": 1}
    assert rows_of(module, 1, 2, 3)[:, 0].tolist() == [0, pytest.approx(3.362, abs=1e-3), 2]
    assert plain.table.source.num_rows == 3  # type: ignore[attr-defined]  # a RowStore


@pytest.mark.parametrize("date", ["2026-11-26", "", "19700101", "99991231", 20261126, None])
def test_what_is_no_date_is_named(session: Session, date: Any) -> None:
    trained(session, fleet.nn.Embedding(0, 1, accessor=accessor()))
    with pytest.raises(AccessorOptionError) as raised:
        Shrinking(session).set_date(date)
    assert raised.value.option == "date"


def test_a_table_without_an_accessor_does_not_shrink(session: Session) -> None:
    trained(session, fleet.nn.Embedding(0, 1, name="plain"))
    assert Shrinking(session).shrink() == {}
    with pytest.raises(
        AccessorOptionError, match="no eviction_configs; these tables have: none"
    ):
        Shrinking(session).shrink("plain")


def test_gradients_that_wait_are_stepped_before_rows_go(session: Session) -> None:
    module = fleet.nn.Embedding(0, 1, name="t", accessor=accessor())
    trained(session, module)
    module(torch.tensor([1])).sum().backward()

    with pytest.raises(CallOrderError):
        Shrinking(session).shrink()


def described(session: Session, module: torch.nn.Module, **keys: Any) -> Any:
    """Train a module whose table "t" Fleet's keys describe."""
    model = session.distributed_model(module)
    strategy = fleet.DistributedStrategy()
    strategy.fleet_desc_configs = {"t": keys}
    inner = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = session.distributed_optimizer(inner, strategy)
    session.init_worker()
    return optimizer


@pytest.mark.parametrize("cvm", [False, True])
def test_fleets_keys_train_as_the_accessor_that_they_describe(cvm: bool) -> None:
    found = []
    for by_keys in (False, True):
        own, session = CtrAccessor(embedx_threshold=1.0, cvm=cvm), Session()
        session.init(RoleMaker(distributed=False))
        options = {} if by_keys else {"accessor": own}
        module = fleet.nn.Embedding(0, 5, name="t", **options)  # type: ignore[arg-type]  # one
        if by_keys:
            keys = {"sparse_embedx_threshold": 1.0, "use_cvm": cvm}
            optimizer = described(session, module, **keys, sparse_embedx_dim=4 - 2 * cvm)
        else:
            optimizer = trained(session, module)
        counts = torch.tensor([[1.0, 1.0], [2.0, 0.0]])
        for _ in range(3):
            used = torch.tensor([3, 4])
            if cvm:
                rows = fleet.nn.continuous_value_model(module(used), counts)
            else:
                rows = module(used, show=counts[:, 0], click=counts[:, 1])
            optimizer.minimize(rows.square().mean())
        found.append(rows_of(module, 3, 4))
    np.testing.assert_array_equal(*found)
    assert found[0][:, 0].tolist() == [3, 6]


@pytest.mark.parametrize(
    ("options", "keys", "match"),
    [
        ({"name": "tt"}, {}, "did you mean 'tt'"),
        ({"accessor": accessor()}, {}, "an accessor of its own"),
        ({"storage": "bfloat16"}, {}, "must be float32"),
        ({}, {"sparse_embedx_dim": 9}, "have 2 weights after the first one, not 9"),
    ],
)
def test_keys_that_do_not_fit_the_table_are_named(
    session: Session, options: Any, keys: Any, match: str
) -> None:
    module = fleet.nn.Embedding(0, 5, **{"name": "t", **options})
    with pytest.raises(StrategyError, match=match):
        described(session, module, **keys)


def test_a_table_that_was_looked_up_keeps_its_columns(session: Session) -> None:
    module = fleet.nn.Embedding(0, 5, name="t")
    module(torch.tensor([1]))
    with pytest.raises(StrategyError, match="looked up before"):
        described(session, module)


def test_keys_leave_first_values_that_the_model_said(session: Session) -> None:
    start = fleet.nn.uniform(2.0, 3.0)
    module = fleet.nn.Embedding(0, 5, name="t", initializer=start)
    described(session, module, sparse_accessor_class="SparseAccessor")
    assert module.table.initializer.low == 2.0


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(AccessorOptionError, match="did you mean embedx_threshold") as caught:
        CtrAccessor(embedx_treshold=3)  # type: ignore[call-arg]

    assert caught.value.option == "embedx_treshold"
    assert dataclasses.replace(CtrAccessor(cvm=True), click_coeff=2.0).cvm


def test_a_name_of_fleet_that_is_not_here_says_what_is_used() -> None:
    with pytest.raises(AttributeError, match=r"CtrAccessor.*click="):
        _ = fleet.nn.ShowClickEntry  # type: ignore[attr-defined]
