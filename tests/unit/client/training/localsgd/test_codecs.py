"""Narrow formats, and what they lose."""

from hashlib import blake2b

import pytest
import torch

from paramfleet.tables.error_feedback import Residual
from paramfleet.training.localsgd.core.codecs import ROW, TorchFormat, format_of
from paramfleet_shared.tables.codecs.catalog import WIRE_DTYPES, WireDtype

NARROW = tuple(name for name in WIRE_DTYPES if name != "float32")


def codec(name: WireDtype) -> TorchFormat:
    found = format_of(name)
    assert found is not None
    return found


def values(num_rows: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-4, 2, num_rows)[:, None]
    return (torch.randn(num_rows, ROW, generator=random) * scales).view(-1)


def test_float32_travels_as_it_is() -> None:
    assert format_of("float32") is None


@pytest.mark.parametrize(
    ("name", "num_bytes"), [("float16", 2 * ROW), ("int8", ROW + 4), ("float8_e4m3", ROW + 4)]
)
def test_a_format_takes_the_bytes_it_says(name: WireDtype, num_bytes: int) -> None:
    assert codec(name).num_bytes(3 * ROW) == 3 * num_bytes
    assert codec(name).encode(values(3)).shape == (3 * num_bytes,)


def test_int8_is_right_to_half_a_step_of_its_row() -> None:
    given = values(5)

    found = codec("int8").decode(codec("int8").encode(given))

    steps = given.view(-1, ROW).abs().amax(dim=1, keepdim=True) / 127
    assert bool(((found - given).view(-1, ROW).abs() <= steps * 0.501).all())


def test_a_row_of_zeros_stays_one() -> None:
    assert codec("int8").decode(codec("int8").encode(torch.zeros(ROW))).abs().max() == 0


def test_float16_holds_what_is_beyond_its_range_at_its_end() -> None:
    given = torch.full((ROW,), 1e6)

    assert codec("float16").decode(codec("float16").encode(given))[0] == 65504


@pytest.mark.parametrize("name", NARROW)
def test_what_a_format_loses_is_sent_later(name: WireDtype) -> None:
    given, residual = values(4), Residual(codec(name))
    received = torch.zeros_like(given)

    for _ in range(50):
        sent = residual.send(given, [slice(0, 2 * ROW), slice(2 * ROW, 4 * ROW)])
        received += torch.cat([codec(name).decode(part) for part in sent])

    assert residual.left is not None
    torch.testing.assert_close(received + residual.left, 50 * given, rtol=1e-4, atol=1e-6)
    steps = {"float8_e4m3": 14.0}.get(name, 127.0)  # of a row: half of one is lost at most
    one_step = given.view(-1, ROW).abs().amax(dim=1, keepdim=True) / steps
    assert bool((residual.left.view(-1, ROW).abs() <= one_step).all())


@pytest.mark.parametrize(
    ("name", "expected"), [("float16", "13844e9aae4188b9"), ("int8", "e134f123cfdf3c69")]
)
def test_what_travels_and_what_is_left_has_the_same_bits(
    name: WireDtype, expected: str
) -> None:
    residual, found = Residual(codec(name)), blake2b(digest_size=8)
    magnitudes = 2.0 ** torch.arange(-40, 0)[:, None].float()
    for salt in range(3):
        steps = torch.arange(40 * ROW, dtype=torch.int64) * (2246822519 + salt)
        values = ((steps & 0xFFFFFFFF) - 2**31).float().view(-1, ROW).mul(magnitudes)
        sent = residual.send(values.view(-1), [slice(0, 20 * ROW), slice(20 * ROW, 40 * ROW)])
        assert residual.left is not None
        found.update(torch.cat(sent).numpy().tobytes())
        found.update(residual.left.numpy().tobytes())

    assert found.hexdigest() == expected


def test_float8_is_what_torch_makes_of_a_row_divided_by_its_scale() -> None:
    given = values(5)

    found = codec("float8_e4m3").decode(codec("float8_e4m3").encode(given))

    rows = given.view(-1, ROW)
    scales = rows.abs().amax(dim=1, keepdim=True) / 448
    expected = (rows / scales).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scales
    assert torch.equal(found, expected.view(-1))
