"""A model's parameters as fragments: flat vectors, cut between parameters.

Shape legend: F = values of a fragment.
"""

from collections.abc import Sequence

import torch

from paramfleet.config.strategy import StrategyError
from paramfleet.training.localsgd.core.settings import LocalSgdSettingsError
from paramfleet.training.modes.base import ModelTables

__all__ = ["Layout", "MixedDevicesError", "refuse_tables", "trained_parameters"]


class MixedDevicesError(LocalSgdSettingsError):
    """Parameters of one fragment's vector lie on different devices."""

    code = "contract.localsgd_devices"


def trained_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters that an optimizer changes, in its order."""
    return [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]


def refuse_tables(flag: str, tables: ModelTables) -> None:
    """Demand that all parameters are dense.

    Raises:
        StrategyError: if the model has sparse tables.
    """
    for table, _ in tables.sparse:
        rule = (
            f"averages dense parameters, and table {table.name!r} is a fleet.nn.Embedding: "
            "train it with a_sync_configs['k_steps'] instead, which is GEO"
        )
        raise StrategyError(key=flag, value="True", rule=rule)


class Layout:
    """Which parameters are in which fragment.

    Args:
        parameters: Of any float dtype, on one device, in the same order on all workers.
        num_fragments: In how many parts; about of one size, each at least one parameter.

    Raises:
        LocalSgdSettingsError: if there are fewer parameters than fragments.
        MixedDevicesError: if the parameters lie on different devices.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], num_fragments: int) -> None:
        if len(parameters) < num_fragments:
            rule = f"the optimizer has {len(parameters)} parameters to train"
            raise LocalSgdSettingsError(key="fragments", value=str(num_fragments), rule=rule)
        devices = sorted({str(parameter.device) for parameter in parameters})
        if len(devices) > 1:
            rule = "one vector holds them: put the model on one device"
            raise MixedDevicesError(key="parameters", value=", ".join(devices), rule=rule)
        cuts = _cuts([parameter.numel() for parameter in parameters], num_fragments)
        self.fragments = [
            list(parameters[begin:end])
            for begin, end in zip([0, *cuts], [*cuts, len(parameters)], strict=True)
        ]
        """The parameters of each fragment."""
        self.sizes = [sum(p.numel() for p in fragment) for fragment in self.fragments]
        """Values F of each fragment."""
        self.device = parameters[0].device
        """Where they are."""

    def read(self, fragment: int) -> torch.Tensor:
        """Return a copy of a fragment's values, float32 [F]."""
        return torch.cat([p.detach().reshape(-1).float() for p in self.fragments[fragment]])

    def write(self, fragment: int, values_F: torch.Tensor) -> None:
        """Set a fragment's values, rounded to the parameters' dtypes.

        Args:
            fragment: Which.
            values_F: float32 [F].
        """
        write_flat(self.fragments[fragment], values_F)


def write_flat(tensors: Sequence[torch.Tensor], values_F: torch.Tensor) -> None:
    """Copy one vector into tensors, one after the other.

    Args:
        tensors: Of F values together.
        values_F: float32 [F].
    """
    with torch.no_grad():
        parts = torch.split(values_F, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def _cuts(sizes: Sequence[int], num_parts: int) -> list[int]:
    """Return where the parts after the first begin; none is empty."""
    cuts: list[int] = []
    begin, left = 0, sum(sizes)
    for parts_left in range(num_parts, 1, -1):
        end, size = begin + 1, sizes[begin]
        goal = left / parts_left
        while len(sizes) - end >= parts_left and size + sizes[end] / 2 <= goal:
            size += sizes[end]
            end += 1
        cuts.append(end)
        begin, left = end, left - size
    return cuts
