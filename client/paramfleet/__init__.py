"""Parameter-server training for PyTorch.

    import paramfleet as fleet

    fleet.init()
    model = fleet.distributed_model(WideDeep())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters()), strategy)
    fleet.init_worker()
    ...
    fleet.stop_worker()

A process has one session; every name here works on it.
"""

from paramfleet import data, nn
from paramfleet.collectives import Util
from paramfleet.exchange import Exchange
from paramfleet.job_metrics import Metrics
from paramfleet.optimizer import DistributedOptimizer
from paramfleet.prefetch import Prefetching
from paramfleet.roles import PaddleCloudRoleMaker, Role, UserDefinedRoleMaker
from paramfleet.saving import Saving
from paramfleet.session import Session
from paramfleet.strategy import DistributedStrategy

__all__ = [  # noqa: RUF022 - grouped as a user meets them
    # life cycle
    "init",
    "init_server",
    "run_server",
    "init_worker",
    "finish_training",
    "stop_worker",
    # who and where
    "Role",
    "PaddleCloudRoleMaker",
    "UserDefinedRoleMaker",
    "is_worker",
    "is_server",
    "is_first_worker",
    "worker_index",
    "worker_num",
    "worker_endpoints",
    "server_index",
    "server_num",
    "server_endpoints",
    "barrier_worker",
    # training
    "DistributedStrategy",
    "DistributedOptimizer",
    "distributed_model",
    "distributed_optimizer",
    "prefetch",
    "report",
    "job_progress",
    # saving
    "save_persistables",
    "load_model",
    "save_inference_model",
    # modules
    "data",
    "metrics",
    "nn",
    "util",
]

_session = Session()
_saving = Saving(_session)

init = _session.init
init_server = _session.init_server
run_server = _session.run_server
init_worker = _session.init_worker
finish_training = _session.finish_training
stop_worker = _session.stop_worker
is_worker = _session.is_worker
is_server = _session.is_server
is_first_worker = _session.is_first_worker
worker_index = _session.worker_index
worker_num = _session.worker_num
worker_endpoints = _session.worker_endpoints
server_index = _session.server_index
server_num = _session.server_num
server_endpoints = _session.server_endpoints
barrier_worker = _session.barrier_worker
distributed_model = _session.distributed_model
distributed_optimizer = _session.distributed_optimizer
prefetch = Prefetching(_session).prefetch
report = _session.report
job_progress = _session.job_progress
save_persistables = _saving.save_persistables
load_model = _saving.load_model
save_inference_model = _saving.save_inference_model
util = Util(
    gather=_session.gather,
    barrier=_session.worker_barrier,
    rank=_session.worker_index,
    size=_session.worker_num,
    exchange=Exchange(_session).run,
)
metrics = Metrics(util.all_reduce)
