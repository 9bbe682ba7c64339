"""A module whose parameter ``weight`` stands for the rows of a table.

What torch's own modules do with their parameters, it does with rows: assignments, moves to a
device, copies, ``state_dict`` and ``load_state_dict``.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import override

from paramfleet.tables.embedding_errors import UntraceableError
from paramfleet.tables.sparse import SparseTable, table_of
from paramfleet.tables.weight.rows import WeightError, is_whole, write_whole
from paramfleet_shared.values.texts import shown

__all__ = ["WeightedModule"]


class WeightedModule(torch.nn.Module):
    """What embeddings have of torch's modules. Used from the training thread."""

    table: SparseTable
    num_embeddings: int
    embedding_dim: int

    def share(self, table: SparseTable) -> None:
        """Use another module's table of the same name and shape."""
        if table is self.table:
            return
        table.num_embeddings = max(table.num_embeddings, self.table.num_embeddings)
        table.first_rows += self.table.first_rows
        if self.table.padding_idx != table.padding_idx:
            table.padding_idx = None
        self.table = table
        self._parameters["weight"] = table.weight

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":
            self._replace_weight(value)
        else:
            super().__setattr__(name, value)

    def _replace_weight(self, value: Any) -> None:
        """Share the table of another module's weight, or write rows.

        Raises:
            WeightError: if it is neither a weight of an embedding nor rows.
        """
        other = table_of(value) if isinstance(value, torch.Tensor) else None
        if other is not None:
            if not self.table.in_use or other is self.table:
                self.share(other)
                return
            reason = "the table has rows already; let modules share a table by its name"
            raise WeightError(table=self.table.name, operation="an assignment", reason=reason)
        if not isinstance(value, torch.nn.Parameter):
            reason = f"must be a torch.nn.Parameter with rows, and not {shown(value)}"
            raise WeightError(table=self.table.name, operation="an assignment", reason=reason)
        with torch.no_grad():
            self.table.weight.data = value.data
        self.table.weight.requires_grad = value.requires_grad

    def _check_weight(self) -> None:
        """Check that no code has put something else in the place of the weight.

        Raises:
            WeightError: as pruning, parametrizations, weight norms and functional calls do.
        """
        if self._parameters.get("weight") is not self.table.weight:
            reason = (
                "it was replaced by other values, which lookups would not use: a table can't "
                "be pruned, parametrized, normalized or called with other parameters; apply "
                "that to the embedding's output"
            )
            raise WeightError(table=self.table.name, operation="a replacement", reason=reason)

    @override
    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "WeightedModule":
        weight = self._parameters.pop("weight")
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        finally:
            self._parameters["weight"] = weight
        self._check_weight()
        with torch.no_grad():
            self.table.weight.set_memory(fn(self.table.weight.memory))
        return self

    def reset_parameters(self) -> None:
        """Begin with normally distributed rows, as torch's embeddings."""
        torch.nn.init.normal_(self.table.weight)

    def _begin_with(self, embeddings: torch.Tensor, *, freeze: bool) -> None:
        with torch.no_grad():
            write_whole(self.table, embeddings)
        self.weight.requires_grad = not freeze

    @override
    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.table.weight.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> "WeightedModule":
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        table = copy.deepcopy(self.table, memo)
        state = {k: v for k, v in self.__dict__.items() if k not in {"table", "_parameters"}}
        copied.__dict__.update(copy.deepcopy(state, memo))
        copied.__dict__["table"] = table
        others = {k: v for k, v in self._parameters.items() if k != "weight"}
        copied.__dict__["_parameters"] = {"weight": table.weight, **copy.deepcopy(others, memo)}
        return copied

    def __prepare_scriptable__(self) -> Any:
        """Refuse ``torch.jit.script``, which calls this.

        Raises:
            UntraceableError: always.
        """
        raise UntraceableError(table=self.table.name, where="torch.jit.script")

    @override
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Put the rows there, [N, D], where they are a whole; else none of them, and say so."""
        weight = self.table.weight
        if keep_vars:
            destination[f"{prefix}weight"] = weight
        elif is_whole(self.table):
            destination[f"{prefix}weight"] = weight.detach()
        else:
            destination[f"{prefix}weight"] = weight.memory.new_empty((0, self.embedding_dim))
            reason = (
                "state_dict() holds no rows of a table that has no fixed number of them, or "
                "too many; save the model with fleet.save_persistables"
            )
            self.table.note_once("worker.rows_not_in_state_dict", reason)

    @override
    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Write rows 0, 1, ...; report them as torch does if they are missing or don't fit."""
        del local_metadata, unexpected_keys
        key = f"{prefix}weight"
        if key not in state_dict:
            if strict:
                missing_keys.append(key)
            return
        rows = state_dict[key]
        if not isinstance(rows, torch.Tensor):
            error_msgs.append(f"{key} must be a tensor, and is {shown(rows)}")
            return
        if rows.is_meta or rows.layout != torch.strided or not rows.dim():
            error_msgs.append(f"{key} is a tensor without rows: {rows.layout}, {rows.device}")
            return
        count = self.num_embeddings or len(rows)
        if not len(rows) and not is_whole(self.table):  # as it was saved
            return
        if tuple(rows.shape) != (count, self.embedding_dim):
            error_msgs.append(
                f"size mismatch for {key}: copying a param with shape {rows.shape} from "
                f"checkpoint, the shape in current model is {self.table.weight.shape}."
            )
            return
        with torch.no_grad():
            write_whole(self.table, rows)
