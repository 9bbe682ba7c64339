"""What the admin API knows and may do, without HTTP.

It puts the answers together from the job, its registry and the view, and writes down what an
operator asks for.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from paramfleet_coordinator.api.chaos import Hurter
from paramfleet_coordinator.core import operator_actions
from paramfleet_coordinator.core.operator_actions import Standing
from paramfleet_coordinator.core.readings import number
from paramfleet_coordinator.core.view import JobView, disk_fault_of, restoring_of
from paramfleet_coordinator.routes import RpcRoutes
from paramfleet_shared.discovery.orders import Orders
from paramfleet_shared.settings import hurting
from paramfleet_shared.settings.hurts import Hurt
from paramfleet_shared.system.clock import Clock

__all__ = ["AdminService", "UnknownWorkerRankError"]


ANSWERED_S = 0.1
"""After which a request has been answered that ends this process."""


class UnknownWorkerRankError(operator_actions.ActionRefusedError):
    """The job has no worker of that rank."""

    code = "contract.action_refused.rank"


class AdminService:
    """Answers for one run of a job.

    Args:
        rpc_routes: The job and its registry.
        view: What was seen of it.
        clock: The time of answers and events.
        checkpoint_dir: Where checkpoints go that operators ask for.
        prometheus_url: Of who reads the job's metrics; empty if that isn't known.
        hurter: Hurts what is no member; None in a job that mayn't be hurt.
    """

    def __init__(
        self,
        rpc_routes: RpcRoutes,
        view: JobView,
        *,
        clock: Clock,
        checkpoint_dir: str,
        prometheus_url: str = "",
        hurter: Hurter | None = None,
    ) -> None:
        self._hurter = hurter
        self._rpc_routes = rpc_routes
        self.view = view
        self._clock = clock
        self._checkpoint_dir = checkpoint_dir
        self._prometheus_url = prometheus_url

    def now_s(self) -> float:
        """Return the coordinator's time, which every ``at_s`` is of."""
        return round(self._clock.monotonic(), 2)

    def status(self) -> dict[str, Any]:
        """Return the whole job on one page."""
        said = self._rpc_routes.status()
        workers = self._workers(said)
        losses = [w["loss"] for w in workers if number(w["loss"]) and not w["done"]]
        orders = self._rpc_routes.orders
        return {
            "job": said["job"],
            "epoch": said["epoch"],
            "state": self._state(said, orders),
            "mode": self._standing(said).mode,
            "now_s": self.now_s(),
            "failure": said["failure"],
            "worker_num": said["worker_num"],
            "server_num": said["server_num"],
            "loss": sum(losses) / len(losses) if losses else None,
            "samples_per_s": round(sum(w["samples_per_s"] or 0.0 for w in workers), 1),
            "straggler": self.view.straggler,
            "settings": dict(self._standing(said).settings),
            "orders": _plain(orders),
            "checkpoint": dict(self.view.checkpoint) or None,
            "periodic_checkpoint": dict(self.view.periodic_checkpoint) or None,
            "load": dict(self.view.load) or None,
            "shrink": dict(self.view.shrink) or None,
            "barriers": said["barriers"],
            "tables": said["tables"],
            "plan": said["plan"],
            "prometheus_url": self._prometheus_url,
            "workers": workers,
            "servers": self._servers(said),
        }

    def tables(self) -> list[dict[str, Any]]:
        """Return each table: its rows in memory and on disk, and which pservers have most."""
        said = self._rpc_routes.status()
        tables = []
        for table in said["tables"]:
            parts = [
                {"server": member["index"], "rows": part["rows"], "bytes": part["bytes"]}
                for member in said["members"]
                if member["role"] == "pserver"
                for part in member["facts"].get("tables", ())
                if part["name"] == table["name"]
            ]
            top = sorted(parts, key=lambda part: (-part["rows"], part["server"]))
            on_disk = min(table["rows"], table.get("cold_rows", 0))  # read one after the other
            where = {"rows_in_memory": table["rows"] - on_disk, "rows_on_disk": on_disk}
            tables.append({**table, **where, "servers": top})
        return tables

    def workers(self) -> list[dict[str, Any]]:
        """Return each worker, by rank."""
        return self._workers(self._rpc_routes.status())

    def barriers(self) -> list[dict[str, Any]]:
        """Return the barriers at which a worker stands."""
        barriers: list[dict[str, Any]] = self._rpc_routes.status()["barriers"]
        return barriers

    def placement(self) -> dict[str, Any]:
        """Return which pserver has which shards."""
        said = self._rpc_routes.status()
        return {"num_shards": said["num_shards"], "placement": said["placement"]}

    async def act(
        self, change: Callable[..., Orders], /, **arguments: Any
    ) -> tuple[Orders, Orders]:
        """Change the orders by an operator action; return them before and after.

        Raises:
            ActionRefusedError: if the job can't do that.
            SettingRefusedError: if a value is wrong.
            NoRedisError: if the registry doesn't answer; the status shows whether it has
                stored the change nevertheless.
        """
        before, after = await self._rpc_routes.give(
            lambda orders: change(
                orders, self._standing(self._rpc_routes.status()), **arguments
            )
        )
        if after != before:
            name = change.__name__
            words = f"an operator asked for: {name}"
            self.view.note(f"operator.{name}", words, now=self.now_s(), **_plain(after))
        return before, after

    async def checkpoint(self, name: str | None) -> dict[str, Any]:
        """Request a checkpoint; return its number and folder."""
        _, after = await self.act(
            operator_actions.checkpoint, folder=self._checkpoint_dir, name=name
        )
        assert after.checkpoint is not None, "it was just asked for"
        return {"number": after.checkpoint.number, "dirname": after.checkpoint.dirname}

    async def load(self, dirname: str, patience_s: float) -> dict[str, Any]:
        """Request a load; return its number and folder."""
        _, after = await self.act(operator_actions.load, dirname=dirname, patience_s=patience_s)
        assert after.load is not None, "it was just asked for"
        return {"number": after.load.number, "dirname": after.load.dirname}

    async def shrink(self, table: str, *, dry_run: bool) -> dict[str, Any]:
        """Have rows removed or counted; return the number of that, and what was asked for."""
        _, after = await self.act(operator_actions.shrink, table=table, dry_run=dry_run)
        assert after.shrink is not None, "it was just asked for"
        return asdict(after.shrink)

    async def change(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Change settings; return what they were and what they are to be."""
        had = self._standing(self._rpc_routes.status()).settings
        await self.act(operator_actions.change, wanted=wanted)
        return {name: had.get(name) for name in wanted}, dict(wanted)

    async def drain(self, rank: int) -> None:
        """Have a worker leave.

        Raises:
            UnknownWorkerRankError: if there is no such worker.
        """
        said = self._rpc_routes.status()
        ranks = {m["index"] for m in said["members"] if m["role"] == "worker"}
        if rank not in ranks:
            mode = self._standing(said).mode
            reason = f"there is no worker {rank}"
            raise UnknownWorkerRankError(action="drain", mode=mode, reason=reason)
        await self.act(operator_actions.drain, rank=rank)

    async def hurt(self, asked: Mapping[str, Any]) -> Hurt:
        """Hurt a process of the job; one of its members does that with its next heartbeat.

        Raises:
            ActionRefusedError: if the job was started without leave, or has no such process.
            SettingRefusedError: if something of it is wrong.
            NoRedisError: if the registry is away.
        """
        said = self._rpc_routes.status()
        living = {
            (member["role"], member["index"]): member["incarnation"]
            for member in said["members"]
            if member["alive"]
        }
        if self._hurter is None:
            living = {}
        _, after = await self.act(
            operator_actions.chaos, asked=asked, living=living, may=self._hurter is not None
        )
        return after.hurts[-1]

    async def carry_out(self, hurt: Hurt) -> None:
        """Do what no member does with its next heartbeat; this process may end by it.

        Raises:
            ActionRefusedError: if Redis can't be hurt.
            NoRedisError: if the registry is away.
        """
        if hurt.role == "redis" and self._hurter is not None:
            await self._hurter.hurt_redis(hurt)
        elif hurt.role == "coordinator":
            # Not former orders: those were for a process whose successor this may be.
            asyncio.get_running_loop().call_later(ANSWERED_S, hurting.take, (hurt,))

    async def scale(self, wanted: int) -> dict[str, Any]:
        """Have so many processes for the pservers' groups; return who starts or ends them.

        Raises:
            ScaleRefusedError: if the job can't have so many.
            OtherHostingError: if each pserver is a process of its own.
            NoRedisError: if the registry is away; it is done when that is back.
        """
        before, _ = await self._rpc_routes.planning.scale(wanted)
        vouchers = [voucher for _, voucher in self._rpc_routes.snapshot.vouchers.values()]
        by_launcher = any(each.scales for each in vouchers)
        alive = len(self._rpc_routes.planning.alive())
        words = f"an operator asked for {wanted} pservers"
        self.view.note("operator.scale", words, now=self.now_s(), pservers=wanted)
        return {
            "pservers": wanted,
            "before": before or alive,  # nobody had asked for a number
            "by_launcher": by_launcher,
            "advice": _advice(
                wanted,
                0 if by_launcher else wanted - alive,
                num_replicas=self._rpc_routes.planning.num_replicas,
            ),
        }

    def _workers(self, said: Mapping[str, Any]) -> list[dict[str, Any]]:
        workers = []
        for member in said["members"]:
            if member["role"] != "worker":
                continue
            facts, rank = member["facts"], member["index"]
            sample = self.view.latest(rank)
            workers.append(
                {
                    "rank": rank,
                    "host": member["host"],
                    "pid": member["pid"],
                    "incarnation": member["incarnation"],
                    "alive": member["alive"],
                    "silent_s": member["silent_s"],
                    "done": member["done"],
                    "last_seen_s": member["last_seen_s"],
                    "step": facts.get("step"),
                    "total_steps": facts.get("total_steps"),
                    "loss": facts.get("loss"),
                    "metrics": facts.get("metrics", {}),
                    "samples_per_s": None if member["done"] else sample.get("samples_per_s"),
                    "staleness": facts.get("staleness"),
                    "staleness_counts": facts.get("staleness_counts", {}),
                    "device_pass": facts.get("device_pass"),
                    "by_days": facts.get("by_days"),
                    "guard": facts.get("guard"),
                    "split": sample.get("split", {}),
                    "step_ms": sample.get("step_ms", {}),
                    "call_ms": sample.get("call_ms"),
                    "phase": sample.get("phase"),
                    "lag_reason": "" if member["done"] else self.view.lag_reason(rank),
                }
            )
        return workers

    def _servers(self, said: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "index": member["index"],
                "state": _state_of_server(member),
                "host": member["host"],
                "pid": member["pid"],
                "endpoint": member["endpoint"],
                "alive": member["alive"],
                "silent_s": member["silent_s"],
                "waits_s": member["waits_s"],
                "last_seen_s": member["last_seen_s"],
                "waiting_for": member["facts"].get("waiting_for", []),
                "disk_fault": disk_fault_of(member["facts"]),
                "process": member["process"],
                "restored": member["facts"].get("restored"),
                **self.view.latest_of_server(member["index"]),
                **_of_restoring(member),
            }
            for member in said["members"]
            if member["role"] == "pserver"
        ]

    def _state(self, said: Mapping[str, Any], orders: Orders) -> str:
        if said["state"] != "training":
            return str(said["state"])
        return "ending" if orders.ends else "paused" if orders.paused else "training"

    def _standing(self, said: Mapping[str, Any]) -> Standing:
        workers = [member for member in said["members"] if member["role"] == "worker"]
        facts = [member["facts"] for member in workers if member["facts"].get("mode")]
        settings: dict[str, Any] = {}
        if facts:
            rates = {rate for each in facts for rate in each.get("lr", ())}
            settings["lr"] = next(iter(rates)) if len(rates) == 1 else None
            settings["k_steps"] = facts[0].get("k_steps")
            settings["max_staleness"] = facts[0].get("max_staleness")
        known, has_ended = _load_of(workers)
        return Standing(
            known_load=known,
            ended_load=known if has_ended else known - 1,
            may_replace=bool(said["elastic"] or said["returning"]),
            state=str(said["state"]),
            mode=facts[0]["mode"] if facts else None,
            training=frozenset(
                member["index"] for member in workers if not member["done"] and member["alive"]
            ),
            settings={**settings, **self._rpc_routes.orders.settings},
            newest=max((each.get("orders", 0) for each in facts), default=0),
        )


def _advice(wanted: int, missing: int, *, num_replicas: int) -> str:
    """Return what an operator should know or do.

    Args:
        wanted: The processes that were asked for.
        missing: Those that nobody starts; below 0 if some are too many.
        num_replicas: Copies of each group that the job is to have.
    """
    said = []
    if missing > 0:
        said.append(
            f"start {missing} more: docker compose up --scale pserver={wanted} --no-recreate, "
            f"kubectl scale statefulset pserver --replicas={wanted}, or `paramfleet pserver "
            "--hosting=planned` with the job's settings"
        )
    elif missing < 0:
        said.append("surplus pservers move their groups, and then end")
    if wanted <= num_replicas:
        said.append(
            f"{wanted} pservers are too few for {num_replicas} replicas: groups have none, "
            "and if the last pserver of a group dies without a disk, its values are lost"
        )
    return "; ".join(said)


def _is_of_former(member: Mapping[str, Any]) -> bool:
    """Return whether what is known of a member is what the process before it has said."""
    now = member["incarnation"]
    return bool(member["facts"].get("incarnation", now) != now)


def _state_of_server(member: Mapping[str, Any]) -> str:
    """Return what a pserver does: ``serving``, ``restoring``, ``lost`` or another word."""
    if member["done"]:
        return "done"
    if not member["alive"]:
        return "silent" if member["waits_s"] is None else "lost"
    known = not _is_of_former(member)
    return str(member["facts"].get("state", "starting")) if known else "starting"


def _of_restoring(member: Mapping[str, Any]) -> dict[str, Any]:
    """Return how far a pserver's restoring is; its rows aren't known until it has ended."""
    facts = {} if _is_of_former(member) or not member["alive"] else member["facts"]
    restoring = restoring_of(facts)
    if restoring is None:
        return {"restoring": None}
    return {"restoring": restoring, "rows": None, "bytes": None}


def _load_of(workers: list[dict[str, Any]]) -> tuple[int, bool]:
    """Return the newest load that worker 0 has told of, and whether that has ended."""
    said = [each["facts"].get("load") for each in workers if each["index"] == 0]
    told = said[0] if said and isinstance(said[0], Mapping) else {}
    return int(told.get("number", 0)), told.get("state") != "waiting"


def _plain(orders: Orders) -> dict[str, Any]:
    """Return orders in plain values."""
    return {
        "version": orders.version,
        "paused": orders.paused,
        "ends": orders.ends,
        "drained": list(orders.drained),
        "settings": dict(orders.settings),
        "load": None
        if orders.load is None
        else {"number": orders.load.number, "dirname": orders.load.dirname},
        "shrink": None if orders.shrink is None else asdict(orders.shrink),
        "hurts": [hurt.facts() for hurt in orders.hurts],
        "checkpoint": None
        if orders.checkpoint is None
        else {"number": orders.checkpoint.number, "dirname": orders.checkpoint.dirname},
    }
