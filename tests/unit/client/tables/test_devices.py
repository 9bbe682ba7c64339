"""Tensors between the host and the model's device."""

import numpy as np
import pytest
import torch

from paramfleet.tables.dense import DenseBlock
from paramfleet.tables.devices import to_device, to_host

HOST = torch.device("cpu")
needs_cuda = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]


def test_on_the_host_nothing_is_copied() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)

    assert to_device(tensor, HOST) is tensor
    assert to_host(tensor, dtype=torch.float32).data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_go_to_a_device_and_come_back(device: str) -> None:
    tensor = torch.arange(6.0).reshape(2, 3)

    there = to_device(tensor, torch.device(device), dtype=torch.bfloat16)
    back = to_host(there.T.requires_grad_(), dtype=torch.float32)

    assert (there.device.type, there.dtype) == (device, torch.bfloat16)
    assert (back.device, back.is_contiguous(), back.requires_grad) == (HOST, True, False)
    assert torch.equal(back, tensor.T)


@pytest.mark.parametrize("device", DEVICES)
def test_an_empty_tensor_travels_too(device: str) -> None:
    there = to_device(torch.empty(0, 4), torch.device(device))

    assert to_host(there, dtype=torch.float32).shape == (0, 4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
def test_what_is_on_its_way_is_not_overwritten_by_what_comes_next() -> None:
    device, size = torch.device("cuda"), 1 << 20
    torch.cuda._sleep(100_000_000)  # type: ignore[no-untyped-call]  # the copies wait behind it

    sent = [to_device(torch.full((size,), float(n)), device) for n in range(20)]

    assert [each.mean().item() for each in sent] == list(range(20))


@pytest.mark.parametrize("device", DEVICES)
def test_dense_parameters_are_one_vector_on_any_device(device: str) -> None:
    module = torch.nn.Linear(3, 2).to(device)
    block = DenseBlock("dense_0", list(module.parameters()))
    module(torch.ones(1, 3, device=device)).sum().backward()

    block.install(np.arange(8, dtype=np.float32))

    assert block.values().tolist() == list(range(8))
    assert module.weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert block.gradients().tolist() == [1.0] * 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
def test_dense_parameters_of_two_devices_are_one_vector() -> None:
    both = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1).cuda())]
    block = DenseBlock("dense_0", both)

    block.install(np.arange(3, dtype=np.float32))

    assert block.values().tolist() == [0, 1, 2]
