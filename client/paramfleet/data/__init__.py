"""``fleet.data``: files of MultiSlot text as batches of PyTorch tensors.

What is named here is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paramfleet.data.batch import Batch, SlotValues
    from paramfleet.data.generator import (
        MultiSlotDataGenerator,
        MultiSlotStringDataGenerator,
    )
    from paramfleet.data.memory_dataset import InMemoryDataset
    from paramfleet.data.parsing.slots import Slot
    from paramfleet.data.queue_dataset import QueueDataset
    from paramfleet.data.reading.files import split_files
    from paramfleet.data.sampler import DistributedSampler

__all__ = [
    "Batch",
    "DistributedSampler",
    "InMemoryDataset",
    "MultiSlotDataGenerator",
    "MultiSlotStringDataGenerator",
    "QueueDataset",
    "Slot",
    "SlotValues",
    "split_files",
]

_MODULE_OF = {
    "Batch": "batch",
    "DistributedSampler": "sampler",
    "InMemoryDataset": "memory_dataset",
    "MultiSlotDataGenerator": "generator",
    "MultiSlotStringDataGenerator": "generator",
    "QueueDataset": "queue_dataset",
    "Slot": "parsing.slots",
    "SlotValues": "batch",
    "split_files": "reading.files",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for.

    Raises:
        AttributeError: if there is nothing of this name.
    """
    if name not in _MODULE_OF:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
