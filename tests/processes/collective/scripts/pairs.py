"""Go through every feature and every pair of two; worker 0 prints what became of each.

Behind them comes how workers agree on their buffers. Each is a job of its own in the same
processes: a new session, at an address of its own.
"""

import itertools
import json
from dataclasses import replace
from typing import Any

import torch

from paramfleet.config.roles import PaddleCloudRoleMaker
from paramfleet.config.strategy import DistributedStrategy
from paramfleet.session.session import Session
from paramfleet_shared.errors import ContractError

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gradient_merge": {"gradient_merge_configs": {"k_steps": 2}},
    "amp": {"amp_configs": {"init_loss_scaling": 64.0}},
    "lars": {"lars_configs": {"lars_coeff": 0.5}},
    "lamb": {},
    "dgc": {"dgc_configs": {"sparsity": [0.5], "rampup_begin_step": 2}},
    "fp16_allreduce": {"fp16_allreduce_configs": {"dtype": "bfloat16"}},
    "sharding": {"sharding_configs": {"stage": 3}},
    "localsgd": {"localsgd_configs": {"k_steps": 2}},
    "adaptive_localsgd": {"adaptive_localsgd_configs": {"init_k_steps": 2}},
    "diloco": {"diloco_configs": {"k_steps": 2}},
    "fuse_grad_size_in_MB": {"fuse_grad_size_in_MB": 1},
    "find_unused_parameters": {"find_unused_parameters": True},
    "sync_batch_norm": {"sync_batch_norm": True},
    "loss_reduction": {"loss_reduction": "sum"},
}
STEPS = 12


def main() -> None:
    """Train with all of them."""
    found: dict[str, Any] = {}
    pairs = [*((name, name) for name in OPTIONS), *itertools.combinations(list(OPTIONS)[1:], 2)]
    for number, pair in enumerate(pairs):
        session = begun(f"pair{number}")
        try:
            found["+".join(sorted(set(pair)))] = train(session, pair)
        except ContractError as error:
            found["+".join(sorted(set(pair)))] = str(error)
        session.stop_worker()
    session = begun("buffers")
    statistics = buffers(session)
    session.stop_worker()
    if PaddleCloudRoleMaker(True).index == 0:
        print(json.dumps({"pairs": found, "buffers": statistics}))


def begun(attempt: str) -> Session:
    """Return the session of a job with a meeting point of its own."""
    session = Session()
    role = PaddleCloudRoleMaker(True)
    assert role.rendezvous is not None
    session.init(replace(role, rendezvous=replace(role.rendezvous, attempt=attempt)))
    return session


def buffers(session: Session) -> dict[str, list[list[float]]]:
    """Take some steps with data whose scale differs by worker, then agree on the buffers.

    Returns:
        A BatchNorm's statistics of all workers: their own ones, and what they agreed on.
    """
    rank = session.worker_index()
    norm = torch.nn.BatchNorm1d(2)
    model = session.distributed_model(torch.nn.Sequential(norm, torch.nn.Linear(2, 1)))
    optimizer = session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        optimizer.minimize(model((1 + 3 * rank) * torch.randn(8, 2) + rank).square().mean())

    def of_all() -> list[list[float]]:
        assert norm.running_var is not None
        own = json.dumps(norm.running_var.tolist()).encode()
        return [json.loads(each) for each in session.gather("statistics", own)]

    own = of_all()
    session.average_buffers()
    return {"own": own, "agreed": of_all()}


def train(session: Session, pair: tuple[str, str]) -> list[Any]:
    """Return the first loss, the last one, and how far the workers' values are apart."""
    strategy = DistributedStrategy()
    for name in set(pair) - {"plain"}:
        if name not in OPTIONS[name]:
            setattr(strategy, name, True)
        for key, value in OPTIONS[name].items():
            setattr(strategy, key, value)
    torch.manual_seed(session.worker_index())
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model = session.distributed_model(module)
    inner: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    if "lamb" in pair:
        inner = torch.optim.Adam(model.parameters(), lr=0.05)
    optimizer = session.distributed_optimizer(inner, strategy)
    inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(5))
    labels = inputs.sum(1, keepdim=True)
    rows = slice(session.worker_index(), None, session.worker_num())
    losses = []
    for _ in range(STEPS):
        loss = torch.nn.functional.mse_loss(model(inputs[rows]), labels[rows])
        optimizer.minimize(loss)
        losses.append(loss.item())
    session.finish_training()
    values = [full(p.detach()) for p in module.parameters()]
    own = torch.cat([value.flatten() for value in values])
    all_of_them = session.gather("values", own.numpy().tobytes())
    others = [torch.frombuffer(bytearray(each), dtype=torch.float32) for each in all_of_them]
    return [losses[0], losses[-1], max(float((own - other).abs().max()) for other in others)]


def full(parameter: torch.Tensor) -> torch.Tensor:
    """Return a sharded parameter's whole."""
    whole: torch.Tensor = getattr(parameter, "full_tensor", lambda: parameter)()
    return whole


if __name__ == "__main__":
    main()
