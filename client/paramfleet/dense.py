"""Dense parameters of one optimizer group, seen as one flat vector.

Legend: P = all values of the group's parameters, in the order of the group.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.devices import to_device, to_host
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec

__all__ = ["DenseBlock"]


class DenseBlock:
    """The parameters of one group as float32 [P].

    Args:
        name: The dense table's name in the job.
        parameters: Parameters that learn; their number and shapes are fixed from now on.
    """

    def __init__(self, name: str, parameters: Sequence[torch.Tensor]) -> None:
        self.name = name
        self.parameters = tuple(parameters)
        self.size = sum(parameter.numel() for parameter in self.parameters)

    def spec(self, rule: OptimizerSpec, *, num_shards: int = 1) -> TableSpec:
        """Describe the table to the pservers or a checkpoint."""
        return TableSpec(
            name=self.name,
            kind="dense",
            dim=1,
            size=self.size,
            num_shards=num_shards,
            seed=0,
            initializer=InitializerSpec(kind="zeros"),
            optimizer=rule,
        )

    def values(self) -> NDArray[np.float32]:
        """Return a copy of the values, float32 [P]."""
        return self._flat([parameter.detach() for parameter in self.parameters])

    def gradients(self) -> NDArray[np.float32]:
        """Return a copy of the gradients, float32 [P]; zero where a parameter has none."""
        return self._flat(
            [
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                for parameter in self.parameters
            ]
        )

    def install(self, values_P: NDArray[np.float32]) -> None:
        """Set the parameters to ``values_P``, float32 [P]."""
        devices = {parameter.device for parameter in self.parameters}
        flat = torch.from_numpy(values_P)
        if len(devices) == 1:
            flat = to_device(flat, devices.pop())
        position = 0
        with torch.no_grad():
            for parameter in self.parameters:
                part = flat[position : position + parameter.numel()]
                parameter.copy_(part.view(parameter.shape))
                position += parameter.numel()

    @staticmethod
    def _flat(tensors: Sequence[torch.Tensor]) -> NDArray[np.float32]:
        if not tensors:
            return np.empty(0, np.float32)
        parts = [t.detach().reshape(-1).to(torch.float32) for t in tensors]
        if len({part.device for part in parts}) > 1:
            parts = [to_host(part, dtype=torch.float32) for part in parts]
        flat: NDArray[np.float32] = to_host(torch.cat(parts), dtype=torch.float32).numpy()
        return flat
