"""What a checkpoint says of optimizer states that were the workers' own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paramfleet_shared.files.documents import whole

__all__ = ["GatheredStates"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GatheredStates:
    """Whose states are in a checkpoint, and whose aren't."""

    workers: tuple[int, ...] = ()
    """By their ranks."""

    left_out: Mapping[int, str] = field(default_factory=dict)
    """Workers whose states are missing, in a part at least, and why."""

    def to_wire(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "workers": list(self.workers),
            "left_out": [[rank, why] for rank, why in sorted(self.left_out.items())],
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "GatheredStates":
        """Rebuild what ``to_wire`` returned.

        Raises:
            KeyError: if a value is missing.
            TypeError: if one can't be read at all.
            ValueError: if one is of another kind.
        """
        return cls(
            workers=tuple(whole(rank, "rank") for rank in wire["workers"]),
            left_out={whole(rank, "rank"): str(why) for rank, why in wire["left_out"]},
        )

    def and_those(self, other: "GatheredStates") -> "GatheredStates":
        """Return what two servers' parts say together."""
        left_out = {**other.left_out, **self.left_out}
        workers = {*self.workers, *other.workers} - set(left_out)
        return GatheredStates(workers=tuple(sorted(workers)), left_out=left_out)
