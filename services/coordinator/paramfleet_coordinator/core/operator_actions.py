"""What an operator may ask of a job, and what that makes of its orders.

Every action takes the orders as they are and how the job stands, and returns the new orders
or says why not. Nothing here is sent: whoever calls writes the result down.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from typing_extensions import override

from paramfleet_shared.discovery.orders import CheckpointOrder, Orders
from paramfleet_shared.errors import ContractError
from paramfleet_shared.values.bounds import MAX_LEARNING_RATE

__all__ = [
    "ActionRefusedError",
    "SettingRefusedError",
    "Standing",
    "change",
    "checkpoint",
    "drain",
    "end",
    "pause",
    "resume",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MODES = {
    "lr": {"sync", "async", "geo"},
    "k_steps": {"geo"},
    "max_staleness": {"async"},
}
"""Settings that may be changed in a running job, and in which modes they mean something."""


class ActionRefusedError(ContractError):
    """The job can't do that as it stands."""

    code = "contract.action_refused"
    action: str
    mode: str | None
    reason: str

    @override
    def describe(self) -> str:
        where = "before the training" if self.mode is None else f"in mode {self.mode}"
        return f"{self.action} is refused {where}: {self.reason}"


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


def pause(orders: Orders, job: Standing) -> Orders:
    """Stop the workers before their next step.

    Raises:
        ActionRefusedError: if the job doesn't train.
    """
    _require_training("pause", orders, job)
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


def drain(orders: Orders, job: Standing, *, rank: int) -> Orders:
    """Let a worker leave while the others continue; a second time changes nothing.

    Raises:
        ActionRefusedError: in sync, whose steps need every worker; for worker 0, which
            saves; for the last worker; for one that doesn't train.
    """
    _require_training("drain", orders, job)
    if rank in orders.drained:
        return orders
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
            reason="worker 0 saves and tells the result: end the job instead",
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
        fits = fits and math.isfinite(value) and 0 < value <= MAX_LEARNING_RATE
        rule = f"a number above 0, at most {MAX_LEARNING_RATE:g}"
    elif name == "k_steps":
        fits, rule = is_integer and 1 <= value < 1 << 31, "a whole number of at least 1"
    else:
        fits = value is None or (is_integer and 0 <= value < 1 << 31)
        rule = "a whole number of at least 0, or null"
    if not fits:
        raise SettingRefusedError(name=name, value=str(value)[:64], rule=rule)


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
