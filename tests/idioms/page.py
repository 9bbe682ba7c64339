"""The page ``docs/pytorch.md``, from the records."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.idioms.record import BOUND, IDIOMS, MODES, Idiom, Mode
from tests.idioms.rows import load

__all__ = ["MODES_OF_PAGE", "PAGE", "render"]

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"

MODES_OF_PAGE: Final[Mapping[Mode, str]] = {
    "alone": "alone",
    "sync": "sync",
    "async": "async",
    "geo": "GEO",
    "gpubox": "gpubox",
    "collective": "collective",
}

HEAD = """\
# PyTorch idioms

A training loop that was written for PyTorch has one of three outcomes in each mode:

1. It computes **the numbers of one torch process** that trains the same batches.
2. It computes other numbers for **a documented reason**. A warning on the terminal names the
   reason and the remedy, unless the mode itself is the reason ([modes](modes.md)).
3. **An error of paramfleet** refuses it before the first wrong step.

The tables show the outcome of {count} idioms. `tests/idioms` runs each loop in torch and in
each mode, compares all losses, rows and dense values, and fails if a cell is wrong. `make docs`
writes this page from the records of these tests.

## How to read a cell

{meanings}
{columns}
With one worker, async and GEO wait for nobody and merge nothing, so *same* has a meaning there.
Several workers add what the mode's guarantee allows ([modes](modes.md),
[accuracy](accuracy.md)): in async the gradient of each worker is a step of its own; in GEO the
changes of several workers to one row are merged.

## Why numbers differ

- **Rows without a gradient stay.** The rows of an embedding are stepped as by
  `torch.optim.SparseAdam`: a row without a gradient in a step keeps its value and its states.
  torch's dense optimizers move such rows by momentum and weight decay. SGD and Adagrad without
  them have no such difference ([optimizers](optimizers.md)).
- **A regularizer covers the rows of the step.** A term over `emb.weight` in the loss covers
  the rows that the step looks up, each once. In sync and gpubox the term of a worker covers
  the rows of its own part of the batch, and the loss of the step is the mean of the workers'
  losses ([embeddings](embeddings.md#regularizers)).
- **A worker has its part of the batch.** In sync and gpubox `p.grad` is the gradient of the
  worker's own part until the step merges the gradients; collective mode merges in `backward()`.
  [Clipping](modes.md#clipping) in sync uses the merged gradient. BatchNorm normalizes by the
  worker's own part, unless `strategy.sync_batch_norm` is set.
- **Each worker has its own random numbers.** Workers with the same seed draw the same masks of
  dropout, each for its own part of the batch; one process draws a mask for the whole batch.
- **Rows of a pass are on the device.** In gpubox rows can be written between two passes, and a
  pass has the rows of its batches only ([gpubox](gpubox.md)).
- **Ids have no end.** An id outside `num_embeddings` gets a row, and `padding_idx` is an id;
  both are warned of.
"""

MEANINGS = {
    "same": f"All numbers are within {BOUND:.0e} of one torch process that trains the whole "
    "batches: a small model, mostly six steps of SGD. A row with another bound says so.",
    "differs: how": "The numbers differ for this reason. A name behind it in code style is the "
    "warning on the terminal.",
    "refused: `code`": "A call or a step raises an error of paramfleet with this `code`. Its "
    "text says what to call instead.",
}

COLUMNS = {
    "alone": "one process without a job: `python train.py`",
    "sync": "one pserver and two workers; each worker trains half of each batch",
    "async": "one pserver and one worker",
    "GEO": "one pserver and one worker, which exchanges after each step (`k_steps` is 1, "
    "`geo_growth` is 0)",
    "gpubox": "one pserver and two workers; each worker trains half of each batch in a "
    "`fleet.device_pass` on the CPU",
    "collective": "two workers with gloo; each worker trains half of each batch. The model has "
    "`torch.nn.Embedding`, because this mode has no servers",
}


def render() -> str:
    """Return the page."""
    load()
    groups: dict[str, list[Idiom]] = {}
    for record in IDIOMS.values():
        groups.setdefault(record.group, []).append(record)
    head = HEAD.format(
        count=len(IDIOMS),
        meanings=_table(("cell", "meaning"), MEANINGS.items()),
        columns=_table(("column", "what runs"), COLUMNS.items()),
    )
    parts = [head]
    for group, records in groups.items():
        rows = [_row(record) for record in records]
        parts += [f"## {group}\n", _table(("idiom", *MODES_OF_PAGE.values()), rows)]
    return "\n".join(parts)


def _row(record: Idiom) -> list[str]:
    title = record.title
    if record.bound != BOUND:
        title += f" (bound {record.bound:g})"
    return [title, *(record.cell(mode).text for mode in MODES)]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
    ]
    return "\n".join([*lines, ""])
