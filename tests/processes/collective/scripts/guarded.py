"""Train in collective mode with a batch of worker 1 that is NaN; worker 0 prints the end."""

import json

import torch

import paramfleet as fleet


def main() -> None:
    """Train, and show the parameters of all workers."""
    fleet.init(is_collective=True)
    rank, size = fleet.worker_index(), fleet.worker_num()
    torch.manual_seed(rank)  # worker 0's values are everybody's
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    model = fleet.distributed_model(model)
    strategy = fleet.DistributedStrategy()
    strategy.guard_configs = {"action": "skip", "loss_max": 100.0}
    inner = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = fleet.distributed_optimizer(inner, strategy)
    random = torch.Generator().manual_seed(7)
    for step in range(1, 7):
        inputs = torch.randn(16, 8, generator=random)[rank::size]
        if step == 3 and rank == 1:
            inputs = inputs * float("nan")
        loss = model(inputs).square().mean() + (1000.0 if step == 5 and rank == 0 else 0.0)
        optimizer.minimize(loss)
    assert optimizer.guard is not None
    values = torch.cat([v.detach().flatten() for v in model.state_dict().values()])
    told = {**optimizer.guard.facts(), "values": values.tolist(), "steps": optimizer.num_steps}
    everyone = fleet.util.all_gather(told)
    fleet.stop_worker()
    if rank == 0:
        print(json.dumps(everyone))


if __name__ == "__main__":
    main()
