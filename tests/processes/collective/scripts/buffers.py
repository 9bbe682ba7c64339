"""Train a model with BatchNorm in collective mode; worker 0 prints all workers' statistics."""

import json

import torch

import paramfleet as fleet


def main() -> None:
    """Take some steps with data whose scale differs by worker, then agree on the buffers."""
    fleet.init(is_collective=True)
    rank = fleet.worker_index()
    norm = torch.nn.BatchNorm1d(2)
    model = fleet.distributed_model(torch.nn.Sequential(norm, torch.nn.Linear(2, 1)))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        optimizer.minimize(model((1 + 3 * rank) * torch.randn(8, 2) + rank).square().mean())
    assert norm.running_var is not None
    own = fleet.util.all_gather(norm.running_var.tolist())
    fleet.average_buffers()
    agreed = fleet.util.all_gather(norm.running_var.tolist())
    fleet.stop_worker()
    if rank == 0:
        print(json.dumps({"own": own, "agreed": agreed}))


if __name__ == "__main__":
    main()
