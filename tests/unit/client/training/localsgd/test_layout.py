"""Parameters as fragments."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paramfleet.training.localsgd.core.settings import LocalSgdSettingsError
from paramfleet.training.localsgd.layout import Layout, MixedDevicesError, trained_parameters


def of_sizes(*sizes: int) -> list[torch.Tensor]:
    return [torch.full((size,), float(number)) for number, size in enumerate(sizes)]


def test_fragments_are_cut_between_parameters_into_like_sizes() -> None:
    assert Layout(of_sizes(10, 10, 10, 10, 20, 20), 4).sizes == [20, 20, 20, 20]


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12), data=st.data())
def test_no_fragment_is_empty_and_none_is_lost(sizes: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(sizes)))

    layout = Layout(of_sizes(*sizes), parts)

    assert len(layout.sizes) == parts
    assert all(layout.fragments)
    assert [p.numel() for fragment in layout.fragments for p in fragment] == sizes


def test_what_is_written_is_read_in_any_shape_and_dtype() -> None:
    parameters = [
        torch.zeros(2, 3, dtype=torch.bfloat16),
        torch.zeros(1, 2, 2, 2).to(memory_format=torch.channels_last),
    ]
    layout = Layout(parameters, 1)
    values = torch.arange(14.0)

    layout.write(0, values)

    assert torch.equal(layout.read(0), values)
    assert parameters[1][0, 1, 0, 1] == 11


def test_more_fragments_than_parameters_are_too_many() -> None:
    with pytest.raises(LocalSgdSettingsError, match="fragments = 3") as raised:
        Layout(of_sizes(4, 4), 3)

    assert raised.value.key == "fragments"


def test_parameters_lie_on_one_device() -> None:
    with pytest.raises(MixedDevicesError, match="cpu, meta"):
        Layout([torch.zeros(2), torch.zeros(2, device="meta")], 1)


def test_frozen_parameters_are_left_out() -> None:
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)

    assert [p.shape for p in trained_parameters(torch.optim.SGD(model.parameters(), 0.1))] == [
        model.weight.shape
    ]
