from io import StringIO

import pytest
from rich.console import Console

import paramfleet as fleet
from display import progress_line, progress_table, tracked

WORKERS = [
    {"rank": 0, "step": 10, "loss": 0.5, "examples_per_s": 12_345.6, "staleness": 0},
    {"rank": 1, "step": 9, "loss": 0.25, "examples_per_s": 999.0, "staleness": 2},
]


def test_a_line_tells_every_worker() -> None:
    assert progress_line(WORKERS, num_steps=20) == (
        "worker 0: step 10/20 loss 0.5000 12,346 examples/s staleness 0"
        " | worker 1: step 9/20 loss 0.2500 999 examples/s staleness 2"
    )


def test_a_table_has_a_row_for_every_worker() -> None:
    console = Console(width=80)

    with console.capture() as shown:
        console.print(progress_table(WORKERS, num_steps=20))

    assert "12,346" in shown.get()
    assert "9/20" in shown.get()


@pytest.mark.parametrize("log_steps", [0, 1, 2])
def test_the_batches_pass_through_and_lines_come_in_time(
    log_steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.init()
    seen = []

    for batch in tracked("abc", num_steps=3, log_steps=log_steps):
        seen.append(batch)
        fleet.report(loss=0.5, examples=1)

    assert seen == ["a", "b", "c"]
    lines = capsys.readouterr().err.count("worker 0")
    assert lines == {0: 0, 1: 3, 2: 2}[log_steps]


def test_on_a_terminal_a_table_ends_at_the_last_step() -> None:
    fleet.init()
    shown = StringIO()
    console = Console(file=shown, force_terminal=True, width=80)

    for _ in tracked("abc", num_steps=3, log_steps=1, console=console):
        fleet.report(loss=0.125, examples=1)

    assert "0.1250" in shown.getvalue()
    assert "staleness" in shown.getvalue()
