"""What a person sees while a model trains: a live table, or plain lines in a log."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

import paramfleet as fleet

__all__ = ["Display", "metrics_text", "shown"]


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return ``auc 0.7123, loss 0.1301``."""
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


class Display:
    """Lines, or a table that is drawn anew. Worker 0 shows all workers, others nothing.

    Args:
        console: Where to show it.
        live: The table; None writes lines.
        silent: Whether to show nothing at all.
    """

    def __init__(self, console: Console, live: Live | None, *, silent: bool) -> None:
        self._console = console
        self._live = live
        self._silent = silent

    def say(self, line: str) -> None:
        """Show a line."""
        if not self._silent:
            self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def progress(self, *, part: str, step: int, metrics: Mapping[str, float]) -> None:
        """Show how far training is.

        Args:
            part: Of what part of it, as ``epoch 3``.
            step: Steps of this worker in it.
            metrics: What this worker has counted in it.
        """
        if self._silent:
            return
        workers = fleet.job_progress()
        if self._live is not None:
            title = f"{part}, step {step}: {metrics_text(metrics)}"
            self._live.update(_table(workers, title=title), refresh=True)
            return
        speeds = sum(worker["examples_per_s"] or 0.0 for worker in workers)
        speed = f", {speeds:,.0f} examples/s" if speeds else ""  # not known at the beginning
        self.say(f"{part}, step {step}: {metrics_text(metrics)}{speed}")


@contextlib.contextmanager
def shown(*, interval: int) -> Iterator[Display]:
    """Show training as long as the block runs; with an interval of 0, nothing."""
    output = Console()
    console = output if output.is_terminal else Console(stderr=True)
    silent = interval == 0 or fleet.worker_index() != 0
    if silent or not console.is_terminal:
        yield Display(console, None, silent=silent)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield Display(console, live, silent=False)


def _table(workers: Iterable[Mapping[str, Any]], *, title: str) -> Table:
    table = Table("worker", "step", "loss", "examples/s", "staleness", title=title)
    for worker in workers:
        table.add_row(
            str(worker["rank"]),
            str(worker["step"]),
            f"{worker['loss']:.4f}",
            f"{worker['examples_per_s'] or 0:,.0f}",
            str(worker["staleness"]),
        )
    return table
