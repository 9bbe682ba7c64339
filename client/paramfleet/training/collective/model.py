"""The model of a collective job: the user's own, and how its gradients come together."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from typing_extensions import override

from paramfleet.config.errors import CallOrderError
from paramfleet.tables.sparse import tables_of
from paramfleet.telemetry.examples_count import first_dimension
from paramfleet.training.collective.errors import CollectiveSetupError

__all__ = ["CollectiveModel"]


class CollectiveModel(torch.nn.Module):
    """Made by ``fleet.distributed_model``. Its parameters and ``state_dict`` are the user's.

    Args:
        module: The user's model, moved to this worker's device.

    Raises:
        CollectiveSetupError: if it has tables, which need servers.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        for table in tables_of(module).values():
            rule = "its rows are on pservers, and is_collective=True has none: use torch.nn's"
            raise CollectiveSetupError(found=f"fleet.nn module of {table.name!r}", rule=rule)
        self.module = module
        self.first_examples = 0
        """Examples of the first batch."""
        self._forward: Callable[..., Any] | None = None

    def run_through(self, forward: Callable[..., Any]) -> None:
        """Let gradients come together: ``forward`` is called from now on."""
        self._forward = forward

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the user's model returns.

        Raises:
            CallOrderError: in training before ``fleet.distributed_optimizer``, which knows
                how the gradients come together.
        """
        if not self.first_examples:
            self.first_examples = first_dimension([args, kwargs]) or 0
        if self._forward is not None:
            return self._forward(*args, **kwargs)
        if self.training and torch.is_grad_enabled():
            remedy = "give the optimizer to fleet.distributed_optimizer() before training"
            raise CallOrderError(function="distributed_model", remedy=remedy)
        return self.module(*args, **kwargs)

    @override
    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]  # torch's overloads
        """Return the user's model's: it loads without this package."""
        state: dict[str, Any] = self.module.state_dict(*args, **kwargs)
        return state

    @override
    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        assign: bool = False,
    ) -> Any:
        """Load into the user's model."""
        return self.module.load_state_dict(state_dict, strict=strict, assign=assign)

    @override
    def named_parameters(
        self,
        prefix: str = "",
        recurse: bool = True,
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the user's names."""
        return self.module.named_parameters(prefix, recurse, remove_duplicate)
