"""Train a network with BatchNorm until a file is there; print its buffers at the start."""

import argparse
import json
import time
from pathlib import Path

import torch

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="async")
parser.add_argument("--until", required=True, help="end when this file is there")
args = parser.parse_args()

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

strategy = fleet.DistributedStrategy()
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 4}
if args.mode == "localsgd":
    strategy.localsgd = True
    strategy.localsgd_configs = {"k_steps": 4}
torch.manual_seed(0)
model = fleet.distributed_model(
    torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
)
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.01), strategy)
fleet.init_worker()
began = {name: buffer.tolist() for name, buffer in model.named_buffers()}
data = torch.Generator().manual_seed(fleet.worker_index())
step = 0
while not Path(args.until).exists():
    optimizer.minimize(model(torch.randn(16, 4, generator=data) + 7).square().mean())
    step += 1
    time.sleep(0.005)  # noqa: TID251 - leaves the cores to the other processes of the test
    if step % 20 == 0:
        print(f"trained {step}", flush=True)
fleet.stop_worker()
print(json.dumps(began))
