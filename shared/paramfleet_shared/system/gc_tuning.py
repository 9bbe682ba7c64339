"""Keeping a long-lived process as small as it began.

Python frees a reference cycle, and what its free lists keep, only when enough objects have
been made since; a member of a job makes few that last, so that both pile up for hours.
"""

import gc

from paramfleet_shared.system.clock import Clock

__all__ = ["PERIOD_S", "freeze", "keep_tidy"]

PERIOD_S = 60.0


def freeze() -> None:
    """Exempt what there is from every later search for garbage, once a process is set up.

    Looking through modules, kernels and models again takes 0.1 s and more.
    """
    gc.collect()
    gc.freeze()


async def keep_tidy(clock: Clock, *, period_s: float = PERIOD_S) -> None:
    """Look for garbage once a period; after ``freeze`` that takes a millisecond or so.

    Cancellation: ends it.

    Args:
        clock: Time.
        period_s: Seconds between two searches.
    """
    while True:
        await clock.sleep(period_s)
        gc.collect()
