"""All lookups of a forward by one request: their rows are pulled as the forward begins.

Which ids a forward looks up is seen in its input. The first one is watched: which tensors of
the input, or views of them, reach which module of ``fleet.nn``. From the second one on they
are asked for together. Ids that are computed on the way are nobody's view, and their rows are
pulled when the lookup comes; a view that a forward didn't look up isn't asked for again.

Used from the training thread.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from paramfleet.nn.embedding import SparseModule
from paramfleet.nn.views import View, tensors_of
from paramfleet.tables.embedding_errors import IdError
from paramfleet.telemetry.eager import runs_eagerly
from paramfleet.training.modes.prefetching.ahead import Expecting, Wanted
from paramfleet_shared.tables.rows.batch import RowIds

__all__ = ["Forwards"]


class Forwards:
    """Pulls the rows of each forward of the models it watches.

    Args:
        mode: Returns who pulls; None where no rows travel.
    """

    def __init__(self, mode: Callable[[], Expecting | None]) -> None:
        self._mode = mode
        self._watched: set[int] = set()

    def watch(self, model: torch.nn.Module) -> None:
        """Pull the rows of this model's forwards from now on."""
        if id(model) not in self._watched:
            self._watched.add(id(model))
            watched = _Watched(self._mode)
            model.register_forward_pre_hook(watched.begin, with_kwargs=True)
            model.register_forward_hook(watched.end, always_call=True)


class _Watched:
    """One model."""

    def __init__(self, mode: Callable[[], Expecting | None]) -> None:
        self._mode = mode
        self._views: list[View] | None = None
        self._asked: list[View] = []
        self._hooks: list[Any] = []

    @runs_eagerly
    def begin(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Pull what the forward will look up; watch it if that isn't known."""
        mode = self._mode()
        if mode is None or self._hooks or self._asked:
            return
        if self._views is None:
            self._views = self._learn(model, [args, kwargs])
        elif len(self._views) > 1 and not mode.ahead.has_begun:
            asked = list(self._wanted([args, kwargs]))
            self._asked = [view for view, _ in asked]
            if len(asked) > 1:  # a single one is pulled by its lookup as well
                mode.expect([wanted for _, wanted in asked])

    @runs_eagerly
    def end(self, model: torch.nn.Module, args: Any, result: Any) -> None:
        """Forget what wasn't looked up, and don't ask for it again."""
        del model, args, result
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        asked, self._asked = self._asked, []
        for view in asked:
            view.module.expect_nothing()
        mode = self._mode()
        if asked and mode is not None and self._views is not None:
            for place in mode.ahead.end_forward():
                self._views.remove(asked[place])

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied, with a model, as what watches for nobody."""
        return _Watched, (_nobody,)

    def _learn(self, model: torch.nn.Module, given: Any) -> list[View]:
        """Return what will be filled with the views that the forward looks up."""
        tensors, views = dict(tensors_of(given)), list[View]()

        @runs_eagerly
        def note(module: Any, args: Any, kwargs: Any) -> None:
            ids = args[0] if args else kwargs.get("input")
            found = View.of(module, ids, tensors)
            if found is not None and found not in views:
                views.append(found)

        for module in model.modules():
            if isinstance(module, SparseModule):
                self._hooks.append(module.register_forward_pre_hook(note, with_kwargs=True))
        return views

    def _wanted(self, given: Any) -> Iterator[tuple[View, Wanted]]:
        tensors = dict(tensors_of(given))
        for view in self._views or ():
            ids = view.seen_in(tensors)
            if ids is None:
                continue
            try:
                unique, _, offsets = view.module.expect(ids)[0]
            except IdError:  # the lookup will say so
                continue
            yield view, Wanted(view.module.table, RowIds(unique, offsets), view.module.creates)


def _nobody() -> None:
    """Return no mode."""
