"""Images of what waits for workers have the moment at which they were taken."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from paramfleet_pserver.core.geo.aside import Aside
from paramfleet_pserver.core.geo.recorder import GeoRecorder, RecorderImage
from paramfleet_pserver.core.geo.sharers import Sharers, SharersImage
from paramfleet_shared.errors.tables import TableMemoryError
from paramfleet_shared.values.ids import Rank, Step

NUM_WORKERS = 3

Deed = tuple[str, int, list[int], int]


def of_recorder(image: RecorderImage) -> list[Any]:
    """Return all that an image has, a few rows at a time."""
    found: list[Any] = [image.last_batch]
    for index, (rank, batch, queue, sent) in enumerate(image.queued):
        read = [image.read(index, slice(at, at + 3)) for at in range(0, len(queue), 3)]
        rows = [part.tolist() for pair in read for part in pair]
        found.append((rank, batch, rows, sent))
    return found


def of_sharers(image: SharersImage) -> list[Any]:
    """Return all that an image has: of a thousand rows, some dozens at a time."""
    found: list[Any] = [image.is_used]
    for index, (rank, counts, num_rows) in enumerate(image.counting):
        read = [image.read(index, slice(at, at + 97)) for at in range(0, num_rows, 97)]
        found.append((rank, counts, [part.tolist() for pair in read for part in pair]))
    return found


def act(recorder: GeoRecorder, sharers: Sharers, deed: Deed) -> None:
    kind, number, ids, batch = deed
    rank, rows = Rank(number), np.unique(np.array(ids, np.int64))
    match kind:
        case "record":
            recorder.record(rows, writer=rank)
            sharers.count(rows, writer=rank, step=Step(batch))
            sharers.note(rows, writer=rank)
        case "announce":
            recorder.announce(rank, rows)
        case "take":
            recorder.take(rank, max_rows=max(1, batch))
        case "acknowledge":
            recorder.acknowledge(rank, batch)
        case "remove":
            recorder.record(rows, writer=None)
            sharers.forget(rows)
        case "leave":
            recorder.leave(rank)
            sharers.leave(rank)
        case _:
            recorder.join(rank)
            sharers.join(rank)


KINDS = ["record"] * 4 + ["take", "acknowledge"] * 3 + ["announce", "remove", "leave", "join"]
DEEDS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, NUM_WORKERS - 1),
        st.lists(st.integers(0, 40) | st.integers(1000, 1100), max_size=12),
        st.integers(0, 5),
    ),
    max_size=12,
)


@given(before=DEEDS, between=DEEDS, after=DEEDS)
@settings(max_examples=300)
def test_an_image_has_what_waited_and_what_was_counted(
    before: list[Deed], between: list[Deed], after: list[Deed]
) -> None:
    recorder, sharers = GeoRecorder(num_workers=NUM_WORKERS), Sharers()
    for rank in range(NUM_WORKERS):
        sharers.join(Rank(rank))
    images, expected = [], []
    for deeds in (before, between, after):
        for deed in deeds:
            act(recorder, sharers, deed)
        images.append((recorder.image(None), sharers.image(None)))
        expected.append((of_recorder(images[-1][0]), of_sharers(images[-1][1])))
        if len(images) == 2:  # a second image of a moment ends, and the first one stays
            recorder.end_image(images[-1][0])
            sharers.end_image(images[-1][1])
            images.pop()
            expected.pop()

    for image, of in zip(images, expected, strict=True):
        assert (of_recorder(image[0]), of_sharers(image[1])) == of


def test_a_queue_that_moves_to_its_beginning_stays_as_it_was_in_an_image() -> None:
    recorder = GeoRecorder(num_workers=1)
    recorder.record(np.arange(100), writer=None)
    image = recorder.image(None)
    expected = of_recorder(image)

    for start in range(100, 3000, 100):
        recorder.record(np.arange(start, start + 100), writer=None)
        reply = recorder.take(Rank(0), max_rows=100)
        recorder.acknowledge(Rank(0), reply.batch)

    assert recorder.num_waiting(Rank(0)) == 100
    assert of_recorder(image) == expected


@pytest.mark.parametrize("num_places", [1, 1000, 10_000])
def test_columns_are_read_as_they_were(num_places: int) -> None:
    dice = np.random.default_rng(num_places)
    columns = [
        dice.integers(0, 99, size, dtype=np.uint32) for size in (num_places, num_places // 2)
    ]
    former = [column.copy() for column in columns]
    aside = Aside(columns, None)
    every = np.arange(num_places)

    for _ in range(20):
        places = dice.integers(0, num_places + 50, 300)
        aside.keep(places)
        for column in columns:
            column[places[places < len(column)]] = 7

    for index, column in enumerate(former):
        padded = np.concatenate([column, np.zeros(num_places - len(column), np.uint32)])
        np.testing.assert_array_equal(aside.read(index, every), padded)


def refuse(num_bytes: int) -> None:
    raise TableMemoryError(
        table="rows", arithmetic="", num_bytes=num_bytes, free=0, total=0, kept=0
    )


def test_without_memory_the_image_fails_and_the_recorder_goes_on() -> None:
    recorder, same = GeoRecorder(num_workers=2), GeoRecorder(num_workers=2)
    for each in (recorder, same):
        each.record(np.arange(5000), writer=None)
        each.take(Rank(1), max_rows=100)
    image = recorder.image(refuse)

    for each in (recorder, same):
        each.record(np.arange(50), writer=Rank(0))

    with pytest.raises(TableMemoryError):
        image.read(0, slice(0, 5000))
    assert of_recorder(recorder.image(None)) == of_recorder(same.image(None))
