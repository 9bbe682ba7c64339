"""What an id without a row reads: one policy a table, in the export and when it is loaded.

``"initial"``: the row that the job itself would read, made of the table's seed and the id.
``"zeros"``: zeros. ``"constant"``: one constant for all ids, the initializer's value, the
middle of its range or its mean. Or a row of D numbers, which all such ids share.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch

from paramfleet.serving.errors import UnknownRowError
from paramfleet_shared.tables.spec import InitializerSpec

__all__ = ["Policy", "Unknown", "UnknownOf", "chosen_of", "shared_row"]

Policy = Literal["initial", "zeros", "constant"]
Unknown = Policy | Sequence[float] | torch.Tensor
"""Of one table."""
UnknownOf = Policy | Mapping[str, Unknown]
"""One policy for all tables, or by table."""


def chosen_of(unknown: UnknownOf, widths: Mapping[str, int]) -> dict[str, Policy | list[float]]:
    """Return what was chosen for each table that was named, or for all.

    Args:
        unknown: What the user gave.
        widths: The tables there are, and D of each.

    Raises:
        UnknownRowError: on an unknown policy or table, or on a row that isn't D numbers.
    """
    if not isinstance(unknown, Mapping):
        return {table: _policy(table, unknown) for table in widths}
    chosen: dict[str, Policy | list[float]] = {}
    for table, choice in unknown.items():
        if table not in widths:
            rule = f"there is no such sparse table; there are: {_listed(widths)}"
            raise UnknownRowError(table=str(table), rule=rule)
        is_policy = isinstance(choice, str)
        chosen[table] = (
            _policy(table, choice) if is_policy else _row(table, choice, widths[table])
        )
    return chosen


def shared_row(policy: Policy, initializer: InitializerSpec, dim: int) -> torch.Tensor | None:
    """Return the row that all ids without one read, float32 [D]; None if each has its own."""
    if policy == "initial":
        return None
    value = {
        "zeros": 0.0,
        "constant": initializer.value,
        "uniform": (initializer.low + initializer.high) / 2,
        "normal": initializer.mean,
    }["zeros" if policy == "zeros" else initializer.kind]
    return torch.full((dim,), value)


def _policy(table: str, policy: Any) -> Policy:
    if policy not in get_args(Policy):
        rule = f"must be one of {', '.join(get_args(Policy))}, or a row; not {policy!r}"
        raise UnknownRowError(table=table, rule=rule)
    known: Policy = policy
    return known


def _row(table: str, row: Any, dim: int) -> list[float]:
    rule = f"a shared row must be {dim} finite float32 numbers"
    try:
        numbers = torch.as_tensor(row, dtype=torch.float32, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnknownRowError(table=table, rule=f"{rule}: {error}") from error
    if numbers.shape != (dim,) or not bool(numbers.isfinite().all()):
        raise UnknownRowError(table=table, rule=f"{rule}, not {list(numbers.shape)}")
    return [float(number) for number in numbers.tolist()]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
