"""Where the workers of a job come together for a load that an operator asked for.

Every worker *arrives*: it says at which step it is, and gets what all others have said. All
judge that alike, so all load, or none does.

In sync a step needs every worker. Who learns of the order between two steps waits there;
another may be within the next, which it can't end before that. So all go on to the last step
that one of them has begun. In other modes each goes on until all have arrived, and loads at the
end of the step that it takes then.

Nothing here waits or knows the time.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal, NamedTuple

import msgpack

from paramfleet_shared.errors import ContractError

__all__ = ["Arrival", "LoadNotBegunError", "Verdict", "judge_arrivals"]


class LoadNotBegunError(ContractError):
    """The workers didn't come together for a load that was asked for."""

    code = "contract.load_not_begun"
    folder: str
    reason: str
    sentence = "the load of {folder} has not begun: {reason}; nothing was changed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """What a worker says of itself."""

    number: int
    """Of the load."""

    step: int
    """Steps that this worker has begun; in sync it can't take the next one alone."""

    ended: bool
    """Whether it takes no step any more."""

    waits_at: str
    """The name of what it waits for all workers at; empty while it trains."""

    known_s: float
    """For how long it knows of the load."""

    def packed(self) -> bytes:
        """Return it as bytes."""
        packed: bytes = msgpack.packb(astuple(self))
        return packed

    @classmethod
    def unpacked(cls, packed: bytes) -> "Arrival":
        """Rebuild it from ``packed``'s bytes."""
        said: list[Any] = msgpack.unpackb(packed)
        number, step, ended, waits_at, known_s = said
        return cls(number=number, step=step, ended=ended, waits_at=waits_at, known_s=known_s)


class Verdict(NamedTuple):
    """What all workers do."""

    kind: Literal["load", "again", "drop"]
    """``again``: arrive once more, later."""
    step: int = 0
    """``load``: in sync, behind this one."""
    reason: str = ""
    """``drop``: why."""


def judge_arrivals(arrivals: Sequence[Arrival], *, patience_s: float) -> Verdict:
    """Return what follows from what all workers have said, by rank."""
    if len({each.number for each in arrivals}) > 1:
        return Verdict("again")
    for rank, each in enumerate(arrivals):
        if each.ended:
            return Verdict("drop", reason=f"worker {rank} has ended its training")
    latest = max(range(len(arrivals)), key=lambda rank: arrivals[rank].known_s)
    if arrivals[latest].known_s > patience_s:
        waits_at = arrivals[latest].waits_at
        where = f", and waits at {waits_at!r}" if waits_at else ""
        seconds = f"{arrivals[latest].known_s:.0f} s"
        return Verdict(
            "drop",
            reason=f"worker {latest} came to the end of a step only after {seconds}{where}",
        )
    if any(each.waits_at for each in arrivals):
        return Verdict("again")
    return Verdict("load", step=max(each.step for each in arrivals))
