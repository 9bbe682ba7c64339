"""Ask this process's backend for everything that its protocol has, and print what it says."""

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import paramfleet as fleet
from paramfleet.api.public import session
from paramfleet.session.backends.base import Backend
from paramfleet_shared.errors import FleetError

parser = argparse.ArgumentParser()
parser.add_argument("--collective", action="store_true")
args = parser.parse_args()

fleet.init(is_collective=args.collective)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

backend = session.backend
model = fleet.distributed_model(torch.nn.Linear(2, 1))
optimizer = fleet.distributed_optimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), fleet.DistributedStrategy()
)
fleet.init_worker()
said: dict[str, Any] = {"joined": backend.joined, "stopped": backend.stopped}


def ask(
    name: str, question: Callable[[], Any], told: Callable[[Any], Any] = lambda it: it
) -> None:
    """Note an answer, or an error's class and words."""
    try:
        said[name] = told(question())
    except FleetError as error:
        said[name] = f"{type(error).__name__}: {error}"


def is_there(found: Any) -> bool:
    return found is not None


def ends_alone() -> Any:
    """Depart where that is refused or changes nothing; the others stop in good order."""
    return backend.depart(session.optimizer) if not is_there(backend.job) else None


rank = backend.worker_index()
ask("take_model", lambda: backend.take_model, callable)
ask("take_optimizer", lambda: optimizer.is_finished)
ask("start", lambda: backend.start, callable)
ask("own", lambda: backend.own.times is session.times)
ask("communicator", lambda: backend.communicator, is_there)
ask("job", lambda: backend.job, is_there)
ask("agreement", lambda: backend.agreement.model is model)
ask("collective", lambda: backend.collective, is_there)
ask("worker_index", backend.worker_index)
ask("worker_num", backend.worker_num)
ask("worker_endpoints", backend.worker_endpoints, len)
ask("server_num", backend.server_num)
ask("server_index", backend.server_index)
ask("server_endpoints", backend.server_endpoints, len)
ask("check_served", lambda: backend.check_served("what"))
ask("barrier", lambda: backend.barrier("here"))
ask("gather", lambda: backend.gather("all", bytes([rank])), lambda all_: [*b"".join(all_)])
ask("link", lambda: backend.link("what", remedy="how"), is_there)
ask("between_steps", backend.between_steps)
ask("raise_failure", backend.raise_failure)
ask("orders", backend.orders, is_there)
ask("job_facts", backend.job_facts, lambda facts: rank in facts)
ask("clipping", lambda: backend.clipping, is_there)
ask("ahead", lambda: backend.ahead(session.optimizer), is_there)
ask("remove_rows", lambda: backend.remove_rows(session.optimizer, "rows", np.arange(3)))
ask("prefetch_rows", lambda: backend.prefetch_rows(session.optimizer, "rows", np.arange(3)))
ask("running", lambda: optimizer.running, is_there)
ask("examples", lambda: optimizer.step(examples=1))
ask("depart", ends_alone)
fleet.stop_worker()
ask("stop", lambda: backend.stopped)
ask("abandon", lambda: backend.abandon("asked for"))
said["not asked"] = [n for n in dir(Backend) if not n.startswith("_") and n not in said]
print(json.dumps(said))
