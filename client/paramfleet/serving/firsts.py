"""The first value of a row, in torch's operations: the same bits as in the job.

A job makes it by a kernel (``paramfleet_shared.tables.kernels.firsts``), which needs a
compiler. These operations run on every device, and ``torch.export`` takes them. Each one is
exact or correctly rounded, in the kernel's order.

Shape legend: n = ids, D = row width.
"""

import torch

from paramfleet_shared.tables.spec import InitializerSpec, Storage

__all__ = ["first_rows", "stored"]

_MIX_1, _MIX_2 = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_STEP = 0x9E3779B97F4A7C15
_SPLIT_1, _SPLIT_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

_TAIL = 0.02425
"""Where the tails begin."""

_HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def first_rows(
    initializer: InitializerSpec,
    stream: int,
    ids_n: torch.Tensor,
    dim: int,
    drawn: tuple[int, int] | None = None,
) -> torch.Tensor:
    """Return the first values of rows: float32 [n, D].

    Args:
        initializer: Of the table.
        stream: The table's ``stream_of``.
        ids_n: int64 [n].
        dim: D.
        drawn: Which values the initializer makes, the first one and the end; the others are
            0. None for all of them.
    """
    if drawn is not None:
        first, end = drawn
        rows = _drawn_rows(initializer, stream, ids_n, drawn)
        return torch.nn.functional.pad(rows, (first, dim - end))
    return _drawn_rows(initializer, stream, ids_n, (0, dim))


def _drawn_rows(
    initializer: InitializerSpec, stream: int, ids_n: torch.Tensor, drawn: tuple[int, int]
) -> torch.Tensor:
    """Return the values of rows that the initializer makes: float32 [n, end - first]."""
    first, end = drawn
    if initializer.kind in {"zeros", "constant"}:
        value = initializer.value if initializer.kind == "constant" else 0.0
        return torch.full((ids_n.shape[0], end - first), value, device=ids_n.device)
    base = _mixed(ids_n ^ _signed(stream)).unsqueeze(1)
    counters = torch.arange(first + 1, end + 1, device=ids_n.device)
    bits = _split(base + counters * _signed(_STEP))
    if initializer.kind == "uniform":
        numbers = _shifted(bits, 40).to(torch.float32) * 2.0**-24
        offset, scale = initializer.low, initializer.high - initializer.low
    else:
        numbers = _normal(bits).to(torch.float32)
        offset, scale = initializer.mean, initializer.std
    return numbers * scale + offset


def stored(rows: torch.Tensor, storage: Storage) -> torch.Tensor:
    """Return float32 rows as a pserver's storage rounds them, float32 again."""
    if storage == "float32":
        return rows
    half = _HALVES[storage]
    most = torch.finfo(half).max
    return rows.clamp(-most, most).to(half).to(torch.float32)


def _signed(word: int) -> int:
    """Return the int64 of the same 64 bits."""
    return word - (1 << 64) if word >> 63 else word


def _shifted(words: torch.Tensor, by: int) -> torch.Tensor:
    """Return words shifted to the right with zeros: int64 fills with the sign."""
    return (words >> by) & ((1 << (64 - by)) - 1)


def _mixed(words: torch.Tensor) -> torch.Tensor:
    """Return murmur3's 64-bit finaliser."""
    words = (words ^ _shifted(words, 33)) * _signed(_MIX_1)
    words = (words ^ _shifted(words, 33)) * _signed(_MIX_2)
    return words ^ _shifted(words, 33)


def _split(words: torch.Tensor) -> torch.Tensor:
    """Return splitmix64's output of its counters."""
    words = (words ^ _shifted(words, 30)) * _signed(_SPLIT_1)
    words = (words ^ _shifted(words, 27)) * _signed(_SPLIT_2)
    return words ^ _shifted(words, 31)


def _logarithm(x: torch.Tensor) -> torch.Tensor:
    """Return ln x for float64 x > 0, as the kernel does."""
    mantissa, exponent = torch.frexp(x)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    total = torch.zeros_like(s)
    for k in range(25, 0, -2):
        total.mul_(square).add_(1.0 / k)
    return 2.0 * s * total + exponent.to(torch.float64) * 0.6931471805599453


def _polynomial(x: torch.Tensor, *factors: float) -> torch.Tensor:
    """Return the polynomial with these factors, the highest power's first."""
    total = factors[0] * x
    for factor in factors[1:-1]:
        total.add_(factor).mul_(x)
    return total.add_(factors[-1])


def _normal(bits: torch.Tensor) -> torch.Tensor:
    """Return the standard normal quantile of 64 bits: float64, Acklam's approximations."""
    p = (_shifted(bits, 12).to(torch.float64) + 0.5) * 2.0**-52
    tail = torch.minimum(p, 1.0 - p)
    found = _middle(p)
    if torch.compiler.is_compiling():
        return torch.where(tail >= _TAIL, found, _outer(p, tail))
    outside = tail < _TAIL  # one of twenty
    found[outside] = _outer(p[outside], tail[outside])
    return found


def _middle(p: torch.Tensor) -> torch.Tensor:
    q = p - 0.5
    r = q * q
    above = _polynomial(
        r, -3.969683028665376e01, 2.209460984245205e02, -2.759285104469687e02,
        1.383577518672690e02, -3.066479806614716e01, 2.506628277459239e00,
    )  # fmt: skip
    below = _polynomial(
        r, -5.447609879822406e01, 1.615858368580409e02, -1.556989798598866e02,
        6.680131188771972e01, -1.328068155288572e01, 1.0,
    )  # fmt: skip
    return above.mul_(q).div_(below)


def _outer(p: torch.Tensor, tail: torch.Tensor) -> torch.Tensor:
    r = torch.sqrt(-2.0 * _logarithm(tail))
    above = _polynomial(
        r, -7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e00,
        -2.549732539343734e00, 4.374664141464968e00, 2.938163982698783e00,
    )  # fmt: skip
    below = _polynomial(
        r, 7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e00,
        3.754408661907416e00, 1.0,
    )  # fmt: skip
    lower = above.div_(below)
    return torch.where(p < 0.5, lower, -lower)
