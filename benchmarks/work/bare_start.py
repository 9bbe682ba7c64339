"""A first step of plain torch: the model of ``first_step.py`` without a job."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch


def main() -> None:
    """Train one step, and note when it has ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    rows = torch.nn.Embedding(1000, 16, sparse=True)
    tower = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
    )
    optimizers: list[Any] = [
        torch.optim.SGD(rows.parameters(), lr=0.1),
        torch.optim.SGD(tower.parameters(), lr=0.1),
    ]
    ids = torch.randint(1000, (256,))
    loss: Any = tower(rows(ids)).square().mean()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    at = time.perf_counter()
    (options.folder / "first-0").write_text(json.dumps(at), encoding="utf-8")


if __name__ == "__main__":
    main()
