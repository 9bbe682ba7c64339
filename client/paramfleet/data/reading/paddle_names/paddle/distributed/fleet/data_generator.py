"""The generators, under the other name that Paddle has for them."""

from paramfleet.data.generator import (
    DataGenerator,
    MultiSlotDataGenerator,
    MultiSlotStringDataGenerator,
)

__all__ = ["DataGenerator", "MultiSlotDataGenerator", "MultiSlotStringDataGenerator"]
