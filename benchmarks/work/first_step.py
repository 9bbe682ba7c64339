"""A job's first step: see ``start.py``. Times are of ``time.perf_counter``.

All processes of a Linux machine share it.
"""

import argparse
import json
import time
from pathlib import Path

import torch

import paramfleet as fleet


def main() -> None:
    """Be a pserver, or a worker of one step that notes when it has ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    fleet.init()
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = False
    model = fleet.distributed_model(
        torch.nn.Sequential(
            fleet.nn.Embedding(1000, 16, name="ids"),
            torch.nn.Linear(16, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 1),
        )
    )
    optimizer = fleet.distributed_optimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), strategy
    )
    fleet.init_worker()
    loss = model(torch.randint(1000, (256,))).square().mean()
    optimizer.minimize(loss)
    at = time.perf_counter()
    note = options.folder / f"first-{fleet.worker_index()}"
    note.write_text(json.dumps(at), encoding="utf-8")
    fleet.finish_training()
    fleet.stop_worker()


if __name__ == "__main__":
    main()
