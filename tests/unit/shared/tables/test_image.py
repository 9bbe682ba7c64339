"""An image has the rows of the moment at which it was taken, whatever happens meanwhile."""

from typing import Any, cast

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from paramfleet_shared.errors.tables import TableMemoryError
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

DIM = 3

Rows = dict[int, bytes]


def shard(storage: str = "float32", **limits: Any) -> SparseShard:
    spec = TableSpec(
        name="rows",
        kind="sparse",
        dim=DIM,
        optimizer=OptimizerSpec(rule="adagrad"),
        num_shards=1,
        storage=cast("Any", storage),
        rounding="stochastic" if storage != "float32" else "nearest",
    )
    return SparseShard(spec, max_rows=10_000, **limits)


def by_id(exported: tuple[NDArray[Any], ...]) -> Rows:
    ids, values, states = exported
    return {
        int(id_): values[place].tobytes() + states[place].tobytes()
        for place, id_ in enumerate(ids)
    }


def act(rows: SparseShard, deed: tuple[str, list[int], int]) -> None:
    kind, ids, seed = deed
    wanted = np.array(ids, np.int64)
    numbers = np.random.default_rng(seed).normal(size=(len(ids), DIM)).astype(np.float32)
    match kind:
        case "push":
            rows.push(wanted, numbers, lr=0.1, step=1)
        case "push_unique":
            once, first = np.unique(wanted, return_index=True)
            rows.push(once, numbers[first], lr=0.1, step=1, unique=True)
        case "assign":
            rows.assign(wanted, numbers, np.abs(numbers))
        case "write":
            rows.write(wanted, numbers)
        case "pull":
            rows.pull(wanted, numbers, create=True)
        case "create":
            rows.create(wanted)
        case "remove":
            rows.release(rows.remove(wanted))
        case "hold":
            rows.remove(wanted)  # its places aren't released as yet
        case "free":
            places = rows.places()
            gone = np.flatnonzero(~places.is_live)
            rows.release(np.setdiff1d(gone, places.free))
        case _:
            raise AssertionError(kind)


KINDS = ["push", "push", "push_unique", "assign", "write", "pull", "create"]
KINDS += ["remove", "hold", "free"]
IDS = st.lists(st.integers(0, 30), max_size=12)
DEEDS = st.lists(st.tuples(st.sampled_from(KINDS), IDS, st.integers(0, 99)), max_size=8)


@given(
    storage=st.sampled_from(["float32", "float16", "bfloat16"]),
    before=DEEDS,
    meanwhile=st.lists(DEEDS, min_size=1, max_size=8),
    count=st.integers(1, 20),
)
@settings(max_examples=300)
def test_an_image_has_the_rows_and_places_of_its_moment(
    storage: str, before: list[Any], meanwhile: list[list[Any]], count: int
) -> None:
    rows, same = shard(storage), shard(storage)
    for deed in before:
        act(rows, deed)
        act(same, deed)
    expected, places = by_id(rows.export(0, rows.num_slots)), rows.places()

    image, found, start = rows.image(), Rows(), 0
    counts = image.counts
    np.testing.assert_array_equal(counts.free, places.free)
    assert (counts.num_turns, counts.num_pushes) == (places.num_turns, places.num_pushes)
    ids, is_live = [np.zeros(0, np.int64)], [np.zeros(0, np.bool_)]
    while start < image.num_places:
        for deed in meanwhile.pop() if len(meanwhile) > 1 else []:
            act(rows, deed)
            act(same, deed)
        some_ids, some_live = rows.image_places(image, start, count)
        ids.append(some_ids)
        is_live.append(some_live)
        start += count
    np.testing.assert_array_equal(np.concatenate(ids), places.ids)
    np.testing.assert_array_equal(np.concatenate(is_live), places.is_live)

    start = 0
    for deeds in meanwhile:
        for deed in deeds:
            act(rows, deed)
            act(same, deed)
        found |= by_id(rows.read_image(image, start, count))
        start = min(start + count, image.num_places)
    found |= by_id(rows.read_image(image, start, image.num_places - start))
    rows.end_image(image)

    assert found == expected
    assert by_id(rows.export(0, rows.num_slots)) == by_id(same.export(0, same.num_slots))


def test_two_images_have_the_rows_of_their_own_moments() -> None:
    rows = shard()
    act(rows, ("push", [*range(9)], 1))
    first, of_first = rows.image(), by_id(rows.export(0, 99))
    act(rows, ("push", [3, 4, 5, 20], 2))
    second, of_second = rows.image(), by_id(rows.export(0, 99))
    act(rows, ("remove", [*range(7)], 3))

    assert by_id(rows.read_image(second, 0, 99)) == of_second
    assert by_id(rows.read_image(first, 0, 99)) == of_first


def test_an_image_knows_nothing_of_those_that_ended_before() -> None:
    rows = shard()
    chance = np.random.default_rng(5)
    kinds = ["push", "create", "remove", "assign"]
    for round_ in range(12):
        image, expected = rows.image(), by_id(rows.export(0, rows.num_slots))
        for seed in range(6):
            ids = chance.integers(0, 40 + 10 * round_, 12).tolist()
            act(rows, (kinds[int(chance.integers(4))], ids, seed))

        if round_ % 3:  # else it is given up half read
            assert by_id(rows.read_image(image, 0, image.num_places)) == expected
        else:
            rows.read_image(image, 0, image.num_places // 2)
        rows.end_image(image)
        rows.end_image(image)


def test_rows_are_put_aside_once_and_only_while_they_are_not_read() -> None:
    rows = shard()
    act(rows, ("create", [*range(100)], 1))
    image = rows.image()
    rows.read_image(image, 0, 50)

    for seed in range(3):
        act(rows, ("push", [*range(40, 60)], seed))
    assert image.num_kept == 10

    rows.end_image(image)
    act(rows, ("push", [*range(100)], 1))
    assert image.num_kept == 10


def test_an_image_without_memory_is_given_up_and_training_goes_on() -> None:
    allowed = [1 << 40]

    def check(arithmetic: str, num_bytes: int) -> None:
        if num_bytes > allowed[0]:
            raise TableMemoryError(
                table="rows",
                arithmetic=arithmetic,
                num_bytes=num_bytes,
                free=0,
                total=0,
                kept=0,
            )

    rows, same = shard(check_memory=check), shard()
    for each in (rows, same):
        act(each, ("create", [*range(100)], 1))
    image = rows.image()
    allowed[0] = 0

    for each in (rows, same):
        act(each, ("push", [3, 4], 1))

    with pytest.raises(TableMemoryError):
        rows.read_image(image, 0, 100)
    with pytest.raises(TableMemoryError):
        rows.image_places(image, 0, 100)
    assert by_id(rows.export(0, 100)) == by_id(same.export(0, 100))
