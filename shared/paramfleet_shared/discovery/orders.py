"""What an operator wants of a running job, as one value that every member receives.

It describes a state, not an action: a member that missed a version applies the next.
The coordinator writes it with its decisions, and each heartbeat returns it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from paramfleet_shared.settings.hurts import Hurt

__all__ = ["CheckpointOrder", "LoadOrder", "Orders", "ShrinkOrder"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointOrder:
    """A checkpoint that worker 0 is to have written."""

    number: int
    """Counts the checkpoints asked for, from 1."""

    dirname: str
    """Its folder; a relative one is below worker 0's working folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadOrder:
    """A checkpoint that all workers are to have loaded, between two of their steps."""

    number: int
    """Counts the loads asked for, from 1: a worker takes part in each once."""

    dirname: str
    """Its folder: an absolute path, or an address."""

    patience_s: float
    """It isn't carried out by workers that know it for longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShrinkOrder:
    """A look at the rows of tables, which worker 0 is to take."""

    number: int
    """Counts the looks asked for, from 1."""

    table: str
    """The name of one; empty for all."""

    dry_run: bool
    """Whether it only counts the rows that would go."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """How a job is to continue."""

    version: int = 0
    """Counts the changes; 0 is a job without any command."""

    paused: bool = False
    """Whether workers take no further step."""

    ends: bool = False
    """Whether workers finish their training now."""

    drained: tuple[int, ...] = ()
    """Ranks of workers that leave."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """``lr``, ``k_steps`` and ``max_staleness``, those that were changed."""

    checkpoint: CheckpointOrder | None = None
    """The latest that was asked for."""

    load: LoadOrder | None = None
    """The latest that was asked for."""

    shrink: ShrinkOrder | None = None
    """The latest that was asked for."""

    hurts: tuple[Hurt, ...] = ()
    """The latest that were asked for by `paramfleet chaos`, the oldest first."""

    def to_json(self) -> str:
        """Return the value as the registry keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Orders":
        """Rebuild it from ``to_json``'s text."""
        fields = json.loads(text)
        checkpoint, load = fields["checkpoint"], fields.get("load")
        shrink = fields.get("shrink")
        return cls(
            **{
                **fields,
                "drained": tuple(fields["drained"]),
                "hurts": tuple(Hurt.from_facts(each) for each in fields.get("hurts", ())),
                "checkpoint": CheckpointOrder(**checkpoint) if checkpoint else None,
                "load": LoadOrder(**load) if load else None,
                "shrink": ShrinkOrder(**shrink) if shrink else None,
            }
        )
