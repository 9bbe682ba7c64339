"""Train in sync, with checkpoints by time, until the job is killed or the steps are done."""

import argparse
import json
import sys
import threading
from pathlib import Path

import torch

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--stop_after", type=int, default=0)
parser.add_argument("--mode", default="sync")
parser.add_argument("--files", nargs="+", required=True)
parser.add_argument("--pretrained", default="")
parser.add_argument("--final", required=True)
args = parser.parse_args()

fleet.init()
if fleet.is_server():
    fleet.init_server(args.pretrained or None)
    fleet.run_server()
    sys.exit(0)

torch.manual_seed(0)
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 2}
strategy.checkpoint_configs = {"every_steps": 10, "dirname": "saved", "keep": 3}
model = torch.nn.Sequential(
    fleet.nn.Embedding(0, 2), torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.ReLU()
)
model = fleet.distributed_model(torch.nn.Sequential(*model, torch.nn.Linear(3, 1)))
optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=0.05), strategy)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
dataset = fleet.data.QueueDataset()
dataset.init(batch_size=4, use_var=[fleet.data.Slot("number")])
dataset.set_filelist(
    fleet.data.split_files(args.files, fleet.worker_index(), fleet.worker_num())
)
batches = fleet.prefetch(dataset, model)
fleet.register_for_checkpointing(scheduler=scheduler, data=batches)
fleet.init_worker()
began, losses, numbers = optimizer.num_steps, [], []
for batch in batches:
    ids = batch["number"].values
    loss = model(ids).pow(2).mean()
    optimizer.minimize(loss)
    scheduler.step()
    losses.append(loss.item())
    numbers += ids.tolist()
    if optimizer.num_steps == args.stop_after:
        pause = threading.Event()
        while not Path("saved", "latest").resolve().match(f"*-step-{args.stop_after}"):
            pause.wait(0.01)  # it is written beside the training, and named last
        print(f"stands still after {optimizer.num_steps}", file=sys.stderr, flush=True)
        threading.Event().wait()  # until the whole job is killed
fleet.average_buffers()
fleet.finish_training()
fleet.save_persistables(args.final)
resumed_from = fleet.resumed_from()
result = {
    "began": began,
    "losses": losses,
    "numbers": numbers,
    "resumed_from": resumed_from and resumed_from.name,
}
print(json.dumps(result), file=sys.stderr, flush=True)
fleet.stop_worker()
