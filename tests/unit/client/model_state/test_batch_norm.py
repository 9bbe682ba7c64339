"""Shared BatchNorm layers compute what torch's do; a worker that is alone shows it."""

import copy

import pytest
import torch

from paramfleet.config.strategy_keys import StrategyError
from paramfleet.model_state.batch_norm import (
    SyncBatchNormError,
    check_sync_batch_norm,
    note_local_statistics,
    share_statistics,
)


class Alone:
    """The only worker of its job: the sum is its own part."""

    def __init__(self) -> None:
        self.is_over = False
        self.names: list[str] = []

    def __deepcopy__(self, memo: object) -> None:
        """Return None, as a copy has no workers."""

    def over_workers(self, values: torch.Tensor, name: str) -> torch.Tensor:
        self.names.append(name)
        return values


class Own(torch.nn.BatchNorm1d):
    """A user's."""


SHAPES = {1: (6, 3), 2: (5, 3, 4, 2), 3: (4, 3, 2, 2, 3)}
MAKERS = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [True, False])
def test_outputs_gradients_and_running_statistics_are_torch_s(
    dims: int, momentum: float | None, *, affine: bool
) -> None:
    torch.manual_seed(dims)
    plain = MAKERS[dims](3, momentum=momentum, affine=affine)
    shared = copy.deepcopy(plain)
    assert share_statistics(shared, Alone()) == 1

    for x in torch.randn(3, *SHAPES[dims]) * 3 + 1000:
        toward = torch.randn(SHAPES[dims])
        results = []
        for layer in (plain, shared):
            layer.zero_grad()
            into = x.clone().requires_grad_()
            out = layer(into)
            (out * toward).sum().backward()
            assert into.grad is not None
            results.append([out.detach(), into.grad, *(p.grad for p in layer.parameters())])
        for expected, found in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(shared.get_buffer(name), buffer)
    for layer in (plain, shared):
        layer.eval()
    x = torch.randn(SHAPES[dims]) + 1000
    torch.testing.assert_close(shared(x), plain(x), atol=2e-4, rtol=1e-4)


def test_narrow_inputs_are_normalized_in_32_bits() -> None:
    plain = torch.nn.BatchNorm1d(3)
    shared = copy.deepcopy(plain)
    share_statistics(shared, Alone())
    x = (torch.randn(8, 3) + 5).bfloat16()

    found = shared(x)

    assert found.dtype == torch.bfloat16
    expected = plain(x.float()).bfloat16()
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)


def test_layers_keep_their_identity_names_and_kind() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    layer, names = model[1], list(model.state_dict())
    totals = Alone()

    assert share_statistics(model, totals) == 1
    assert share_statistics(model, totals) == 1, "a second time changes nothing"

    assert model[1] is layer
    assert isinstance(layer, torch.nn.BatchNorm1d)
    assert list(model.state_dict()) == names
    model(torch.randn(4, 2))
    assert totals.names == ["BatchNorm '1'"]


def test_a_copy_and_a_worker_that_is_done_compute_alone() -> None:
    totals = Alone()
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    share_statistics(model, totals)
    copied = copy.deepcopy(model)
    totals.is_over = True

    for each in (copied, model):
        each(torch.randn(4, 3))

    assert totals.names == []


def test_evaluation_asks_nobody() -> None:
    totals = Alone()
    layer = torch.nn.BatchNorm1d(3)
    share_statistics(layer, totals)

    layer.eval()(torch.randn(4, 3))

    assert totals.names == []


def test_one_value_a_channel_over_all_workers_is_refused_as_torch_does() -> None:
    layer = torch.nn.BatchNorm1d(3)
    share_statistics(layer, Alone())

    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layer(torch.randn(1, 3))
    assert layer.num_batches_tracked == 0


@pytest.mark.parametrize(
    "layer", [Own(3), torch.nn.LazyBatchNorm1d(), torch.nn.SyncBatchNorm(3)]
)
def test_a_layer_of_another_kind_is_refused_and_none_is_changed(layer: torch.nn.Module) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), layer)

    with pytest.raises(StrategyError, match=f"layer '1' is a {type(layer).__name__}"):
        share_statistics(model, Alone())

    assert type(model[0]) is torch.nn.BatchNorm1d


def test_torch_s_layer_for_process_groups_is_refused() -> None:
    layer = torch.nn.SyncBatchNorm(3)

    with pytest.raises(SyncBatchNormError, match=r"layer '0' is torch\.nn\.SyncBatchNorm"):
        check_sync_batch_norm(torch.nn.Sequential(layer), remedy="keep BatchNorm")


@pytest.mark.parametrize(("is_training", "is_named"), [(True, True), (False, False)])
def test_layers_that_normalize_by_one_worker_s_batches_are_named(
    caplog: pytest.LogCaptureFixture, is_training: bool, is_named: bool
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))

    note_local_statistics(model.train(is_training), remedy="share them")

    assert [each.__dict__["layers"] for each in caplog.records] == [["1"]] * is_named
