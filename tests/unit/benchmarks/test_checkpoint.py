"""What is made of what a job says of its checkpoints."""

import pytest

from checkpoint import FIGURES, figures_of


def test_figures_are_shares_of_the_disk_of_the_training_and_of_the_whole_one() -> None:
    said = {
        "bytes": 100e6,
        "seconds": 2.0,
        "pause_ms": 12.5,
        "plain_steps_per_s": 44.0,
        "steps_per_s": 40.0,
        "bare_steps_per_s": 22.0,
        "increment_bytes": 3e6,
        "increment_seconds": 0.1,
    }

    found = figures_of(said, [50e6, 75e6])

    assert list(found) == list(FIGURES)
    assert list(found.values()) == pytest.approx([0.8, 12.5, 1.1, 2.0, 0.03, 0.05])
