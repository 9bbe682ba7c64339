"""Which pserver hosts which shard.

A table's shards are fixed for its life; what changes is who hosts them. Each
pserver hosts one contiguous block, so that a request sorted by shard is a slice.
"""

from dataclasses import dataclass, replace
from typing import Any

from paramfleet_shared.errors import ContractError

__all__ = ["Placement", "TooFewShardsError", "range_of_shard"]


class TooFewShardsError(ContractError):
    """A job has more pservers than shards, so that some would hold nothing."""

    code = "contract.too_few_shards"
    num_shards: int
    num_servers: int
    sentence = (
        "{num_shards} shards can't be placed on {num_servers} pservers: "
        "raise num_shards or start fewer pservers"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """The pservers of a job, in index order, and the shards they host.

    Raises:
        TooFewShardsError: if there are more endpoints than shards.
    """

    endpoints: tuple[str, ...]
    """``host:port`` of each pserver's data plane, by pserver index."""

    num_shards: int
    """Shards of every table of the job."""

    epoch: int = 1
    """Grows by one with each change of placement."""

    terms: tuple[int, ...] = ()
    """The incarnation of each pserver, by index; empty if they aren't known."""

    moves: bool = False
    """Whether pservers go from process to process amid the training, disks or not."""

    def __post_init__(self) -> None:
        if len(self.endpoints) > self.num_shards:
            raise TooFewShardsError(num_shards=self.num_shards, num_servers=len(self.endpoints))

    @property
    def num_servers(self) -> int:
        """Return how many pservers share the shards."""
        return len(self.endpoints)

    def shards_of(self, server: int) -> range:
        """Return the shards that pserver ``server`` hosts."""
        return range(
            server * self.num_shards // self.num_servers,
            (server + 1) * self.num_shards // self.num_servers,
        )

    def term_of(self, server: int) -> int:
        """Return the incarnation of pserver ``server``; 0 if it isn't known."""
        return self.terms[server] if server < len(self.terms) else 0

    def with_server(self, server: int, *, endpoint: str, term: int) -> "Placement":
        """Return the next placement, in which another process is pserver ``server``.

        Args:
            server: Which.
            endpoint: ``host:port`` of the process's data plane.
            term: Its incarnation.
        """
        endpoints = list(self.endpoints)
        terms = [self.term_of(index) for index in range(self.num_servers)]
        endpoints[server], terms[server] = endpoint, term
        return replace(
            self, endpoints=tuple(endpoints), terms=tuple(terms), epoch=self.epoch + 1
        )

    def to_wire(self) -> dict[str, Any]:
        """Return plain values that ``from_wire`` takes."""
        return {
            "endpoints": list(self.endpoints),
            "num_shards": self.num_shards,
            "epoch": self.epoch,
            "terms": list(self.terms),
            **({"moves": True} if self.moves else {}),
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> "Placement":
        """Rebuild a placement from ``to_wire``'s values."""
        return cls(
            endpoints=tuple(wire["endpoints"]),
            num_shards=int(wire["num_shards"]),
            epoch=int(wire["epoch"]),
            terms=tuple(int(term) for term in wire.get("terms", ())),
            moves=bool(wire.get("moves", False)),
        )


def range_of_shard(size: int, num_shards: int, shard: int) -> tuple[int, int]:
    """Return ``[start, stop)`` of a dense vector of ``size`` values that ``shard`` holds."""
    return shard * size // num_shards, (shard + 1) * size // num_shards
