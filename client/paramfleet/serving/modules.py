"""``fleet.nn.Embedding`` and ``EmbeddingBag`` over exported rows: the same answers, read-only.

They are torch's operations alone, so that ``torch.export`` takes them. A compiler can't look
at values: ids that can't be ids are refused in eager calls only.

Shape legend: q = ids of a call, U = different ones, B = bags, D = row width.
"""

from typing import Protocol, runtime_checkable

import torch
from torch.nn import functional

from paramfleet.serving.rows import TableRows
from paramfleet.tables.embedding_errors import (
    EmbeddingOptionError,
    id_type_error,
    negative_id_error,
)

__all__ = ["Servable", "ServedEmbedding", "ServedEmbeddingBag", "demand_own_forward"]


@runtime_checkable
class Servable(Protocol):
    """A module of a model that looks up a sparse table."""

    @property
    def row_width(self) -> int:
        """Return how many columns the table has, those included that the module hides."""
        ...

    def table_at(self, path: str) -> str:
        """Return the table's name, if the module stands at ``path`` in the model."""
        ...

    def served_from(self, rows: TableRows) -> torch.nn.Module:
        """Return a module that does the same with exported rows."""
        ...


def demand_own_forward(module: torch.nn.Module, kind: type[torch.nn.Module]) -> None:
    """Pass if a module computes what its kind does.

    Raises:
        EmbeddingOptionError: if it is of a subclass with another forward.
    """
    if type(module).forward is not kind.forward:
        value = f"{type(module).__name__}.forward"
        rule = f"can't be served: let a module of its own hold a {kind.__name__} and call it"
        raise EmbeddingOptionError(option="forward", value=value, rule=rule)


class _Served(torch.nn.Module):
    """Ids to rows, with padding."""

    def __init__(
        self,
        rows: TableRows,
        padding_idx: int | None,
        *,
        negative_ids: bool = False,
        hidden: int = 0,
    ) -> None:
        super().__init__()
        self._hidden = hidden
        self.rows = rows
        self.padding_idx = padding_idx
        self.negative_ids = negative_ids
        self.embedding_dim = rows.dim - hidden

    def _checked(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return ids int64 [q], and which of them are padding, bool [q].

        Raises:
            IdError: on a dtype that isn't an id's, or a negative id.
        """
        if ids.dtype not in {torch.int64, torch.int32}:
            error = id_type_error(self.rows.name, str(ids.dtype))
            raise error
        flat = ids.reshape(-1).to(torch.int64)
        padding = None if self.padding_idx is None else flat == self.padding_idx
        if not (self.negative_ids or torch.compiler.is_compiling()):
            negative = flat < 0 if padding is None else (flat < 0) & ~padding
            if bool(negative.any()):
                error = negative_id_error(
                    self.rows.name, flat.cpu().numpy(), negative.cpu().numpy()
                )
                raise error
        return flat, padding

    def _rows_of(self, ids_q: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """Return rows float [q, D]; those of padding are zeros."""
        rows: torch.Tensor = self.rows(ids_q)
        if self._hidden:
            rows = rows[:, self._hidden :]
        if padding is None:
            return rows
        return rows.masked_fill(padding.to(rows.device).unsqueeze(1), 0.0)


class ServedEmbedding(_Served):
    """``fleet.nn.Embedding`` over exported rows.

    Args:
        rows: The table.
        padding_idx: The id that reads as zeros; None for none.
        negative_ids: Whether negative ids are taken, too.
        hidden: Columns of a row that aren't shown, the first ones.
    """

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002 - torch's name
        *,
        different: bool = False,
        show: torch.Tensor | None = None,
        click: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of ids of any shape ``[...]`` as ``[..., D]``.

        Args:
            input: The ids.
            show: Not looked at: what is served counts nothing.
            click: The same.
            different: Return each row once instead, float [U, D], and which of them each id
                has, int64 [...].

        Raises:
            IdError: on a dtype that isn't an id's, or a negative id.
        """
        del show, click
        flat, padding = self._checked(input)
        if not different:
            return self._rows_of(flat, padding).view(*input.shape, self.embedding_dim)
        unique, index = torch.unique(flat, return_inverse=True)
        empty = None if padding is None else unique == self.padding_idx
        rows = self._rows_of(unique, empty)
        return rows, index.view(input.shape).to(rows.device)


class ServedEmbeddingBag(_Served):
    """``fleet.nn.EmbeddingBag`` over exported rows.

    Args:
        rows: The table.
        padding_idx: The id that is left out of its bag; None for none.
        mode: ``sum``, ``mean`` or ``max`` over a bag.
        include_last_offset: The last of ``offsets`` is the number of ids.
        negative_ids: Whether negative ids are taken, too.
        hidden: Columns of a row that aren't shown, the first ones.
    """

    def __init__(
        self,
        rows: TableRows,
        *,
        padding_idx: int | None,
        mode: str,
        include_last_offset: bool,
        negative_ids: bool = False,
        hidden: int = 0,
    ) -> None:
        super().__init__(rows, padding_idx, negative_ids=negative_ids, hidden=hidden)
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002 - torch's name
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
        *,
        show: torch.Tensor | None = None,
        click: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return one reduced row a bag, [B, D].

        Args:
            input: Ids [B, q / B] (every row a bag), or [q] with ``offsets``.
            show: Not looked at: what is served counts nothing.
            click: The same.
            offsets: Where each bag starts in a 1-d ``input``.
            per_sample_weights: One factor an id, shaped as ``input``; ``mode="sum"`` only.

        Raises:
            IdError: on a dtype that isn't an id's, or a negative id.
        """
        del show, click
        flat, padding = self._checked(input)
        rows, count = self._rows_of(flat, padding), flat.shape[0]
        if offsets is None and torch.compiler.is_compiling():
            present = None if padding is None else ~padding.to(rows.device)
            return self._reduced(rows, present, input.shape, per_sample_weights)
        index = torch.arange(count, device=rows.device)
        if padding is not None:  # the row behind the last is the one that is left out
            rows = torch.cat([rows, rows.new_zeros((1, self.embedding_dim))])
            index = index.masked_fill(padding.to(rows.device), count)
        return functional.embedding_bag(
            index.view(input.shape),
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=None if padding is None else count,
        )

    def _reduced(
        self,
        rows: torch.Tensor,
        present: torch.Tensor | None,
        shape: torch.Size,
        factors: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return bags of one length, for a compiler: torch's ties their number to an example's.

        Args:
            rows: [q, D], zeros where an id is left out.
            present: bool [q]: which ids aren't; None for all.
            shape: B, and ids a bag.
            factors: ``per_sample_weights``.
        """
        bags = rows.view(*shape, self.embedding_dim)
        if self.mode == "sum":
            return (bags if factors is None else bags * factors.unsqueeze(2)).sum(1)
        if present is None:
            return bags.mean(1) if self.mode == "mean" else bags.amax(1)
        in_bags = present.view(shape).unsqueeze(2)
        if self.mode == "mean":
            return bags.sum(1) / in_bags.sum(1).clamp(min=1)
        largest = bags.masked_fill(~in_bags, -torch.inf).amax(1)
        return largest.masked_fill(~in_bags.any(1), 0.0)
