"""LocalSGD's costs are drawn as they grow: TensorBoard's files, curves and metrics."""

from pathlib import Path

import pytest

from paramfleet.session.curves import Curves
from paramfleet.training.localsgd.core.ledger import Ledger

reading = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator",
    reason="the extra 'visual' isn't installed",
)


def test_each_step_with_an_exchange_is_a_point(tmp_path: Path) -> None:
    ledger, curves = Ledger(), Curves()
    curves.begin(ledger, str(tmp_path), rank=3)

    for step, k_steps in [(1, 2), (2, 2), (3, 4), (4, 4)]:
        ledger.stepped()
        if step % 2:
            ledger.exchanged()
            ledger.sent(100)
            ledger.chose(k_steps, step=step)
    curves.end()
    curves.end()

    written = reading.EventAccumulator(str(tmp_path / "worker3")).Reload()
    found = {
        tag: [(each.step, each.value) for each in written.Scalars(tag)]
        for tag in written.Tags()["scalars"]
    }
    assert found == {
        "localsgd/synchronisations": [(1, 1.0), (3, 2.0)],
        "localsgd/sent_bytes": [(1, 100.0), (3, 200.0)],
        "localsgd/stall_seconds": [(1, 0.0), (3, 0.0)],
        "localsgd/k_steps": [(1, 2.0), (3, 4.0)],
    }


def test_without_a_folder_nothing_is_watched() -> None:
    ledger, curves = Ledger(), Curves()

    curves.begin(ledger, "", rank=0)
    ledger.stepped()
    curves.end()

    assert ledger.steps == 1
