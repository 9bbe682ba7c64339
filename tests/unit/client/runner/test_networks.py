"""The zoo's networks compute what their papers say, and refuse sizes that don't fit."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import paramfleet as fleet
from paramfleet.runner.config.configuration import Config, read_config
from paramfleet.runner.config.errors import ConfigError
from paramfleet.runner.folders import import_module, load_model_class

MODELS = Path(__file__).parents[4] / "models"
SIZES = {
    "rank/dlrm": ("bot_layer_sizes=[5,4]", "top_layer_sizes=[3,1]", "num_field=3"),
    "rank/autoint": ("attn_layer_sizes=[6,4]", "head_num=2", "fc_sizes=[5]"),
    "rank/xdeepfm": ("layer_sizes_cin=[3,2]", "layer_sizes_dnn=[5]"),
}
OF_CLICKS = ("sparse_inputs_slots=4", "sparse_feature_dim=4", "dense_input_dim=2")


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    fleet.init()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


def config_of(name: str, *sizes: str) -> Config[Any]:
    options = [f"hyper_parameters.{size}" for size in sizes]
    raw = read_config(MODELS / name / "config.yaml", options)
    return raw.read_as(load_model_class(raw).parameters)


def net_of(name: str, *sizes: str) -> tuple[Any, ModuleType]:
    config = config_of(name, *OF_CLICKS, *SIZES[name], *sizes)
    cls = load_model_class(read_config(MODELS / name / "config.yaml"))
    net = fleet.distributed_model(cls(config).create_model())
    fleet.distributed_optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    fleet.init_worker()
    return net, import_module(MODELS / name / "net")


IDS, DENSE = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[0.5, 1.0], [0.1, 0.2]])


@pytest.mark.parametrize("scores", [1, 2])
def test_dlrm_multiplies_every_pair_of_vectors(scores: int) -> None:
    net, _ = net_of("rank/dlrm", f"top_layer_sizes=[3,{scores}]")

    with torch.no_grad():
        logits = net(IDS, DENSE)
        numbers = net.bottom(DENSE)
        vectors = [*net.embedding(IDS).unbind(1), numbers]
        pairs = [(a * b).sum(1) for i, a in enumerate(vectors) for b in vectors[i + 1 :]]
        out = net.out(net.top(torch.cat([numbers, torch.stack(pairs, dim=1)], dim=1)))

    said = out.softmax(1)[:, 1] if scores == 2 else out[:, 0].sigmoid()
    assert logits.sigmoid().tolist() == pytest.approx(said.tolist())


@pytest.mark.parametrize("sizes", [[2, 4], [4, 2]])
def test_each_order_of_xdeepfm_is_weighted_products_with_the_first(sizes: list[int]) -> None:
    _, module = net_of("rank/xdeepfm")
    cross = module.CompressedInteraction(3, sizes)
    vectors = torch.randn(2, 3, 5)

    with torch.no_grad():
        sums = cross(vectors)
        orders, before = [], vectors
        for layer, size in zip(cross.layers, sizes, strict=True):
            weights = layer.weight.reshape(size, 3, -1)
            before = torch.einsum("sfk,bfd,bkd->bsd", weights, vectors, before)
            orders.append(before.sum(2))

    assert sums.shape == (2, 6)
    torch.testing.assert_close(sums, torch.cat(orders, dim=1))


@pytest.mark.parametrize("name", list(SIZES))
def test_a_click_has_a_logit(name: str) -> None:
    net, _ = net_of(name)

    logits = net(IDS, DENSE)

    assert (logits.shape, logits.dtype) == ((2,), torch.float32)
    assert logits[0] != logits[1]


@pytest.mark.parametrize(
    ("name", "size", "rule"),
    [
        ("rank/dlrm", "bot_layer_sizes=[8]", r"ends with sparse_feature_dim \(16\)"),
        ("rank/dlrm", "bot_layer_sizes=[]", "ends with sparse_feature_dim"),
        ("rank/dlrm", "bot_layer_sizes=[0,16]", "widths from 1"),
        ("rank/dlrm", "top_layer_sizes=[8,3]", "ends with 1 or 2"),
        ("rank/dlrm", "num_field=25", r"sparse_inputs_slots - 1 \(26\)"),
        ("rank/dlrm", "sparse_feature_dim=0", "from 1"),
        ("rank/xdeepfm", "layer_sizes_cin=[]", "widths from 1"),
        ("rank/xdeepfm", "layer_sizes_dnn=[4,0]", "widths from 1"),
        ("rank/autoint", "attn_layer_sizes=[8,3]", r"multiples of head_num \(2\)"),
        ("rank/autoint", "head_num=0", "from 1"),
        ("multitask/ple", "level_number=0", "from 1"),
        ("recall/ncf", "fc_layers=[9,4]", "the first one even"),
        ("recall/ncf", "fc_layers=[8]", "two or more"),
        ("recall/ncf", "mode=NCF", "must be one of"),
        ("recall/ncf", "mf_dim=0", "from 1"),
        ("multitask/esmm", "ctr_fc_sizes=[]", "widths from 1"),
        ("multitask/esmm", "max_len=0", "from 1"),
        ("rank/din", "item_emb_size=0", "from 1"),
        ("rank/din", "max_len=0", "from 1"),
        ("match/dssm", "fc_sizes=[]", "widths from 1"),
        ("match/dssm", "gamma=0", "from 1e-06"),
        ("recall/mind", "hidden_size=32", r"embedding_dim \(64\)"),
        ("recall/mind", "capsual_max_k=0", "from 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name: str, size: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule) as caught:
        config_of(name, size)

    assert caught.value.key == f"hyper_parameters.{size.partition('=')[0]}"


def test_esmm_pools_the_ids_of_a_field_and_learns_both_from_all() -> None:
    sizes = ("num_field=2", "max_len=3", "sparse_feature_dim=4", "ctr_fc_sizes=[5]")
    config = config_of("multitask/esmm", *sizes)
    model = load_model_class(read_config(config.path))(config)
    net = fleet.distributed_model(model.create_model())
    fleet.distributed_optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    fleet.init_worker()
    fields = torch.tensor([[1, 2, 0], [0, 0, 0]]), torch.tensor([[3, 0, 0], [4, 5, 6]])
    clicked, bought = torch.tensor([[1], [0]]), torch.tensor([[1], [0]])

    feeds = model.create_feeds([*fields, clicked, bought])
    padded = net(feeds.inputs[0])
    loss = model.create_loss(padded, feeds.labels)

    assert feeds.inputs[0].tolist() == [[[1, 2, 0], [3, 0, 0]], [[0, 0, 0], [4, 5, 6]]]
    assert feeds.labels.tolist() == [[1, 1], [0, 0]]
    (click, purchase), labels = padded.sigmoid().unbind(1), feeds.labels[:, 0]
    cross_entropy = torch.nn.functional.binary_cross_entropy
    expected = cross_entropy(click, labels) + cross_entropy(click * purchase, labels)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    moved = net(torch.tensor([[[2, 1, 0], [0, 3, 0]], [[0, 0, 0], [6, 4, 5]]]))
    torch.testing.assert_close(moved, padded)


def test_esmm_is_finite_where_it_is_certain() -> None:
    config = config_of("multitask/esmm")
    model = load_model_class(read_config(config.path))(config)
    outputs = torch.tensor([[90.0, 90.0], [-90.0, 90.0]], requires_grad=True)

    loss = model.create_loss(outputs, torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    (gradient,) = torch.autograd.grad(loss, outputs)

    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("scaling", ["true", "false"])
def test_a_head_of_autoint_weighs_values_by_the_products_of_queries_and_keys(
    scaling: str,
) -> None:
    _, module = net_of("rank/autoint")
    hyper = config_of("rank/autoint", f"scaling={scaling}", "use_residual=false")
    layer = module.Interacting(4, 6, hyper.hyper_parameters)
    vectors = torch.randn(2, 3, 4)

    with torch.no_grad():
        attended = layer(vectors)
        parts = [each(vectors).relu() for each in (layer.query, layer.key, layer.value)]
        heads = []
        for query, key, value in zip(*(part.split(3, dim=2) for part in parts), strict=True):
            products = torch.einsum("bik,bjk->bij", query, key)
            products = products / 3**0.5 if scaling == "true" else products
            heads.append(torch.einsum("bij,bjk->bik", products.softmax(2), value))
        expected = layer.norm(torch.cat(heads, dim=2).relu())

    torch.testing.assert_close(attended, expected)


def test_autoint_without_a_network_and_a_linear_part_is_the_attention_alone() -> None:
    net, _ = net_of("rank/autoint", "fc_sizes=[]", "use_wide=false")

    assert net(IDS, DENSE).shape == (2,)
    assert {name.partition(".")[0] for name, _ in net.named_parameters()} == {
        "embedding", "dense_vectors", "attention", "out",
    }  # fmt: skip


def test_a_task_of_ple_sees_its_own_experts_and_the_shared_ones() -> None:
    config = config_of("multitask/ple", "exp_per_task=2", "shared_num=1", "expert_size=3")
    module = import_module(MODELS / "multitask/ple/net")
    level = module.Level(4, config.hyper_parameters, is_last=False)
    inputs = [torch.randn(2, 4) for _ in range(3)]

    with torch.no_grad():
        found = level(inputs)
        groups = zip(level.experts, inputs, strict=True)
        said = [[expert(each) for expert in group.each] for group, each in groups]
        seen = [said[0] + said[2], said[1] + said[2], said[0] + said[1] + said[2]]
        for output, gate, each, experts in zip(found, level.gates, inputs, seen, strict=True):
            weights = gate(each).softmax(1)
            expected = sum(weights[:, [n]] * expert for n, expert in enumerate(experts))
            torch.testing.assert_close(output, expected)

    last = module.Level(4, config.hyper_parameters, is_last=True)
    assert len(last(inputs)) == 2


@pytest.mark.parametrize("mode", ["NCF_NeuMF", "NCF_GMF", "NCF_MLP"])
def test_ncf_has_products_a_network_or_both(mode: str) -> None:
    config = config_of("recall/ncf", f"mode={mode}", "mf_dim=3", "fc_layers=[4,2]")
    model = load_model_class(read_config(config.path))(config)
    net: Any = fleet.distributed_model(model.create_model())
    fleet.distributed_optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    fleet.init_worker()
    feeds = model.create_feeds([torch.tensor([[n], [n + 1]]) for n in (1, 5, 0)])
    users, items = feeds.inputs

    with torch.no_grad():
        logits = net(users, items)
        parts = []
        if mode != "NCF_MLP":
            parts.append(net.products[0](users) * net.products[1](items))
        if mode != "NCF_GMF":
            halves = torch.cat([net.halves[0](users), net.halves[1](items)], dim=1)
            assert halves.shape == (2, 4)
            parts.append(net.deep(halves))
        expected = net.out(torch.cat(parts, dim=1))[:, 0]

    assert feeds.labels.tolist() == [0, 1]
    torch.testing.assert_close(logits, expected)


def made(name: str, *sizes: str) -> tuple[Any, Any]:
    """Return a model and its network, which computes alone."""
    config = config_of(name, *sizes)
    model = load_model_class(read_config(MODELS / name / "config.yaml"))(config)
    net = fleet.distributed_model(model.create_model())
    fleet.distributed_optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    fleet.init_worker()
    return model, net


def din_batch(items: list[list[int]], mask: list[list[int]]) -> list[torch.Tensor]:
    """Return what a reader yields, of two examples."""
    history = torch.tensor(items)
    target, label = torch.tensor([[7], [8]]), torch.tensor([[1.0], [0.0]])
    return [history, history + 100, target, target + 100, label, torch.tensor(mask)]


def test_padding_of_a_history_changes_nothing_in_din() -> None:
    model, net = made("rank/din", "item_emb_size=3", "cat_emb_size=2")
    none = -1_000_000_000
    short = model.create_feeds(din_batch([[1, 2], [3, 0]], [[0, 0], [0, none]]))
    long = model.create_feeds(
        din_batch([[1, 2, 0, 0], [3, 5, 6, 0]], [[0, 0, none, none], [0, none, none, none]])
    )

    with torch.no_grad():
        found = net(*short.inputs)

    assert [each.shape for each in long.inputs[:3]] == [(2, 2)] * 3, "cut to the longest"
    assert short.labels.tolist() == [1.0, 0.0]
    torch.testing.assert_close(net(*long.inputs), found)


def test_an_empty_history_has_a_logit_and_gradients_in_din() -> None:
    model, net = made("rank/din", "item_emb_size=3", "cat_emb_size=2")
    none = -1_000_000_000
    feeds = model.create_feeds(din_batch([[1, 2], [0, 0]], [[0, 0], [none, none]]))

    logits = net(*feeds.inputs)
    model.create_loss(logits, feeds.labels).backward()

    assert logits.isfinite().all()
    for parameter in net.interest.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


def test_a_document_of_dssm_is_near_by_the_cosine_of_two_networks() -> None:
    model, net = made("match/dssm", "trigram_d=4", "fc_sizes=[3]", "gamma=2")
    texts = [torch.rand(2, 4) for _ in range(4)]

    feeds = model.create_feeds(texts)
    near = net(*feeds.inputs)

    assert feeds.labels.tolist() == [[1, 0, 0], [1, 0, 0]]
    query, documents = net.query(texts[0]), [net.document(text) for text in texts[1:]]
    expected = [torch.cosine_similarity(query, document) for document in documents]
    torch.testing.assert_close(near, torch.stack(expected, dim=1))
    loss = -torch.log_softmax(2 * near, dim=1)[:, 0].mean()
    torch.testing.assert_close(model.create_loss(near, feeds.labels), loss)


MIND = ("item_count=50", "embedding_dim=6", "hidden_size=6", "maxlen=4", "neg_samples=9")


def test_padding_and_its_place_change_no_interest_of_mind() -> None:
    _, net = made("recall/mind", *MIND)

    with torch.no_grad():
        padded = net.interests(torch.tensor([[5, 6, 0, 0]]), torch.tensor([2]))
        other = net.interests(torch.tensor([[5, 6, 7, 8]]), torch.tensor([2]))

    assert padded.shape == (1, 4, 6)
    torch.testing.assert_close(padded, other)


def test_an_item_that_was_drawn_too_is_not_learned_against_itself_in_mind() -> None:
    _, net = made("recall/mind", *MIND)

    scores = net(
        torch.tensor([[5, 6, 0, 0], [7, 8, 9, 1]]),
        torch.tensor([2, 4]),
        torch.tensor([3, 4]),
        torch.tensor([1, 3, 3]),
    )

    assert scores.shape == (2, 4)
    assert (scores < -1e29).tolist() == [[False, False, True, True], [False] * 4]


def test_mind_draws_items_by_the_chance_that_it_reckons_with() -> None:
    module = import_module(MODELS / "recall/mind/net")

    drawn = module.draw(200_000, below=20, generator=torch.Generator().manual_seed(1))

    assert (int(drawn.min()), int(drawn.max())) == (1, 19)
    share = torch.bincount(drawn, minlength=20)[1:] / len(drawn)
    chance = torch.log1p(1 / (torch.arange(1, 20) + 1.0))
    torch.testing.assert_close(share, chance / chance.sum(), atol=0.004, rtol=0)


def test_what_mind_recalls_is_counted_as_paddlerec_counts_it() -> None:
    recalled = import_module(MODELS / "recall/mind/recalled").Recalled(2)
    vectors = torch.eye(4)  # items 1 to 4
    near = torch.tensor([[[3.0, 0, 2, 0], [0, 1, 0, 0]], [[0, 0, 0.5, 1.0], [0, 0, 0, 0]]])

    recalled.update(near, vectors, [{3, 9}, {1, 2}])

    found = recalled.values()
    assert found["recall"] == pytest.approx(0.25)  # item 3 of two, second; and none of two
    assert found["ndcg"] == pytest.approx(0.5 / np.log2(3), abs=1e-6)
    assert found["hitrate"] == 0.5


@pytest.mark.parametrize("name", ["rank/logistic_regression", "rank/autoint"])
def test_pairs_of_paddlerecs_readers_are_vectors_times_values(name: str) -> None:
    sizes = ["num_field=3"]
    if name == "rank/autoint":
        sizes += ["attn_layer_sizes=[4]", "fc_sizes=[]", "embedding_dim=6"]
    config = config_of(name, *sizes)
    model = load_model_class(read_config(config.path))(config)
    net = fleet.distributed_model(model.create_model())
    fleet.distributed_optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    fleet.init_worker()
    ids, values = torch.tensor([[1, 2, 3]]), torch.tensor([[0.5, 2.0, 0.0]])

    feeds = model.create_feeds([torch.tensor([[1]]), ids, values])
    with torch.no_grad():
        once = net(*feeds.inputs)
        other = net(torch.tensor([[1, 2, 9]]), values)
        doubled = net(ids, 2 * values)

    assert once.tolist() == pytest.approx(other.tolist()), "a value of 0 is no feature"
    if name == "rank/autoint":
        assert net.get_submodule("embedding").embedding_dim == 6, "PaddleRec's key"
        assert once.tolist() != doubled.tolist()


@pytest.mark.parametrize("name", ["multitask/mmoe", "multitask/ple"])
def test_numbers_of_paddlerecs_readers_are_the_experts_inputs(name: str) -> None:
    config = config_of(name, "feature_size=5")
    model = load_model_class(read_config(config.path))(config)

    feeds = model.create_feeds(
        [torch.ones(2, 5), torch.tensor([[1], [0]]), torch.tensor([[0], [1]])]
    )

    assert feeds.labels.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert model.create_model()(*feeds.inputs).shape == (2, 2)
