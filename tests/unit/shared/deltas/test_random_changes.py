"""Random lives of a stream: whatever is published, compacted, pruned and begun again."""

from pathlib import Path

import numpy as np
import pytest
from tests.unit.shared.deltas.streams import (
    Model,
    begin,
    leftovers,
    model_of,
    random_change,
    read_from,
    writer_at,
)

from paramfleet_shared.deltas.compaction import prune_folder
from paramfleet_shared.deltas.errors import ChangesUnavailableError, StreamReplacedError
from paramfleet_shared.deltas.inspecting.verifying import verify_stream
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.testing.clock import FakeClock


class Follower:
    """A reader that begins at a base, follows, and begins anew where it is told to."""

    def __init__(self, folder: Path) -> None:
        self.reader = StreamReader(folder)
        self.begin()
        self.begins = 0

    def begin(self) -> None:
        base = self.reader.base()
        self.number, self.model = base.number, model_of(base)

    def follow(self) -> None:
        try:
            for each in self.reader.changes(self.number, self.reader.look().last):
                self.model.apply(each.change)
                self.number = each.number
        except (StreamReplacedError, ChangesUnavailableError):
            self.begin()
            self.begins += 1
            self.follow()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_readers_have_what_was_published(seed: int, tmp_path: Path) -> None:
    folder = tmp_path if seed % 2 else place_of(f"memory://random{tmp_path}")
    numbers, model = np.random.default_rng(seed), Model()
    writer = writer_at(folder, keep_bases=1 + seed % 3)
    begin(writer, model)
    followers = [Follower(folder) for _ in range(3)]
    states: dict[int, Model] = {0: model.copy()}

    for step in range(60):
        choice = numbers.random()
        if choice < 0.7:
            change = random_change(numbers, float(step))
            number = writer.publish(change)
            model.apply(change)
            states[number] = model.copy()
        elif choice < 0.85:
            writer.compact()
        elif choice < 0.92:
            prune_folder(folder, FakeClock(), keep=int(numbers.integers(1, 4)))
        else:
            if numbers.random() < 0.5:
                writer = writer_at(folder, keep_bases=1 + seed % 3)
            model.apply(random_change(numbers, float(step)))
            begin(writer, model, moment=float(step))
            states = {0: model.copy()}
        for at, follower in enumerate(followers):
            if numbers.random() < (1.0, 0.3, 0.1)[at]:
                follower.follow()
                assert follower.model == model
        if step % 10 == 0:
            for number in StreamReader(folder).bases():
                assert model_of(StreamReader(folder).base(number)) == states[number]

    assert read_from(folder) == model
    found = verify_stream(folder)
    assert (found.problems, found.bases) == ([], len(found.head.bases))
    assert sum(follower.begins for follower in followers) > 0
    assert not leftovers(folder)
