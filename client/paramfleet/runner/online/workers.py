"""What the workers of a training by days agree on, between two passes."""

from typing import Any

import paramfleet as fleet
from paramfleet.api.public import conduct, session
from paramfleet.runner.online.errors import NotTogetherError
from paramfleet_shared.discovery.errors import BarrierTimeoutError

__all__ = ["agree", "check_together", "idle", "settle", "stops", "tell"]

settle = conduct.settle
idle = conduct.idle
stops = conduct.should_stop


def check_together() -> None:
    """Pass if all workers of the job begin now, and stay.

    Raises:
        NotTogetherError: if they come and go.
    """
    communicator = session.communicator
    if communicator is None:
        return
    if communicator.session.elastic:
        raise NotTogetherError(what="an elastic job")
    if communicator.session.late:
        raise NotTogetherError(what="a worker that was started again while others train")


def agree(**said: Any) -> list[dict[str, Any]]:
    """Return what every worker says, plain values by name, by rank; every worker calls it.

    While an operator has the job wait, it waits too.

    Raises:
        BarrierTimeoutError: naming who is missing.
        FleetError: if the job failed.
    """
    while True:
        try:
            return fleet.util.all_gather(said)
        except BarrierTimeoutError:
            if not conduct.is_paused:
                raise


def tell(**facts: Any) -> None:
    """Say on the job's page where this worker is."""
    session.progress.note(by_days=facts)
