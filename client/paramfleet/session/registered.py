"""What a script wants saved beside the model: a learning-rate schedule, a place in the data.

Whatever has ``state_dict`` and ``load_state_dict`` can be registered. What can be iterated
over, such as a dataset, has a position, which is each worker's own; of all else, such as a
scheduler, the first worker's state is saved, and every worker goes on with it.

A checkpoint may be written inside ``optimizer.step()``, where a schedule that steps once
after every optimizer's step hasn't done so yet. Then it is saved as ``pending``, and takes
that step when it is loaded.
"""

import math
import threading
import warnings
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from types import SimpleNamespace, TracebackType
from typing import Any, Protocol

import numpy as np
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from typing_extensions import override, runtime_checkable

from paramfleet.config.errors import NotYetError
from paramfleet.model_state.plain import pack, to_document
from paramfleet.session.all_or_none import NOT_FITTING, all_or_none
from paramfleet_shared.errors import ContractError
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.values.bounds import MAX_LEARNING_RATE
from paramfleet_shared.values.texts import NAME_RULE, is_name

__all__ = ["Registered", "RegisteredStateError", "RegistrationError", "SavedProgress"]

_PATIENCE_S = 5.0
"""Seconds to wait for the end of a step that others have ended."""


class RegistrationError(ContractError):
    """Something was registered that no checkpoint can hold."""

    code = "contract.registration"
    name: str
    rule: str
    sentence = "register_for_checkpointing({name}=...): {rule}"


class RegisteredStateError(ContractError):
    """A saved state isn't one of the object that is registered by its name."""

    code = "contract.registered_state"
    name: str
    rule: str
    sentence = "the checkpoint's state of {name!r} {rule}"


@runtime_checkable
class _Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


class _CountsSteps(Protocol):
    num_steps: int


@dataclass(kw_only=True, slots=True)
class SavedProgress:
    """What a checkpoint has of it, in plain values."""

    steps: int = 0
    """That the first worker had taken."""
    workers: int = 1
    states: dict[str, Any] = field(default_factory=dict)
    """By the names of what was registered."""
    pending: list[str] = field(default_factory=list)
    """Schedules whose step was still to come."""
    positions: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By the workers' ranks, and the names of what was registered."""
    not_saved: dict[str, str] = field(default_factory=dict)
    """What is lacking, and why."""
    days: dict[str, int] = field(default_factory=dict)
    """Which day it was, of tables that count days by saves."""


class Registered:
    """One worker's registered objects. The training thread owns it; others call ``answer``."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self._counts: dict[str, list[int]] = {}
        """At the ends of the latest steps, how often each schedule had stepped."""
        self._inside = False
        self._has_batch = True
        """Whether the step that is taken has a batch of this worker: schedules follow it."""
        self._changed = threading.Condition()
        self._steps = 0
        self._is_over = False
        self._positions: dict[str, Any] = {}
        self._first: dict[str, Any] = {}
        """Positions as they were registered: at the beginning of the data."""

    def add(self, objects: Mapping[str, Any]) -> None:
        """Save and load objects from now on, each by its name; a former one is replaced.

        Raises:
            RegistrationError: if a name can't be one, or an object has no ``state_dict`` and
                ``load_state_dict``.
        """
        for name, each in objects.items():
            rule = ""
            if not is_name(name) or "/" in name:
                rule = f"a name must be {NAME_RULE}, and without '/'"
            elif not isinstance(each, _Stateful):
                rule = f"a {type(each).__name__} has no state_dict and load_state_dict"
            if rule:
                raise RegistrationError(name=name, rule=rule)
        self._objects |= objects
        self.note(self._steps)
        for name in objects.keys() & self._positions.keys():
            first = self._positions[name]
            if _epoch_of(first) is not None and _why_not_plain(first) is None:
                self._first[name] = deepcopy(first)

    def __bool__(self) -> bool:
        """Return whether anything is registered."""
        return bool(self._objects)

    @property
    def has_positions(self) -> bool:
        """Whether any of it is each worker's own."""
        return any(map(_is_position, self._objects.values()))

    @contextmanager
    def without_batch(self) -> Generator[None, None, None]:
        """Take the block's step for one of other workers: the script's schedules don't step."""
        self._has_batch = False
        try:
            yield
        finally:
            self._has_batch = True

    @contextmanager
    def ending_step(self, optimizer: _CountsSteps | None) -> Generator[None, None, None]:
        """Note where this worker is at a step's end; the block may save."""
        self._inside = self._has_batch
        self.note(0 if optimizer is None else optimizer.num_steps)
        try:
            yield
        finally:
            self._inside = False
            for name, each in self._objects.items():
                if self._has_batch and _steps_often(each):
                    self._counts[name] = [*self._counts.get(name, ())[-2:], each.last_epoch]

    def end(self) -> None:
        """Note that no step will follow."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def begin(self, steps: int) -> None:
        """Note that steps will follow, after so many."""
        self._is_over = False
        self._counts.clear()
        self.note(steps)

    def positions(self) -> dict[str, Any]:
        """Return this worker's own states as they are now.

        Of a dataset that isn't in memory, not yet or not any more, it is the last one known.
        """
        found = {}
        for name, each in self._objects.items():
            if not _is_position(each):
                continue
            try:
                found[name] = each.state_dict()
            except NotYetError:
                if name in self._positions:
                    found[name] = self._positions[name]
        return found

    def answer(self, question: Message) -> Message:
        """Return this worker's own states as of the end of a step; any thread may call it.

        Where the question names a step, as in sync, all workers end that one: it is waited for.
        """
        step = question.fields.get("step")
        with self._changed:
            self._changed.wait_for(
                lambda: step is None or self._is_over or self._steps >= step, _PATIENCE_S
            )
            positions = dict(self._positions)
        try:
            packed = pack(positions)
        except ValueError as error:
            return Message(fields={"lack": str(error)})
        return Message(tensors={"positions": np.frombuffer(packed, np.uint8)})

    def progress(self, *, steps: int, workers: int) -> SavedProgress:
        """Return what the first worker saves, but for the other workers' positions."""
        states = {
            name: each.state_dict()
            for name, each in self._objects.items()
            if not _is_position(each)
        }
        pending = [name for name in states if self._inside and self._is_pending(name)]
        return SavedProgress(
            steps=steps,
            workers=workers,
            states=states,
            pending=pending,
            positions={0: self.positions()} if self.has_positions else {},
        )

    def taking(
        self, saved: SavedProgress, *, rank: int, workers: int, positions: bool = True
    ) -> "_Taking":
        """Go on from what was saved: all objects that there is a state of, or none.

        The block of the context manager does what else has to succeed: if it fails, all are
        as they were. It gets names of objects that don't continue where they were, and why:
        the checkpoint has no state of them, or none that goes with this number of workers.
        Of such a position the epoch is kept, if its state has one.

        Args:
            saved: What a checkpoint has.
            rank: This worker's.
            workers: How many there are now.
            positions: Whether positions in data are taken; else they stay as they are.

        Raises:
            RegisteredStateError: if a state isn't one of such an object; no object is changed.
            OtherDataError: if a position is one in other data; the same.
        """
        found: dict[str, Any] = {}
        lacking: dict[str, str] = {}
        objects = {n: o for n, o in self._objects.items() if positions or not _is_position(o)}
        for name, each in objects.items():
            state, why = saved.states.get(name), ""
            if _is_position(each) and workers != saved.workers:
                first = self._first.get(name)
                state, why = _resharded(each, name, saved, first, rank=rank, size=workers)
            elif _is_position(each):
                state = saved.positions.get(rank, {}).get(name)
            if state is not None:
                found[name] = state
            if state is None or why:
                lacking[name] = why or _why_not(each, name, saved, rank=rank)
        # Inside a step the script itself is about to take the step of such a schedule.
        pending = {
            name
            for name in found.keys() & set(saved.pending)
            if not (self._inside and self._is_pending(name))
        }
        go_on = partial(self._go_on, saved, found)
        return _Taking(self._objects, found, pending, lacking, go_on)

    def _go_on(self, saved: SavedProgress, found: Mapping[str, Any]) -> None:
        for name, state in found.items():
            if _is_position(self._objects[name]):
                self._positions[name] = state
        self.begin(saved.steps)
        for name in set(saved.pending) & found.keys():
            each = self._objects[name]
            if _steps_often(each):  # it has just taken the step that was to come, or will
                self._counts[name] = [each.last_epoch - 1]

    def take(self, saved: SavedProgress, *, rank: int, workers: int) -> list[str]:
        """Do as ``taking`` with nothing else to do; return what that yields."""
        with self.taking(saved, rank=rank, workers=workers) as lacking:
            return list(lacking)

    def kept(self, *, rank: int, steps: int, workers: int) -> SavedProgress:
        """Return what this worker's own successor goes on from, at the end of a step.

        A schedule that has stepped once after each step, so far, does so after this one, too.
        What isn't plain is left out.
        """
        found = SavedProgress(steps=steps, workers=workers)
        for name, each in self._objects.items():
            if _is_position(each):
                continue
            state = each.state_dict()
            if (why := _why_not_plain(state)) is not None:
                found.not_saved[f"{_STATES}/{name}"] = why
                continue
            found.states[name] = state
            if self._has_batch and _steps_often(each) and self._steps_after(name, each):
                found.pending.append(name)
        for name, state in self.positions().items():
            if (why := _why_not_plain(state)) is not None:
                found.not_saved[f"{_POSITIONS}/{rank}/{name}"] = why
                continue
            found.positions.setdefault(rank, {})[name] = state
        return found

    def _steps_after(self, name: str, each: LRScheduler) -> bool:
        """Return whether a schedule has stepped once since the last step's end, and before."""
        counts = [*self._counts.get(name, ())[-2:], each.last_epoch]
        return len(counts) > 1 and all(b - a == 1 for a, b in pairwise(counts))

    def note(self, steps: int) -> None:
        """Note where this worker is, after so many steps."""
        if self._objects:
            positions = self.positions()
            with self._changed:
                self._steps, self._positions = steps, positions
                self._changed.notify_all()

    def _is_pending(self, name: str) -> bool:
        """Return whether a schedule steps once after each step, and hasn't after this one."""
        each, counts = self._objects[name], self._counts.get(name, [])
        if not _steps_often(each) or len(counts) < 2:
            return False
        *_, before, last = counts
        return each.last_epoch - last == 1 and last - before == 1


class _Taking(AbstractContextManager[dict[str, str]]):
    """Objects that take their states, and keep them if the block succeeds.

    No generator: an object may raise ``StopIteration``.
    """

    def __init__(
        self,
        objects: Mapping[str, Any],
        found: Mapping[str, Any],
        pending: Collection[str],
        lacking: dict[str, str],
        go_on: Callable[[], None],
    ) -> None:
        self._objects = objects
        self._found = found
        self._pending = pending
        self._lacking = lacking
        self._go_on = go_on
        self._stack = ExitStack()

    @override
    def __enter__(self) -> dict[str, str]:
        with ExitStack() as stack:
            stack.enter_context(all_or_none({n: self._objects[n] for n in self._found}))
            for name, state in self._found.items():
                steps_on = name in self._pending
                _restore(name, self._objects[name], state, steps_on=steps_on)
            self._stack = stack.pop_all()
        return self._lacking

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        if error is None:
            self._go_on()


_STATES, _POSITIONS = "states", "positions"


def _why_not_plain(state: Any) -> str | None:
    try:
        to_document(state, {})
    except ValueError as error:
        return str(error)
    return None


def _is_position(each: Any) -> bool:
    return hasattr(type(each), "__iter__")


def _steps_often(each: Any) -> bool:
    """Return whether it is a schedule that may step once after every optimizer's step."""
    return isinstance(each, LRScheduler) and not isinstance(each, ReduceLROnPlateau)


def _resharded(
    each: Any, name: str, saved: SavedProgress, first: Any, *, rank: int, size: int
) -> tuple[Any | None, str]:
    """Return a position after workers of another number, and why it isn't where they were.

    Without ``reshard`` of the object, or without the positions of all workers, it is the
    beginning of their earliest epoch; None where the state has no epoch.
    """
    found = {who: states[name] for who, states in saved.positions.items() if name in states}
    why = f"it was saved by {saved.workers} workers, and there are {size} now"
    reshard = getattr(each, "reshard", None)
    if reshard is not None and len(found) == saved.workers:
        with _naming(name):
            state = reshard([found[who] for who in sorted(found)], rank, size)
        return state, "" if state is not None else f"{why}: no position follows from theirs"
    if reshard is None:
        why += f"; a {type(each).__name__} has no reshard(states, rank, size)"
    else:
        why += f"; the checkpoint has the positions of {len(found)} of them"
    epochs = [_epoch_of(state) for state in found.values()]
    if _epoch_of(first) is None or None in epochs or not epochs:
        return None, f"{why}; no epoch of it is known: it stays as it is"
    epoch = min(each for each in epochs if each is not None)
    state = {**first, "epoch": epoch}
    return state, f"{why}; epoch {epoch} starts from its beginning"


def _epoch_of(state: Any) -> int | None:
    """Return the epoch that a position names; None if it names none."""
    epoch = state.get("epoch") if isinstance(state, Mapping) else None
    return epoch if type(epoch) is int else None


def _why_not(each: Any, name: str, saved: SavedProgress, *, rank: int) -> str:
    """Return why an object doesn't go on from what was saved."""
    keys, lacking = [f"{_STATES}/{name}"], "the checkpoint has no state of it"
    if _is_position(each):
        keys = [f"{_POSITIONS}/{rank}/{name}", f"{_POSITIONS}/{rank}"]
        lacking = f"the checkpoint has no position of worker {rank}"
    refused = next((saved.not_saved[key] for key in keys if key in saved.not_saved), "")
    return f"it wasn't saved: {refused}" if refused else lacking


def _restore(name: str, each: Any, state: Any, *, steps_on: bool) -> None:
    """Give an object its state.

    Raises:
        RegisteredStateError: if it isn't one of such an object.
    """
    with _naming(name):
        if isinstance(each, LRScheduler):
            _check_schedule(name, each, state)
            _try_step(name, each, state)
        each.load_state_dict(state)
        if isinstance(each, LRScheduler):
            for group, rate in zip(each.optimizer.param_groups, _rates(each), strict=True):
                group["lr"] = rate
        if steps_on and _steps_often(each):
            with warnings.catch_warnings():  # it can't know that the optimizer stepped before
                warnings.simplefilter("ignore", UserWarning)
                each.step()


def _check_schedule(name: str, each: LRScheduler, state: Any) -> None:
    """Pass if a schedule can take a state: it takes whatever attributes that names.

    Raises:
        RegisteredStateError: if the state has another's.
    """
    known = each.state_dict()
    unknown = sorted(set(state) - set(known))
    if unknown:
        rule = f"has {unknown[0]!r}, which a {type(each).__name__} doesn't have"
        raise RegisteredStateError(name=name, rule=rule)
    for key, have in known.items():
        got = state.get(key)
        are_numbers = isinstance(have, int | float) and isinstance(got, int | float)
        if None not in (have, got) and type(got) is not type(have) and not are_numbers:
            rule = f"has {key!r} of type {type(got).__name__}"
            raise RegisteredStateError(name=name, rule=rule)
    rates, groups = state.get("_last_lr", []), len(each.optimizer.param_groups)
    if len(rates) not in {0, groups}:
        rule = (
            f"has the learning rates of {len(rates)} parameter groups, and the optimizer has "
            f"{groups}: make as many groups, or leave {name!r} unregistered for this load"
        )
        raise RegisteredStateError(name=name, rule=rule)
    if not all(math.isfinite(rate) and 0 <= rate <= MAX_LEARNING_RATE for rate in rates):
        rule = f"has a learning rate that isn't from 0 to {MAX_LEARNING_RATE:g}: {rates}"
        raise RegisteredStateError(name=name, rule=rule)


def _try_step(name: str, each: LRScheduler, state: Any) -> None:
    """Pass if a schedule of torch can compute the next rate from a state.

    It is tried on a copy. One that leads other schedules or functions shares these with its
    copy: it isn't tried.

    Raises:
        RegisteredStateError: if it divides by 0, or leaves the range of a float.
    """
    if type(each).__module__ != LRScheduler.__module__ or not _steps_often(each):
        return
    if vars(each).keys() & {"_schedulers", "lr_lambdas"}:
        return
    trial = copy(each)
    groups = [dict(group) for group in each.optimizer.param_groups]
    vars(trial)["optimizer"] = SimpleNamespace(param_groups=groups)
    with (
        warnings.catch_warnings(),
        suppress(AttributeError, LookupError, TypeError, ValueError),
    ):
        warnings.simplefilter("ignore", UserWarning)  # torch expects a whole step
        trial.load_state_dict(dict(state))
        trial.last_epoch += 1
        try:
            trial.get_lr()
        except ArithmeticError as error:
            rule = f"can't take its next step: {type(error).__name__}: {error}"
            raise RegisteredStateError(name=name, rule=rule) from error


def _rates(each: LRScheduler) -> Sequence[float]:
    rates: Sequence[float] = getattr(each, "_last_lr", None) or [
        group["lr"] for group in each.optimizer.param_groups
    ]
    return rates


@contextmanager
def _naming(name: str) -> Generator[None, None, None]:
    """Turn what a ``load_state_dict`` stumbles over into an error that names the object.

    Raises:
        RegisteredStateError: in place of that.
    """
    try:
        yield
    except NOT_FITTING as error:
        rule = f"doesn't fit: {type(error).__name__}: {error}"
        raise RegisteredStateError(name=name, rule=rule) from error
