"""Registered objects take their states together: all of them, or, if one can't, none."""

import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from paramfleet_shared.errors import FleetError

__all__ = ["NOT_FITTING", "all_or_none"]

log = logging.getLogger(__name__)

NOT_FITTING = (
    ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError
)  # fmt: skip
"""What a ``load_state_dict`` raises on a state that isn't one of its object."""


@contextmanager
def all_or_none(objects: Mapping[str, Any]) -> Generator[None, None, None]:
    """Give objects the states back that they had before the block, if it fails.

    Args:
        objects: What the block changes by ``load_state_dict``, or by steps of schedules, by
            name. One that refuses its own state is named in the log and in the block's error.

    Raises:
        BaseException: what the block raised; or an interrupt while states were put back.
    """
    formers = {name: _Former(each) for name, each in objects.items()}
    try:
        yield
    except BaseException as first:
        interrupt: BaseException | None = None
        for name, former in reversed(formers.items()):
            try:
                former.put_back()
            except BaseException as error:  # noqa: BLE001 - a script's object may raise any
                log.warning(
                    "worker.state_not_put_back",
                    extra={"registered": name, "reason": repr(error)},
                )
                first.add_note(f"the former state of {name!r} was not put back: {error!r}")
                if not isinstance(error, Exception) and isinstance(first, Exception):
                    interrupt = error  # it ends the script, whatever came before
        if interrupt is not None:
            raise interrupt from first
        raise


class _Former:
    """What an object was: its state, its attributes, and a schedule's parameter groups.

    An object that says its state may hold it in place, as a module does, and one that keeps
    more than it says, as a dataset in memory, has it in its attributes: both are restored.
    """

    def __init__(self, each: Any) -> None:
        self._object = each
        self._attributes = dict(getattr(each, "__dict__", {}))
        self._state: Any = None
        with suppress(FleetError, *NOT_FITTING):  # a dataset that isn't in memory has none
            self._state = _copied(each.state_dict())
        self._groups: list[dict[str, Any]] = []
        if isinstance(each, LRScheduler):
            self._groups = [
                {name: deepcopy(value) for name, value in group.items() if name != "params"}
                for group in each.optimizer.param_groups
            ]

    def put_back(self) -> None:
        """Give the object what it was.

        Raises:
            Exception: what its ``load_state_dict`` raises on its own state. Its attributes,
                and a schedule's parameter groups, are put back nevertheless.
        """
        try:
            if self._state is not None:
                self._object.load_state_dict(self._state)
        finally:
            self._put_attributes_back()

    def _put_attributes_back(self) -> None:
        if self._attributes:
            vars(self._object).clear()
            vars(self._object).update(self._attributes)
        if self._groups:
            groups = self._object.optimizer.param_groups
            for group, former in zip(groups, self._groups, strict=True):
                group.update(former)


def _copied(state: Any) -> Any:
    """Return a deep copy; a tensor with a graph, which refuses one, is copied without it."""
    memo = {id(tensor): tensor.detach().clone() for tensor in _with_graphs(state)}
    return deepcopy(state, memo)


def _with_graphs(state: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of dicts, lists and tuples that aren't leaves."""
    if isinstance(state, torch.Tensor):
        if not state.is_leaf:
            yield state
    elif isinstance(state, Mapping):
        for each in state.values():
            yield from _with_graphs(each)
    elif isinstance(state, list | tuple):
        for each in state:
            yield from _with_graphs(each)
