"""Train on some of the data, save or load in between, and print what was used.

``numbers``: of the samples that were used; ``rates``: of each step; ``steps`` at the end.
"""

import argparse
import json

import torch

import paramfleet as fleet
from paramfleet.api.public import session

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync", help="alone is what sync does without a job")
parser.add_argument("--files", nargs="+", required=True)
parser.add_argument("--batches", type=int, default=1 << 30)
parser.add_argument("--save", default="")
parser.add_argument("--beside", default="", help="folder of a checkpoint after 5 steps")
parser.add_argument("--load", default="")
parser.add_argument("--server_load", default="")
parser.add_argument("--prefetch", action="store_true")
args = parser.parse_args()

fleet.init()
if fleet.is_server():
    fleet.init_server(args.server_load or None)
    fleet.run_server()
    raise SystemExit(0)

torch.manual_seed(0)
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode in {"async", "geo"}
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 2}
if args.mode == "localsgd":
    strategy.a_sync = strategy.localsgd = True
if args.beside:
    strategy.checkpoint_configs = {"every_steps": 5, "dir": args.beside}
has_rows = args.mode != "localsgd"
model = torch.nn.Sequential(torch.nn.Linear(1, 1))
if has_rows:
    model = torch.nn.Sequential(fleet.nn.Embedding(0, 2), torch.nn.Linear(2, 1))
model = fleet.distributed_model(model)
optimizer = fleet.distributed_optimizer(
    torch.optim.Adagrad(model.parameters(), lr=1.0), strategy
)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
dataset = fleet.data.QueueDataset()
dataset.init(batch_size=4, use_var=[fleet.data.Slot("number")])
dataset.set_filelist(
    fleet.data.split_files(args.files, fleet.worker_index(), fleet.worker_num())
)
batches = fleet.prefetch(dataset, model, depth=2) if args.prefetch else dataset
fleet.register_for_checkpointing(scheduler=scheduler, data=batches)
fleet.init_worker()
lacking = fleet.load_model(args.load) if args.load else []
began = optimizer.num_steps
numbers, rates = [], []
for count, batch in enumerate(batches):
    if count == args.batches:
        break
    ids = batch["number"].values
    numbers += ids.tolist()
    rates.append(optimizer.param_groups[0]["lr"])
    inputs = ids if has_rows else ids[:, None].float()
    optimizer.minimize(model(inputs).pow(2).mean())
    scheduler.step()
    if args.save and count + 1 == args.batches and session.is_first_worker():
        fleet.save_persistables(args.save)
fleet.stop_worker()
print(
    json.dumps(
        {
            "numbers": numbers,
            "rates": rates,
            "steps": [began, optimizer.num_steps],
            "lacking": lacking,
        }
    )
)
