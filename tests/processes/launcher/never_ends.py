"""A test that is never done: ``test_left_behind.py`` runs and kills it. No run collects it."""

import signal
from collections.abc import Callable
from typing import Any


def test_a_launch(launch: Callable[..., Any]) -> None:
    launched = launch("wait()", "--server_num=1", "--worker_num=1")
    launched.wait_all("worker 0", "pserver 0")

    print("all runs", flush=True)
    signal.pause()
