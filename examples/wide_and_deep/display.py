"""What a person sees while the job trains: a live table, or plain lines in a log."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from rich.console import Console
from rich.live import Live
from rich.table import Table

import paramfleet as fleet

__all__ = ["progress_line", "progress_table", "tracked"]

T = TypeVar("T")

REDRAW_S = 0.25
"""Between two drawings of the live table."""


def tracked(
    batches: Iterable[T], *, num_steps: int, log_steps: int, console: Console | None = None
) -> Iterator[T]:
    """Yield the batches, and show how the job is getting on.

    Worker 0 shows all workers: in a live table where the console is a terminal, else in
    a line every ``log_steps`` steps. The other workers print nothing.

    Args:
        batches: What this worker trains on.
        num_steps: How many there are.
        log_steps: Steps between two lines; 0 shows nothing at all.
        console: Where to show it; see ``_console`` if not given.
    """
    console = console or _console()
    if fleet.worker_index() != 0 or log_steps == 0:
        yield from batches
    elif console.is_terminal:
        yield from _drawn(batches, num_steps=num_steps, console=console)
    else:
        for step, batch in enumerate(batches, start=1):
            yield batch
            if step % log_steps == 0 or step == num_steps:
                line = progress_line(fleet.job_progress(), num_steps=num_steps)
                console.print(line, soft_wrap=True, highlight=False)


def _console() -> Console:
    """Return standard output if it is a terminal, or leads to one; else standard error."""
    output = Console()
    return output if output.is_terminal else Console(stderr=True)


def progress_line(workers: Iterable[Mapping[str, Any]], *, num_steps: int) -> str:
    """Return one line of the facts that ``fleet.job_progress`` tells of each worker."""
    return " | ".join(
        f"worker {worker['rank']}: step {worker['step']}/{num_steps}"
        f" loss {worker['loss']:.4f} {worker['examples_per_s']:,.0f} examples/s"
        f" staleness {worker['staleness']}"
        for worker in workers
    )


def progress_table(workers: Iterable[Mapping[str, Any]], *, num_steps: int) -> Table:
    """Return the facts that ``fleet.job_progress`` tells as a table, a row per worker."""
    table = Table("worker", "step", "loss", "examples/s", "staleness", title="training")
    for worker in workers:
        table.add_row(
            str(worker["rank"]),
            f"{worker['step']}/{num_steps}",
            f"{worker['loss']:.4f}",
            f"{worker['examples_per_s']:,.0f}",
            str(worker["staleness"]),
        )
    return table


def _drawn(batches: Iterable[T], *, num_steps: int, console: Console) -> Iterator[T]:
    """Yield the batches under a live table. It is drawn between batches, by no thread."""
    drawn_at = 0.0
    with Live(console=console, auto_refresh=False) as live:
        for step, batch in enumerate(batches, start=1):
            yield batch
            if time.perf_counter() - drawn_at >= REDRAW_S or step == num_steps:
                drawn_at = time.perf_counter()
                table = progress_table(fleet.job_progress(), num_steps=num_steps)
                live.update(table, refresh=True)
