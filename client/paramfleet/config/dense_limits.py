"""How much of dense tables travels in one request."""

from dataclasses import dataclass

__all__ = ["DenseLimits"]

_LEAST_PIECE = 256
"""Values: what shares a scale."""

_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseLimits:
    """How much of dense tables travels in one request."""

    request_bytes: int = 64 << 20
    """Dense numbers of one request, each way. A model with no more of them on any pserver
    takes one request a pserver and step."""
    in_place_bytes: int = 1 << 30
    """Dense numbers of a worker beyond which they move in place."""

    @property
    def piece_values(self) -> int:
        """Return how many values of a larger one go in one piece: a fourth of a request."""
        values = self.request_bytes // (4 * _FLOAT_BYTES)
        return max(_LEAST_PIECE, values // _LEAST_PIECE * _LEAST_PIECE)
