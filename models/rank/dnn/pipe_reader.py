"""Slot text as MultiSlot text: the ``pipe_command`` of QueueDataset and InmemoryDataset.

Run by the runner for each file, with the path of the YAML as first argument.
"""

from collections.abc import Callable, Iterator

from typing_extensions import override

import paramfleet as fleet

NUM_IDS, NUM_DENSE = 26, 13

Sample = list[tuple[str, list[int] | list[float]]]


class Reader(fleet.MultiSlotDataGenerator):
    """Slots click, 1 to 26 and dense_feature, in this order."""

    @override
    def generate_sample(self, line: str | None) -> Callable[[], Iterator[Sample]]:
        def sample() -> Iterator[Sample]:
            slots: dict[str, list[str]] = {}
            for word in (line or "").split():
                name, _, value = word.partition(":")
                slots.setdefault(name, []).append(value)
            ids = [(str(n), slots.get(str(n), ["0"])) for n in range(1, NUM_IDS + 1)]
            dense = slots.get("dense_feature", ["0"] * NUM_DENSE)
            yield [
                ("click", [int(value) for value in slots["click"]]),
                *((name, [int(value) for value in values]) for name, values in ids),
                ("dense_feature", [float(value) for value in dense]),
            ]

        return sample


if __name__ == "__main__":
    Reader().run_from_stdin()
