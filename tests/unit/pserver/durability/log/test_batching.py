"""Commands that wait: each is taken once, in order, in batches of one term."""

from hypothesis import given
from hypothesis import strategies as st

from paramfleet_pserver.durability.log.core.batching import CommandQueue, WaitingBatch, gathered
from paramfleet_pserver.durability.log.core.layout import SegmentHeader
from paramfleet_pserver.durability.log.core.reading import SegmentReader

HEADER = SegmentHeader(job="job", number=1, term=0, first=1, published=0, salt=5)

commands = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.binary(max_size=30), max_size=3), st.booleans()),
    max_size=30,
)


@given(commands=commands, batch_bytes=st.integers(1, 100))
def test_what_is_appended_is_read_again(
    commands: list[tuple[int, list[bytes], bool]], batch_bytes: int
) -> None:
    queue = CommandQueue(position=0, batch_bytes=batch_bytes)
    content, term = HEADER.to_bytes(), 0
    expected: list[tuple[int, bytes]] = []
    batches: list[WaitingBatch] = []
    for steps, parts, take in commands:
        term += steps
        expected.append((term, b"".join(parts)))
        assert queue.append(term, parts) == len(expected)
        if take:
            batches += queue.take()
    batches += queue.take()
    content += b"".join(part for b in batches for part in b.written(HEADER, synced=0))

    reader = SegmentReader(content, HEADER)
    found = [(batch.header.term, bytes(c)) for batch in reader for c in batch.commands]

    assert found == expected
    assert reader.stop.reason == ""
    assert queue.waiting_bytes == sum(len(body) for _, body in expected)
    for batch in batches:
        queue.release(batch)
    assert queue.waiting_bytes == 0


def test_a_batch_takes_no_more_commands_than_fit() -> None:
    queue = CommandQueue(position=0, batch_bytes=10)
    for size in (4, 4, 4, 50, 1):
        queue.append(1, (bytes(size),))

    assert [(b.first, b.count) for b in queue.take()] == [(1, 2), (3, 1), (4, 1), (5, 1)]


def test_short_parts_are_joined_and_long_ones_are_not_copied() -> None:
    long = bytes(5000)

    parts = gathered([b"a", b"b", long, b"c", b"", b"d"])

    assert parts == [b"ab", long, b"cd"]
    assert parts[1] is long
