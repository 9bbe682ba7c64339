"""The generators of ``paddle.distributed.fleet``: paramfleet's, which take the same readers."""

from paramfleet.data.generator import MultiSlotDataGenerator, MultiSlotStringDataGenerator

__all__ = ["MultiSlotDataGenerator", "MultiSlotStringDataGenerator"]
