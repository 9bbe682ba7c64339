"""Runs a history's work to its end, and says what waits for what where there is none."""

import asyncio
import gc
import sys
import threading
import traceback
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

__all__ = ["run_to_end"]

DEADLINE_S = 100.0
"""A history takes milliseconds; a busy machine may stand still for a minute."""

_T = TypeVar("_T")


def run_to_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Run ``work`` in an event loop of its own, and return what it returns.

    Raises:
        AssertionError: if it doesn't end; it names each executor, task and thread, and what
            threads have failed with.
    """
    failures: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        former = threading.excepthook

        def note(about: threading.ExceptHookArgs) -> None:
            failures.append(f"a thread failed: {about.thread} {about.exc_value!r}")
            former(about)

        patch.setattr(threading, "excepthook", note)
        return asyncio.run(_within_deadline(work, failures))


async def _within_deadline(work: Coroutine[Any, Any, _T], failures: list[str]) -> _T:
    said: list[str] = []
    try:
        async with asyncio.timeout(None) as limit:

            def end() -> None:
                said.extend([f"not ended after {DEADLINE_S:g} s", *failures, *_what_waits()])
                limit.reschedule(0.0)

            timer = asyncio.get_running_loop().call_later(DEADLINE_S, end)
            try:
                return await work
            finally:
                timer.cancel()
    except TimeoutError:
        raise AssertionError("\n".join(said)) from None


def _what_waits() -> Iterator[str]:
    for executor in gc.get_objects():
        if type(executor) is ThreadPoolExecutor:
            threads = [f"{each.name} {each.is_alive()}" for each in executor._threads]
            shut = f"shut down {executor._shutdown}"
            yield f"executor {threads}, {executor._work_queue.qsize()} waiting, {shut}"
    for task in asyncio.all_tasks():
        yield f"task {task.get_coro()}"
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        places = [f"{each.name}:{each.lineno}" for each in traceback.extract_stack(frame)]
        yield f"thread {names.get(ident, '?')}: {' '.join(places[-6:])}"
    yield f"traced {sys.gettrace()}, new threads {threading.gettrace()}"
