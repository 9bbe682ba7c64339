"""Train a little, load what somebody refuses, and print what this worker holds then.

``before`` and ``after``: of that load; ``caught``: the errors of the load, of the next step and
of the next checkpoint; ``steps`` at the end.
"""

import argparse
import json
from typing import Any

import torch

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync")
parser.add_argument("--folder", required=True)
parser.add_argument("--refusing", type=int, default=-1, help="worker whose object refuses")
parser.add_argument("--allowing", type=int, default=-1, help="only pserver that may load")
parser.add_argument("--oddly", action="store_true", help="with an error that nobody expects")
parser.add_argument("--save", action="store_true", help="write the checkpoint, and end")
parser.add_argument("--again", default="", help="checkpoint to load after that one")
args = parser.parse_args()


class Counter:
    """Refuses in one worker, when it has taken the state."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        if fleet.worker_index() == args.refusing and self.count == 3:
            raise (AssertionError if args.oddly else ValueError)("no such count")


fleet.init()
if fleet.is_server():
    fleet.init_server()
    others = args.allowing not in {-1, fleet.server_index()}
    fleet.run_server(checkpoint_dirs=[] if others else [args.folder])
    raise SystemExit(0)

torch.manual_seed(0)
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 2}
model = fleet.distributed_model(
    torch.nn.Sequential(
        fleet.nn.Embedding(0, 2), torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1)
    )
)
optimizer = fleet.distributed_optimizer(
    torch.optim.Adagrad(model.parameters(), lr=1.0), strategy
)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
first, last = Counter(), Counter()
fleet.register_for_checkpointing(first=first, scheduler=scheduler, last=last)
fleet.init_worker()


def train(steps: int) -> None:
    for _ in range(steps):
        optimizer.minimize(model(torch.arange(4)).pow(2).mean())
        scheduler.step()
        first.count += 1
        last.count += 1


def held() -> dict[str, Any]:
    """Return what a load changes, of all workers and servers the same."""
    model.eval()
    with torch.no_grad():
        read = model(torch.arange(4)).flatten().tolist()
    model.train()
    return {
        "read": read,
        "dense": [parameter.tolist() for parameter in model[1].parameters()],
        "buffers": [buffer.tolist() for buffer in model.buffers()],
        "steps": optimizer.num_steps,
        "rate": optimizer.param_groups[0]["lr"],
        "schedule": scheduler.last_epoch,
        "counts": [first.count, last.count],
    }


def refusal(function: Any, *arguments: Any) -> list[str]:
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 - as a script that goes on after all
        return [type(error).__name__, str(error)]
    return []


if args.save:
    train(3)
    fleet.finish_training()
    fleet.save_persistables(f"{args.folder}/one")
    fleet.stop_worker()
    raise SystemExit(0)
train(1)
for _ in range(2):  # each brings what the other worker has sent before
    refusal(fleet.load_model, f"{args.folder}/one")
before = held()
caught = [refusal(fleet.load_model, f"{args.folder}/one")]
after = held()
fleet.barrier_worker()  # in async a worker would read what another one trains already
caught.append(refusal(train, 1))
caught.append(refusal(fleet.save_persistables, f"{args.folder}/two"))
if args.again:
    caught.append(refusal(fleet.load_model, args.again))
    caught.append(refusal(train, 1))
fleet.stop_worker()
print(
    json.dumps(
        {"before": before, "after": after, "caught": caught, "steps": optimizer.num_steps}
    )
)
