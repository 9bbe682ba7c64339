"""What a run came to: one line of JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paramfleet.runner.config.configuration import Config

__all__ = ["Outcome", "model_name"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a training, or of scoring checkpoints."""

    model: str
    mode: str
    workers: int
    servers: int
    epochs: int
    metrics: Mapping[str, float]
    scored_on: str
    """What the metrics are of: ``test``, ``train``, or ``last pass, before it was trained``."""
    examples_per_s: float
    """Of all workers together."""
    unit: str = "examples"
    """What is counted."""
    seconds: float
    """From the first batch to the end of the last step, of the slowest worker."""
    localsgd: Mapping[str, Any] | None = None
    """What worker 0's exchanges cost, where workers trained apart."""
    by_days: Mapping[str, Any] | None = None
    """Passes that were trained, and the last day and pass, in a training by days."""
    profile: Mapping[str, Any] | None = None
    """Where the time of worker 0's batches went, if that was asked for."""

    def to_json(self) -> str:
        """Return one line; metrics stand in it by their own names."""
        facts: dict[str, Any] = {
            "model": self.model,
            "mode": self.mode,
            "workers": self.workers,
            "servers": self.servers,
            **({"epochs": self.epochs} if self.by_days is None else {}),
            **self.metrics,
            "scored_on": self.scored_on,
            f"{self.unit}_per_s": round(self.examples_per_s, 1),
            "seconds": round(self.seconds, 3),
        }
        if self.by_days is not None:
            facts["by_days"] = dict(self.by_days)
        if self.localsgd is not None:
            facts["localsgd"] = dict(self.localsgd)
        if self.profile is not None:
            facts["profile"] = dict(self.profile)
        return json.dumps(facts)


def model_name(config: Config[Any]) -> str:
    """Return the last two folders of the model's path: ``rank/dnn``."""
    return "/".join(config.modules.parts[-2:])
