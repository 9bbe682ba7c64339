"""What an operator may ask of a job, and what that makes of its orders.

Every action takes the orders as they are and how the job stands, and returns the new orders
or says why not. Nothing here is sent: whoever calls writes the result down.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from typing_extensions import override

from paramfleet_shared.discovery.orders import CheckpointOrder, LoadOrder, Orders, ShrinkOrder
from paramfleet_shared.errors import ContractError
from paramfleet_shared.settings.hurts import read_hurt
from paramfleet_shared.settings.ranges import SettingError
from paramfleet_shared.values.bounds import MAX_LEARNING_RATE
from paramfleet_shared.values.texts import NAME_RULE, is_name

__all__ = [
    "ActionRefusedError",
    "SettingRefusedError",
    "Standing",
    "change",
    "chaos",
    "checkpoint",
    "drain",
    "end",
    "load",
    "pause",
    "resume",
    "shrink",
]

MAX_HURTS = 16
"""The latest that are kept: members that are told of more at once miss the first."""

_MAX_PATH, _MAX_PATIENCE_S = 4096, 86_400.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MODES = {
    "lr": {"sync", "async", "geo"},
    "k_steps": {"geo"},
    "max_staleness": {"async"},
}
"""Settings that may be changed in a running job, and in which modes they mean something."""


_EVICTING_MODES = {"sync", "async", "geo"}

_LOADING_MODES = {"sync", "async", "geo", "localsgd"}
"""Those in which workers stand between two steps, and pservers have all of what they did."""


class ActionRefusedError(ContractError):
    """The job can't do that as it stands."""

    code = "contract.action_refused"
    action: str
    mode: str | None
    """How the job trains; None before that, empty where it doesn't matter."""
    reason: str

    @override
    def describe(self) -> str:
        where = " before the training" if self.mode is None else f" in mode {self.mode}"
        return f"{self.action} is refused{where if self.mode != '' else ''}: {self.reason}"


class SettingRefusedError(ContractError):
    """A setting's value is none it may have."""

    code = "contract.setting_refused"
    name: str
    value: str
    rule: str
    sentence = "{name} = {value}: {rule}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How a job stands, as far as actions depend on it."""

    state: str
    mode: str | None
    """``sync``, ``async`` or ``geo``; None until a worker has said so."""

    training: frozenset[int]
    """Ranks of the workers that train."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """``lr`` (None if parameter groups differ), ``k_steps`` and ``max_staleness`` as the
    workers have them."""

    newest: int = 0
    """The newest version of orders that any member has said it knows."""

    known_load: int = 0
    """The newest number of a load that worker 0 has said it knows."""

    ended_load: int = 0
    """The newest of which it has said what became of it."""

    may_replace: bool = False
    """Whether workers may come, go, or be replaced by other processes."""


def pause(orders: Orders, job: Standing) -> Orders:
    """Stop the workers before their next step.

    Raises:
        ActionRefusedError: if the job doesn't train, or a load is on its way.
    """
    _require_training("pause", orders, job)
    _require_no_load("pause", orders, job)
    return _next(orders, job, paused=True)


def resume(orders: Orders, job: Standing) -> Orders:
    """Let the workers continue.

    Raises:
        ActionRefusedError: if the job doesn't train.
    """
    _require_training("resume", orders, job)
    return _next(orders, job, paused=False)


def end(orders: Orders, job: Standing) -> Orders:
    """Let workers finish their training now; a second time changes nothing.

    Raises:
        ActionRefusedError: if the job doesn't train.
    """
    _require_state("end", job)
    return orders if orders.ends else _next(orders, job, ends=True)


def checkpoint(orders: Orders, job: Standing, *, folder: str, name: str | None) -> Orders:
    """Request a checkpoint from worker 0.

    Args:
        orders: The present ones.
        job: How the job stands.
        folder: Where checkpoints go.
        name: The checkpoint's own folder; None names it by its number.

    Raises:
        ActionRefusedError: if the job doesn't train, or worker 0, which writes, has ended.
        SettingRefusedError: if the name isn't a plain one.
    """
    _require_training("checkpoint", orders, job)
    if 0 not in job.training:
        raise ActionRefusedError(
            action="checkpoint",
            mode=job.mode,
            reason="worker 0, which has it written, no longer trains",
        )
    number = 1 + (orders.checkpoint.number if orders.checkpoint is not None else 0)
    name = f"operator-{number}" if name is None else name
    if not _NAME.fullmatch(name):
        rule = "a plain folder name: letters, digits, '.', '_' and '-', at most 128"
        raise SettingRefusedError(name="name", value=name[:128], rule=rule)
    order = CheckpointOrder(number=number, dirname=f"{folder}/{name}")
    return _next(orders, job, checkpoint=order)


def load(orders: Orders, job: Standing, *, dirname: str, patience_s: float) -> Orders:
    """Have a checkpoint loaded by all workers and pservers.

    Args:
        orders: The present ones.
        job: How the job stands.
        dirname: The checkpoint's folder or address.
        patience_s: How long workers may take to come together for it.

    Raises:
        ActionRefusedError: if the job doesn't train, or is paused; in a mode whose workers
            can't come together; where workers may be replaced; if worker 0 has ended; while
            another load is on its way.
        SettingRefusedError: if the folder or the time can't be one.
    """
    if not _is_path(dirname):
        rule = f"an absolute path or an address, of at most {_MAX_PATH} printable characters"
        raise SettingRefusedError(name="dirname", value=dirname[:128], rule=rule)
    if not 0 < patience_s <= _MAX_PATIENCE_S:  # NaN isn't, either
        rule = f"a number of seconds above 0, at most {_MAX_PATIENCE_S:g}"
        raise SettingRefusedError(name="timeout_s", value=str(patience_s), rule=rule)
    _require_training("load", orders, job)
    reason = ""
    if job.mode not in _LOADING_MODES:
        modes = ", ".join(sorted(_LOADING_MODES))
        reason = f"there are loads in {modes}: end the job, and start it again with --resume"
    elif job.may_replace:
        reason = (
            "workers of this job may join, leave or be started again (an "
            "elastic job, or --max_restarts), and all must take part: end it, and start it "
            "with --resume"
        )
    elif orders.paused:
        reason = "it is paused, and workers may be within a step: resume it first"
    elif 0 not in job.training:
        reason = "worker 0, which reads the checkpoint, no longer trains"
    if reason:
        raise ActionRefusedError(action="load", mode=job.mode, reason=reason)
    _require_no_load("load", orders, job)
    number = 1 + max(orders.load.number if orders.load is not None else 0, job.known_load)
    order = LoadOrder(number=number, dirname=dirname, patience_s=float(patience_s))
    return _next(orders, job, load=order)


def shrink(orders: Orders, job: Standing, *, table: str, dry_run: bool) -> Orders:
    """Have worker 0 remove the rows that are to go, or count them.

    Args:
        orders: The present ones.
        job: How the job stands.
        table: The name of one; empty for all.
        dry_run: Only count.

    Raises:
        ActionRefusedError: if the job doesn't train, or worker 0 has ended; in a mode that
            evicts no rows; in sync, unless they are only counted.
        SettingRefusedError: if no table can have the name.
    """
    if table and not is_name(table):
        raise SettingRefusedError(name="table", value=table[:128], rule=f"must be {NAME_RULE}")
    _require_training("shrink", orders, job)
    reason = ""
    if job.mode not in _EVICTING_MODES:
        reason = f"rows are evicted in {', '.join(sorted(_EVICTING_MODES))}"
    elif job.mode == "sync" and not dry_run:
        reason = (
            "all workers remove rows together, between the same two steps: set every_steps of "
            "strategy.eviction_configs, or call fleet.shrink() in the script; a dry run works"
        )
    elif 0 not in job.training:
        reason = "worker 0, which looks, no longer trains"
    if reason:
        raise ActionRefusedError(action="shrink", mode=job.mode, reason=reason)
    number = 1 + (orders.shrink.number if orders.shrink is not None else 0)
    order = ShrinkOrder(number=number, table=table, dry_run=dry_run)
    return _next(orders, job, shrink=order)


def drain(orders: Orders, job: Standing, *, rank: int) -> Orders:
    """Let a worker leave while the others continue; a second time changes nothing.

    Raises:
        ActionRefusedError: in sync, whose steps need every worker; for worker 0, which
            saves; for the last worker; for one that doesn't train; while a load is on its
            way.
    """
    _require_training("drain", orders, job)
    if rank in orders.drained:
        return orders
    _require_no_load("drain", orders, job)
    if job.mode == "sync":
        raise ActionRefusedError(
            action="drain",
            mode=job.mode,
            reason="a step is one of all workers: use async or geo",
        )
    if rank == 0:
        raise ActionRefusedError(
            action="drain",
            mode=job.mode,
            reason="worker 0 saves and reports the result: end the job instead",
        )
    if rank not in job.training:
        raise ActionRefusedError(
            action="drain", mode=job.mode, reason=f"worker {rank} doesn't train"
        )
    if not job.training - {rank, *orders.drained}:
        raise ActionRefusedError(
            action="drain",
            mode=job.mode,
            reason=f"worker {rank} is the last: end the job instead",
        )
    return _next(orders, job, drained=(*orders.drained, rank))


_ONLY_ONES = {("coordinator", 0): 0, ("redis", 0): 0}
"""Processes that are no members, and have no incarnation."""


def chaos(
    orders: Orders,
    job: Standing,
    *,
    asked: Mapping[str, Any],
    living: Mapping[tuple[str, int], int],
    may: bool,
) -> Orders:
    """Hurt a process of the job.

    Args:
        orders: The present ones.
        job: How the job stands.
        asked: As of ``read_hurt``.
        living: The members that can be hurt, and their incarnations.
        may: Whether the job was started so that it can be.

    Raises:
        ActionRefusedError: if it wasn't, has ended, or has no such process.
        SettingRefusedError: naming what is wrong.
    """
    if not may:
        reason = "the job wasn't started with `paramfleet launch --chaos` (PARAMFLEET_CHAOS=1)"
        raise ActionRefusedError(action="chaos", mode="", reason=reason)
    if job.state in {"finished", "failed"}:
        raise ActionRefusedError(action="chaos", mode="", reason=f"it is {job.state}")
    try:
        hurt = read_hurt(asked)
    except SettingError as error:
        facts = {**error.facts, "value": str(error.facts["value"])}
        raise SettingRefusedError(**facts) from error
    if (hurt.role, hurt.index) not in {**living, **_ONLY_ONES}:
        reason = f"no living process is {hurt.target}"
        raise ActionRefusedError(action="chaos", mode="", reason=reason)
    incarnation = living.get((hurt.role, hurt.index), 0)
    number = 1 + (orders.hurts[-1].number if orders.hurts else 0)
    hurt = replace(hurt, number=number, incarnation=incarnation)
    return _next(orders, job, hurts=(*orders.hurts, hurt)[-MAX_HURTS:])


def change(orders: Orders, job: Standing, wanted: Mapping[str, Any]) -> Orders:
    """Change settings of the running job.

    Args:
        orders: The present ones.
        job: How the job stands.
        wanted: ``lr``, ``k_steps``, ``max_staleness``: at least one.

    Raises:
        ActionRefusedError: if the job doesn't train, or its mode has no such setting.
        SettingRefusedError: if a name or a value is wrong; nothing is changed then.
    """
    if not wanted:
        rule = f"name at least one of {', '.join(_MODES)}"
        raise SettingRefusedError(name="settings", value="{}", rule=rule)
    for name, value in wanted.items():
        if name not in _MODES:
            rule = f"unknown; there are {', '.join(_MODES)}"
            raise SettingRefusedError(name=name[:64], value=str(value)[:64], rule=rule)
        _check(name, value)
    _require_training("settings", orders, job)
    for name in wanted:
        if job.mode not in _MODES[name]:
            modes = " and ".join(sorted(_MODES[name]))
            what = f"change of {name}"
            raise ActionRefusedError(action=what, mode=job.mode, reason=f"only {modes} has it")
    if "lr" in wanted and job.settings.get("lr") is None:
        raise ActionRefusedError(
            action="change of lr",
            mode=job.mode,
            reason="its parameter groups have different rates",
        )
    return _next(orders, job, settings={**orders.settings, **wanted})


def _check(name: str, value: Any) -> None:
    """Pass if a value is one its setting may have.

    Raises:
        SettingRefusedError: if it isn't.
    """
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if name == "lr":
        fits = is_integer or isinstance(value, float)
        fits = fits and 0 < value <= MAX_LEARNING_RATE  # NaN isn't, either
        rule = f"a number above 0, at most {MAX_LEARNING_RATE:g}"
    elif name == "k_steps":
        fits, rule = is_integer and 1 <= value < 1 << 31, "a whole number of at least 1"
    else:
        fits = value is None or (is_integer and 0 <= value < 1 << 31)
        rule = "a whole number of at least 0, or null"
    if not fits:
        raise SettingRefusedError(name=name, value=str(value)[:64], rule=rule)


def _is_path(text: str) -> bool:
    is_whole = text.startswith("/") or "://" in text
    return is_whole and len(text) <= _MAX_PATH and text.isprintable()


def _require_no_load(action: str, orders: Orders, job: Standing) -> None:
    """Pass if worker 0 has said what became of the last load.

    Raises:
        ActionRefusedError: if not.
    """
    if orders.load is not None and orders.load.number > job.ended_load:
        reason = f"the load of {orders.load.dirname} is on its way: wait until it has ended"
        raise ActionRefusedError(action=action, mode=job.mode, reason=reason)


def _require_state(action: str, job: Standing) -> None:
    """Pass if the job trains.

    Raises:
        ActionRefusedError: if not.
    """
    if job.state != "training" or job.mode is None:
        unknown = "no worker has reported its mode yet: try again in a second"
        reason = unknown if job.state == "training" else f"it is {job.state}"
        raise ActionRefusedError(action=action, mode=job.mode, reason=reason)


def _require_training(action: str, orders: Orders, job: Standing) -> None:
    """Pass if the job trains and isn't about to end.

    Raises:
        ActionRefusedError: if not.
    """
    _require_state(action, job)
    if orders.ends:
        raise ActionRefusedError(action=action, mode=job.mode, reason="it ends")


def _next(orders: Orders, job: Standing, **changes: Any) -> Orders:
    """Return changed orders under a version that is newer than any member's."""
    changed = replace(orders, **changes)
    if changed == orders:
        return orders
    return replace(changed, version=max(orders.version, job.newest) + 1)
