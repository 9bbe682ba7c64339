"""A test that is never done: ``test_left_behind.py`` runs and kills it. No run collects it."""

import signal
from typing import Any


def test_a_job(jobs: Any) -> None:
    running = jobs.start("train_long.py", workers=1, servers=1)
    running.wait_for("worker0", "training as 0")

    print("all runs", flush=True)
    signal.pause()
