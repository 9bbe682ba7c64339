"""The optimizer states that GEO's workers hold, gathered while a checkpoint is written.

Rows are asked for some at a time, of all workers at once, so that no more than that is in
memory. A worker that doesn't answer in time is asked no more; what it holds is left out, and
the worker named.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.core.gathered import UNKNOWN, Held, merged
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.waiting.asking import Asking
from paramfleet_shared.checkpoint.gathered import GatheredStates
from paramfleet_shared.checkpoint.manifest import FilePart
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rows.states import check_row_states
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.values.ids import Rank

__all__ = ["GONE", "SILENT", "Gathering", "rules_of"]

QUESTION_VALUES = 1 << 21
"""Floats of a worker's answer: 8 MiB."""

GONE = "it left before"
SILENT = "it did not answer in time"


def rules_of(message: Message) -> dict[str, OptimizerSpec]:
    """Return under which rules workers keep states, by table, as a save says it.

    Raises:
        TableSpecError: if a table is described wrongly.
    """
    if "states" not in message.fields:
        return {}
    wires = Fields(message.fields, where="save").parts("states")
    specs = [TableSpec.from_wire(wire) for wire in wires]
    return {spec.name: spec.optimizer for spec in specs}


class Gathering:
    """The states for one checkpoint.

    Args:
        asking: The way to the workers.
        workers: All that have taken part.
        rules: Under which rule workers keep states, by table.
    """

    def __init__(
        self,
        asking: Asking,
        workers: Sequence[Rank],
        rules: Mapping[str, OptimizerSpec],
    ) -> None:
        self._asking = asking
        self._rules = rules
        gone = asking.gone
        self._workers = [rank for rank in workers if rank not in gone]
        self._left_out = {int(rank): GONE for rank in workers if rank in gone}
        self._steps: dict[str, dict[Rank, tuple[int, int]]] = {}

    @property
    def gathers(self) -> bool:
        """Return whether workers are asked for states."""
        return bool(self._rules)

    def spec(self, spec: TableSpec) -> TableSpec:
        """Return how a table is described where its states are saved with it."""
        return replace(spec, optimizer=self._rules.get(spec.name, spec.optimizer))

    def version(self, spec: TableSpec, otherwise: int) -> int:
        """Return the steps of a table in the whole job, as its optimizer counts them.

        Workers count rows' steps as those of all, and a dense table's as their own.
        """
        if spec.name not in self._rules:
            return otherwise
        steps = self._steps.get(spec.name, {}).values()
        if spec.kind == "dense":
            return max((before + own for before, own in steps), default=0)
        return max((before for before, _ in steps), default=0) + sum(own for _, own in steps)

    @property
    def outcome(self) -> GatheredStates:
        """Whose states there are."""
        workers = tuple(int(rank) for rank in self._workers)
        return GatheredStates(workers=workers, left_out=self._left_out)

    async def with_states(self, spec: TableSpec, part: FilePart) -> FilePart:
        """Return a part of a table with the states that the workers hold beside it.

        Columns that the table has itself stay: of its rows' use, which it knows of all workers.

        Args:
            spec: The table, as it is kept here.
            part: Some of it.
        """
        rule = self._rules.get(spec.name)
        if rule is None:
            return part
        if part.ids is None:
            most = max(1, QUESTION_VALUES // rule.num_state_columns)
            found = np.empty((rule.num_state_columns, part.num_rows), np.float32)
            for start in range(0, part.num_rows, most):
                stop = min(start + most, part.num_rows)
                about = {"start": part.start + start, "stop": part.start + stop}
                pieces = await self._ask(spec.name, about, None, stop - start, rule)
                found[:, start:stop] = pieces.T
            return replace(part, states=found)
        width = RowLayout.of_states(rule, spec.dim).pitch
        most = max(1, QUESTION_VALUES // width)
        states = np.empty((part.num_rows, width), np.float32)
        for start in range(0, part.num_rows, most):
            ids = part.ids[start : start + most]
            pieces = await self._ask(spec.name, {}, ids, len(ids), rule, dim=spec.dim)
            states[start : start + most] = pieces
        kept = RowLayout.of_states(spec.optimizer, spec.dim).spans
        for name, span in RowLayout.of_states(rule, spec.dim).spans.items():
            if name in kept:
                states[:, span] = part.states[:, kept[name]]
        return replace(part, states=states)

    async def _ask(
        self,
        table: str,
        about: Mapping[str, int],
        ids: NDArray[np.int64] | None,
        num_rows: int,
        rule: OptimizerSpec,
        *,
        dim: int = 1,
    ) -> NDArray[np.float32]:
        """Return the states of some rows [n, C], or of some values [n, S]."""
        fields = {"about": "states", "table": table, "rule": rule.rule, **about}
        question = Message(fields=fields, tensors={} if ids is None else {"ids": ids})
        answers = await self._asking.ask(self._workers, question)
        workers = []
        for rank in list(self._workers):
            reason = SILENT if rank not in self._asking.gone else GONE
            lack = answers[rank].fields.get("lack") if rank in answers else None
            if type(lack) is str:
                reason = lack
            elif rank in answers:
                try:
                    held = _held(answers[rank], rule, num_rows=num_rows, dim=dim)
                    steps = Fields(answers[rank].fields, where="answer")
                    now = steps.integer("before"), steps.integer("own")
                except MalformedMessageError as error:
                    reason = str(error)
                else:
                    self._steps.setdefault(table, {})[rank] = now
                    workers.append(held)
                    continue
            self._workers.remove(rank)
            self._left_out[int(rank)] = reason
        return await asyncio.to_thread(merged, rule, workers, num_rows=num_rows, dim=dim)


def _held(message: Message, rule: OptimizerSpec, *, num_rows: int, dim: int) -> Held:
    """Return what a worker says it holds.

    Raises:
        MalformedMessageError: if that can't be.
    """
    counts, states = message.tensors.get("counts"), message.tensors.get("states")
    width = RowLayout.of_states(rule, dim).pitch
    if (
        counts is None
        or states is None
        or counts.dtype != np.int64
        or states.dtype != np.float32
        or (counts.shape, states.shape) != ((num_rows,), (num_rows, width))
        or bool((counts < UNKNOWN).any())
    ):
        rule_text = f"must be counts [{num_rows}] and states [{num_rows}, {width}]"
        raise MalformedMessageError(where="answer", rule=rule_text)
    wrong = check_row_states(rule, states, dim)
    if wrong is not None:
        raise MalformedMessageError(where="answer", rule=wrong)
    return Held(counts, states)
