"""What the coordinator measures of its job."""

from functools import partial

from paramfleet_coordinator.api.admin_service import AdminService
from paramfleet_coordinator.routes import RpcRoutes
from paramfleet_shared.discovery.records import ROLES
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry

__all__ = ["metrics_of"]

PLAN_GAUGES = {
    "pserver_processes": "Live processes that host groups of shards, if the coordinator "
    "plans the groups.",
    "groups_unprotected": "Groups that have had no follower for longer than replica_grace_s.",
    "group_moves": "Groups that were moved to another process, since this coordinator started.",
    "group_takeovers": "Groups that a follower took over, since this coordinator started.",
}


def metrics_of(rpc_routes: RpcRoutes, service: AdminService) -> MetricRegistry:
    """Return what the coordinator's ``/metrics`` shows."""
    metrics = MetricRegistry()
    straggler = metrics.gauge(
        "job_straggler",
        "1 while the status names a straggler: a worker that delays the others.",
    )
    straggler.set_function(lambda: float(service.view.straggler is not None))
    paused = metrics.gauge("job_paused", "1 while an operator has paused the job; else 0.")
    paused.set_function(lambda: float(rpc_routes.orders.paused))
    speed = metrics.gauge("job_samples_per_s", "Examples per second of all workers.")
    speed.set_function(lambda: float(service.status()["samples_per_s"]))
    members = metrics.gauge("members", "Members with a valid lease, by role.", ["role"])
    for role in ROLES:
        members.labels(role).set_function(partial(_num_alive, rpc_routes, role))
    for name, sentence in PLAN_GAUGES.items():
        gauge = metrics.gauge(name, sentence)
        gauge.set_function(partial(_of_plan, rpc_routes, name))
    return metrics


def _of_plan(rpc_routes: RpcRoutes, name: str) -> float:
    """Return a number of the plan; 0 where groups aren't planned."""
    plan = rpc_routes.planning.describe()
    if plan is None:
        return 0.0
    if name == "pserver_processes":
        return float(sum(each["alive"] for each in plan["processes"]))
    if name == "groups_unprotected":
        return float(len(plan["unprotected"]))
    return float(plan[name.removeprefix("group_")])


def _num_alive(rpc_routes: RpcRoutes, role: str) -> float:
    members = rpc_routes.status()["members"]
    return float(sum(member["alive"] and member["role"] == role for member in members))
