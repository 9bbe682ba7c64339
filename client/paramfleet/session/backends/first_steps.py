"""What a script that trains alone is told at its first steps."""

import logging
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from numba.core.event import Event, Listener, register

from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_shared.tables.kernels.basics.readiness import COMPILING
from paramfleet_shared.telemetry.logs_and_metrics import note

__all__ = ["KernelNews", "watch_first_steps"]

log = logging.getLogger(__name__)

_NOT_BEGUN = (
    "fleet.init_worker() wasn't called before this step; the training goes on alone, but a job "
    "(`paramfleet launch`) refuses it: call it after fleet.distributed_optimizer() and before "
    "the first step"
)

_OURS = ("paramfleet.", "paramfleet_shared.")


class KernelNews(Listener):
    """Says when this process begins to compile kernels, and at a step's end how long it took.

    numba calls it, from any thread, one at a time. Kernels that were kept on disk are loaded,
    and not compiled.

    Args:
        clock: Measures how long it takes.
        say: Takes an event's name and its facts.
    """

    def __init__(self, clock: Clock, say: Callable[[str, dict[str, Any]], None]) -> None:
        self._clock = clock
        self._say = say
        self._lock = threading.Lock()
        self._depth = 0
        """Kernels under way: one may need another."""
        self._began = 0.0
        self._seconds = 0.0
        self._is_told = False
        """Whether it was said that kernels are compiled, and not yet how long it took."""

    def on_start(self, event: Event) -> None:
        """Note that numba begins to compile a function."""
        del event
        with self._lock:
            self._depth += 1
            if self._depth > 1:
                return
            self._began = self._clock.monotonic()
            is_new, self._is_told = not self._is_told, True
        if is_new:
            self._say("kernels.compiling", {"doing": COMPILING})

    def on_end(self, event: Event) -> None:
        """Note that numba has compiled a function."""
        del event
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._seconds += self._clock.monotonic() - self._began

    def notify(self, event: Event) -> None:
        """Take an event of numba's; those of a script's own functions are nobody's news."""
        if _is_ours(event):
            super().notify(event)  # type: ignore[no-untyped-call]  # numba has no types

    def tell(self) -> None:
        """Say how long it took, if it was said that it began."""
        with self._lock:
            if not self._is_told or self._depth:
                return
            seconds, self._seconds, self._is_told = self._seconds, 0.0, False
        self._say("kernels.compiled", {"seconds": round(seconds, 1)})


@cache
def _kernel_news() -> KernelNews:
    news = KernelNews(SystemClock(), lambda event, facts: note(log, event, **facts))
    register("numba:compile", news)  # type: ignore[no-untyped-call]  # as above
    return news


def watch_first_steps(optimizer: DistributedOptimizer, has_begun: Callable[[], bool]) -> None:
    """Tell a script what it waits for while kernels are compiled, and what it forgot.

    Args:
        optimizer: Trains in this process alone.
        has_begun: Returns whether ``fleet.init_worker`` was called.
    """
    news = _kernel_news()

    def before(*_: Any) -> None:
        handle.remove()
        if not has_begun():
            log.warning("worker.not_begun", extra={"reason": _NOT_BEGUN})

    def after(*_: Any) -> None:
        news.tell()

    handle = optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def _is_ours(event: Event) -> bool:
    """Return whether numba compiles a kernel of ours."""
    function = getattr((event.data or {}).get("dispatcher"), "py_func", None)
    return str(getattr(function, "__module__", "")).startswith(_OURS)
