"""Has Paddle train and save tiny tables: ``python benchmarks/paddle_table.py FOLDER``.

The tests of ``paramfleet checkpoint import`` read what it wrote. ``sh scripts/paddle_env.sh``
makes the environment that has Paddle.
"""

import argparse
import asyncio
import json
import shutil
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from paddle_jobs import PaddleJob

VARIANTS: dict[str, dict[str, Any]] = {
    "sparse": {
        "accessor": "SparseAccessor",
        "rule": "SparseAdaGradSGDRule",
        "mode": 4,  # as text that isn't compressed
    },
    "counted": {
        "accessor": "CtrCommonAccessor",
        "rule": "SparseAdamSGDRule",
        "mode": 0,  # with gzip
    },
}
"""By the names of their folders."""

STEPS, MORE = 12, 3
"""Before the table is saved, and after it."""


async def write(name: str, target: Path) -> None:
    """Write a table's files, ``000/part-*``, and ``model.json``: all else of the model."""
    options = VARIANTS[name]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        job = PaddleJob("saved_table", options, workers=1, stack=stack, folder=folder)
        await job.start()
        await job.ask("train", first=0, steps=STEPS)
        (model,) = await job.ask("predict")
        (files,) = await job.ask("save", folder=str(folder / "saved"))
        print(*files, sep="\n")
        (more,) = await job.ask("train", first=STEPS, steps=MORE)
        (later,) = await job.ask("predict")
        await job.end()
        document = {**options, **model, "more": more, "later": later["logits"]}
        _keep(folder / "saved" / "000", target, document)


def _keep(table: Path, target: Path, document: dict[str, Any]) -> None:
    shutil.copytree(table, target / "000")
    (target / "model.json").write_text(json.dumps(document) + "\n")


async def _main(target: Path) -> None:
    for name in VARIANTS:
        await write(name, target / name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    asyncio.run(_main(parser.parse_args().folder))
