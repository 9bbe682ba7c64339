"""Train a small model in collective mode; worker 0 prints what it found as JSON.

Every worker takes its rows of each batch, so that N of them together take the batches that
one alone takes: with plain SGD the parameters agree to rounding. With ``sum`` each worker's
loss is its share of the batch's.
"""

import json
import sys

import torch

import paramfleet as fleet
from paramfleet_shared.errors import ContractError

STEPS = 20
BATCH = 32


def main() -> None:
    """Train, and show the parameters."""
    fleet.init(is_collective=True)
    rank, size = fleet.worker_index(), fleet.worker_num()
    torch.manual_seed(rank)  # worker 0's values are everybody's
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model = fleet.distributed_model(model)
    strategy = fleet.DistributedStrategy()
    if sums := sys.argv[1:] == ["sum"]:
        strategy.loss_reduction = "sum"
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = fleet.distributed_optimizer(inner, strategy)
    random = torch.Generator().manual_seed(7)
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, 8, generator=random)
        labels = inputs.sum(1, keepdim=True)
        errors = (model(inputs[rank::size]) - labels[rank::size]).square()
        loss = errors.sum() / BATCH if sums else errors.mean()
        optimizer.minimize(loss)
        losses.append(float(fleet.util.all_reduce(loss.item()) / (1 if sums else size)))
    fleet.barrier_worker()
    everyone = fleet.util.all_gather([fleet.worker_index(), fleet.is_first_worker()])
    shares = {
        "files": fleet.util.all_gather(fleet.data.split_files(["a", "b", "c", "d", "e"])),
        "samples": fleet.util.all_gather(
            list(fleet.data.DistributedSampler(range(10), shuffle=False))
        ),
        "refused": refused(size),
    }
    values = torch.cat([p.detach().flatten() for p in model.parameters()])
    shards = fleet.util.all_gather(values.tolist())
    fleet.stop_worker()
    if rank == 0:
        print(
            json.dumps(
                {
                    "losses": losses,
                    "values": shards,
                    "everyone": everyone,
                    "names": list(model.state_dict()),
                    "shares": shares,
                }
            )
        )


def refused(size: int) -> list[str]:
    """Return why there must be something for every worker."""
    said = []
    for share in (fleet.data.split_files, fleet.data.DistributedSampler):
        try:
            share(["one"] * (size - 1))
        except ContractError as error:
            said.append(str(error))
    return said


if __name__ == "__main__":
    main()
