"""What all workers do between two steps, so that it succeeds in all of them or in none."""

import json
from collections.abc import Callable
from typing import Any

from paramfleet.training.collective.world import World
from paramfleet_shared.errors import FleetError, error_from_wire, error_to_wire

__all__ = ["in_all"]


def in_all(world: World, name: str, act: Callable[[], Any]) -> list[Any]:
    """Do something in every worker, and wait until all have.

    Args:
        world: The workers; each of them calls this.
        name: Of what they do.
        act: Does it, and returns what JSON can carry.

    Returns:
        What it returned in each worker, by rank.

    Raises:
        FleetError: what it raised in this worker, else what it raised in the first that
            failed.
        PeersLostError: naming who didn't come.
    """
    own: FleetError | None = None
    result: Any = None
    try:
        result = act()
    except FleetError as error:
        own = error
    said = json.dumps([result, None if own is None else error_to_wire(own)]).encode()
    answers = [json.loads(answer) for answer in world.gather(name, said)]
    if own is not None:
        raise own
    for _, failure in answers:
        if failure is not None:
            theirs = error_from_wire(failure)
            raise theirs
    return [answer for answer, _ in answers]
