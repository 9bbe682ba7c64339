"""Narrow formats, and what they lose."""

import pytest
import torch

from paramfleet.training.localsgd.core.codecs import ROW, Codec, Residual, codec_of


def codec(name: str) -> Codec:
    found = codec_of(name)  # type: ignore[arg-type]
    assert found is not None
    return found


def values(num_rows: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-4, 2, num_rows)[:, None]
    return (torch.randn(num_rows, ROW, generator=random) * scales).view(-1)


def test_float32_travels_as_it_is() -> None:
    assert codec_of("float32") is None


@pytest.mark.parametrize(("name", "num_bytes"), [("float16", 2 * ROW), ("int8", ROW + 4)])
def test_a_format_takes_the_bytes_it_says(name: str, num_bytes: int) -> None:
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


@pytest.mark.parametrize("name", ["float16", "int8"])
def test_what_a_format_loses_is_sent_later(name: str) -> None:
    given, residual = values(4), Residual(codec(name))
    received = torch.zeros_like(given)

    for _ in range(50):
        sent = residual.send(given, num_parts=2)
        received += torch.cat([codec(name).decode(part) for part in sent.chunk(2)])

    assert residual.left_P is not None
    torch.testing.assert_close(received + residual.left_P, 50 * given, rtol=1e-4, atol=1e-6)
    one_step = given.view(-1, ROW).abs().amax(dim=1, keepdim=True) / 127
    assert bool((residual.left_P.view(-1, ROW).abs() <= one_step).all())
