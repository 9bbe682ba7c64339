"""Fleet's keys of tables mean accessors."""

from typing import Any

import pytest

from paramfleet.config.accessor import CtrAccessor, SparseRule
from paramfleet.config.fleet_tables import accessors_of
from paramfleet.config.strategy import DistributedStrategy, StrategyError

# As in Fleet's guides and PaddleRec's config_online.yaml.

DESC = {
    "sparse_table_class": "DownpourSparseTable",
    "sparse_accessor_class": "DownpourCtrAccessor",
    "sparse_shard_num": 1000,
    "sparse_compress_in_save": True,
    "sparse_embedx_dim": 8,
    "sparse_fea_dim": 11,
    "sparse_embedx_threshold": 5,
    "sparse_nonclk_coeff": 0.2,
    "sparse_base_threshold": 2.5,
    "sparse_delta_keep_days": 16,
    "sparse_optimizer": "adagrad",
    "sparse_learning_rate": 0.1,
    "sparse_weight_bounds": [-5.0, 5.0],
    "embedx_sparse_optimizer": "adam",
    "embedx_sparse_beta1_decay_rate": 0.8,
}
NESTED = {
    "shard_num": 10,
    "accessor": {
        "accessor_class": "SparseAccessor",
        "fea_dim": 11,
        "embedx_dim": 8,
        "embedx_threshold": 10,
        "ctr_accessor_param": {
            "nonclk_coeff": 0.1,
            "click_coeff": 1.0,
            "base_threshold": 1.5,
            "delta_threshold": 0.5,
            "delta_keep_days": 16,
            "delete_threshold": 0.5,
            "ssd_unseenday_threshold": 1,
            "show_scale": False,
        },
        "embed_sgd_param": {
            "name": "SparseAdaGradSGDRule",
            "adagrad": {"learning_rate": 0.2, "initial_g2sum": 2.0, "weight_bounds": [-1, 1]},
        },
        "embedx_sgd_param": {"name": "SparseNaiveSGDRule", "naive": {"learning_rate": 0.3}},
    },
}


def test_keys_of_one_level_make_an_accessor() -> None:
    (made,) = accessors_of({"t": DESC}, {}).values()

    assert made.embedx_dim == 8
    both: dict[str, Any] = {"learning_rate": 0.1, "weight_bounds": (-5.0, 5.0)}
    assert made.accessor == CtrAccessor(
        embedx_threshold=5,
        nonclk_coeff=0.2,
        base_threshold=2.5,
        cvm=True,
        embed=SparseRule("SparseAdaGradSGDRule", **both),
        embedx=SparseRule("SparseAdamSGDRule", beta1_decay_rate=0.8, **both),
    )


def test_nested_keys_make_an_accessor() -> None:
    (made,) = accessors_of({}, {"t": NESTED}).values()

    assert made.accessor == CtrAccessor(
        embedx_threshold=10,
        delete_threshold=0.5,
        delta_threshold=0.5,
        show_scale=False,
        embed=SparseRule(learning_rate=0.2, initial_g2sum=2.0, weight_bounds=(-1, 1)),
        embedx=SparseRule("SparseNaiveSGDRule", learning_rate=0.3),
    )


def test_what_is_not_said_has_the_defaults_of_accessors_whatever_else_is() -> None:
    found = accessors_of({"a": {}, "b": {"use_cvm": False}}, {"c": {"accessor": {}}})
    assert found["a"].accessor == found["c"].accessor == CtrAccessor(cvm=True)
    assert found["b"].accessor == CtrAccessor()
    unit = accessors_of({"d": {"sparse_accessor_class": "DownpourUnitAccessor"}}, {})
    assert unit["d"].accessor == CtrAccessor(cvm=True, show_scale=False)


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"sparse_embedx_treshold": 1}, "did you mean 'sparse_embedx_threshold'"),
        ({"embedx_threshold": 1}, "did you mean 'sparse_embedx_threshold'"),
        ({7: 1}, "unknown"),
        ({"sparse_accessor_class": "DownpourCtrAcessor"}, "did you mean DownpourCtrAccessor"),
        ({"sparse_accessor_class": ["x"]}, "must be one of"),
        ({"sparse_optimizer": "adagradd"}, "must be one of"),
        ({"sparse_optimizer": []}, "must be one of"),
        ({"sparse_delta_threshold": [0.25]}, "must be a number"),
        ({"sparse_delta_keep_days": -1}, "must be"),
        ({"sparse_load_filter_slots": 3}, "slots of rows"),
        ({"sparse_embedx_dim": "8", "sparse_fea_dim": 11}, "must be a whole number"),
        ({"sparse_embedx_dim": [8]}, "must be a whole number"),
        ({"sparse_initial_range": "far"}, "must be a number"),
        ({"sparse_load_filter_slots": [3]}, "slots of rows"),
        ({"sparse_table_class": "DownpourSparseSSDTable"}, "rows are in memory"),
        ({"sparse_fea_dim": 10, "sparse_embedx_dim": 8}, r"must be embedx_dim \+ 3"),
        ({"sparse_nonclk_coeff": "much"}, r"'sparse_nonclk_coeff'\] = 'much': must be a num"),
        ({"sparse_learning_rate": "fast"}, 'number or "optimizer"'),
        ({"sparse_show_click_decay_rate": 2.0}, "decay_rate"),
        ({"sparse_optimizer": "naive", "sparse_initial_g2sum": 1}, "no such constant"),
    ],
)
def test_what_can_not_be_is_named(keys: Any, match: str) -> None:
    strategy = DistributedStrategy()
    with pytest.raises(StrategyError, match=match) as raised:
        strategy.fleet_desc_configs = {"t": keys}
    assert raised.value.key.startswith("fleet_desc_configs['t']")
    assert strategy.fleet_desc_configs == {}


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (7, "must be a dict"),
        ({"t": 7}, "must be a dict of a table's keys"),
        ({7: {}}, "must be a dict of a table's keys"),
        ({"t": {"accessor": {"embed_sgd_param": {"adagrd": {}}}}}, None),
        ({"t": {"accessor": {"embed_sgd_param": {"adagrd": {"learning_rate": 1}}}}}, "adagrad"),
    ],
)
def test_nested_ones_too(value: Any, match: str | None) -> None:
    strategy = DistributedStrategy()
    if match is None:  # it says nothing
        strategy.sparse_table_configs = value
        return
    with pytest.raises(StrategyError, match=match):
        strategy.sparse_table_configs = value


def test_a_table_is_described_once_and_where_there_are_accessors() -> None:
    strategy = DistributedStrategy()
    strategy.fleet_desc_configs = {"t": {}}
    with pytest.raises(StrategyError, match="say it once"):
        strategy.sparse_table_configs = {"t": {}}
    assert strategy.resolve().accessors["t"].accessor == CtrAccessor(cvm=True)
    with pytest.raises(StrategyError, match="belongs to parameter servers"):
        strategy.resolve_collective()
    strategy.a_sync_configs = {"k_steps": 4}
    assert strategy.resolve().accessors["t"].accessor == CtrAccessor(cvm=True)
    again = DistributedStrategy()
    again.fleet_desc_configs = {"t": {}}
    again.localsgd = True
    with pytest.raises(StrategyError, match="no effect in localsgd mode"):
        again.resolve()
