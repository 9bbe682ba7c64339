"""What ``fleet.`` offers beside ``data`` and ``nn``: the process's one session.

It needs torch; ``paramfleet`` itself loads it when one of these names is first used.
"""

from paramfleet.api.all_to_all import Exchange
from paramfleet.api.clipping import GradientClipping
from paramfleet.api.collectives import Util
from paramfleet.api.device_passing import DevicePassing
from paramfleet.api.operator_commands import Conduct
from paramfleet.api.prefetching import Prefetching
from paramfleet.api.psgpu import PsGpuMaking
from paramfleet.api.removing import Removing
from paramfleet.api.reporting import Reporting
from paramfleet.api.shrinking import Shrinking
from paramfleet.config.roles import PaddleCloudRoleMaker, Role, UserDefinedRoleMaker
from paramfleet.config.strategy import DistributedStrategy
from paramfleet.nn.average import Average
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet.telemetry.job_metrics import Metrics
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet_shared.checkpoint.saved_rows import load_rows

__all__ = [
    "PSGPU",
    "DistributedOptimizer",
    "DistributedStrategy",
    "PaddleCloudRoleMaker",
    "Role",
    "UserDefinedRoleMaker",
    "average_buffers",
    "barrier_worker",
    "clip_grad_norm_",
    "conduct",
    "device_pass",
    "distributed_model",
    "distributed_optimizer",
    "ema",
    "finish_training",
    "init",
    "init_server",
    "init_worker",
    "is_first_worker",
    "is_server",
    "is_worker",
    "job_progress",
    "leave",
    "load_checkpoint",
    "load_model",
    "load_rows",
    "metrics",
    "newest_checkpoint",
    "prefetch",
    "prefetch_rows",
    "register_for_checkpointing",
    "remove_rows",
    "report",
    "restart_count",
    "resumed_from",
    "run_server",
    "save_checkpoint",
    "save_inference_model",
    "save_persistables",
    "server_endpoints",
    "server_index",
    "server_num",
    "session",
    "set_date",
    "should_stop",
    "shrink",
    "stop_worker",
    "util",
    "worker_endpoints",
    "worker_index",
    "worker_num",
]

session = Session()
_saving = Saving(session)
_reporting = Reporting(session)
conduct = Conduct(session, _saving)

init = session.init
init_server = session.init_server
run_server = session.run_server
init_worker = session.init_worker
resumed_from = session.resumed_from
average_buffers = session.average_buffers
finish_training = session.finish_training
stop_worker = session.stop_worker
leave = session.depart
is_worker = session.is_worker
is_server = session.is_server
is_first_worker = session.is_first_worker
worker_index = session.worker_index
worker_num = session.worker_num
restart_count = session.restart_count
worker_endpoints = session.worker_endpoints
server_index = session.server_index
server_num = session.server_num
server_endpoints = session.server_endpoints
barrier_worker = session.barrier_worker
distributed_model = session.distributed_model
distributed_optimizer = session.distributed_optimizer
register_for_checkpointing = session.register_for_checkpointing
clip_grad_norm_ = GradientClipping(session).clip_grad_norm_
_prefetching = Prefetching(session, conduct.should_stop)
prefetch = _prefetching.prefetch
prefetch_rows = _prefetching.prefetch_rows
remove_rows = Removing(session).remove_rows
_shrinking = Shrinking(session)
set_date = _shrinking.set_date
shrink = _shrinking.shrink
_passing = DevicePassing(session, conduct.should_stop, conduct.between_passes)
device_pass = _passing.device_pass
PSGPU = PsGpuMaking(session, _passing).make
should_stop = conduct.should_stop
report = _reporting.report
job_progress = _reporting.job_progress
save_persistables = _saving.save_persistables
load_model = _saving.load_model
save_checkpoint = save_persistables
load_checkpoint = load_model
newest_checkpoint = _saving.newest_checkpoint
save_inference_model = _saving.save_inference_model
ema = Average
util = Util(
    gather=session.gather,
    barrier=session.worker_barrier,
    rank=session.worker_index,
    size=session.worker_num,
    exchange=Exchange(session).run,
)
metrics = Metrics(util.all_reduce, util.all_gather)
