"""Forget that every worker makes a collective call: worker 0 alone does."""

import argparse

import torch

import paramfleet as fleet
from paramfleet import runner

parser = argparse.ArgumentParser()
parser.add_argument("--finished", action="store_true", help="when all have finished, and left")
parser.add_argument("--mark", help="by which a test finds this process")
args = parser.parse_args()

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

model = fleet.distributed_model(fleet.nn.EmbeddingBag(0, 1, mode="sum"))
inner = torch.optim.Adagrad(model.parameters(), lr=0.1)
optimizer = fleet.distributed_optimizer(inner, fleet.DistributedStrategy())
fleet.init_worker()
auc = runner.Auc()
optimizer.minimize(model(torch.arange(8).reshape(4, 2)).sum())
auc.update(torch.tensor([0.2, 0.8]), torch.tensor([0, 1]))
if args.finished:
    fleet.finish_training()
if fleet.is_first_worker():
    print(f"auc {auc.merged()}", flush=True)
fleet.stop_worker()
