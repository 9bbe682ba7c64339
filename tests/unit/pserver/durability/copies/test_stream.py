"""What is kept for followers is bounded, and in order."""

import hypothesis.strategies as st
from hypothesis import given, settings

from paramfleet_pserver.durability.copies.stream import CommandStream


def test_nothing_is_kept_while_nobody_follows() -> None:
    stream = CommandStream(position=3)

    assert stream.append(b"abc") == 4
    assert stream.num_bytes == 0
    assert stream.has(4)
    assert not stream.has(3)


def test_a_follower_gets_what_is_behind_its_position() -> None:
    stream = CommandStream(position=3)
    stream.begin()
    for body in (b"a", b"bb", b"ccc"):
        stream.append(body)

    assert stream.after(3, most_bytes=100, most=9) == [b"a", b"bb", b"ccc"]
    assert stream.after(4, most_bytes=2, most=9) == [b"bb"]
    assert stream.after(4, most_bytes=0, most=9) == [b"bb"]
    assert stream.after(3, most_bytes=100, most=2) == [b"a", b"bb"]
    assert stream.after(6, most_bytes=100, most=9) == []
    assert stream.lag_bytes(4) == 5
    stream.release(5)
    assert stream.num_bytes == 3
    assert not stream.has(4)


def test_who_lags_by_more_than_is_kept_is_left_behind() -> None:
    stream = CommandStream(limit_bytes=10)
    stream.begin()
    for _ in range(5):
        stream.append(b"1234")

    assert stream.num_bytes == 8
    assert not stream.has(2)
    assert stream.has(3)


def test_nobody_goes_on_over_what_cannot_be_sent() -> None:
    stream = CommandStream()
    stream.begin()
    stream.append(b"a")

    assert stream.skip() == 2
    assert not stream.has(1)
    assert stream.has(2)
    stream.append(b"b")
    assert stream.after(2, most_bytes=9, most=9) == [b"b"]


@given(
    acts=st.lists(st.tuples(st.sampled_from("arse"), st.integers(0, 40)), max_size=4000),
    limit=st.integers(1, 200),
)
@settings(max_examples=60)
def test_it_is_as_a_list_would_be(*, acts: list[tuple[str, int]], limit: int) -> None:
    stream, kept, position = CommandStream(limit_bytes=limit), dict[int, bytes](), 0
    stream.begin()
    for what, num in acts * 3:
        if what == "a":
            position += 1
            kept[position] = bytes([position % 256]) * num
            assert stream.append(kept[position]) == position
            while sum(map(len, kept.values())) > limit:
                del kept[min(kept)]
        elif what == "r":
            at = position - num
            stream.release(at)
            kept = {key: body for key, body in kept.items() if key > at}
        elif what == "s" and num < 3:
            position += 1
            kept.clear()
            assert stream.skip() == position
        first = min(kept, default=position + 1)
        assert stream.first == first
        assert stream.num_bytes == sum(map(len, kept.values()))
        at = max(first - 1, position - num)
        assert stream.has(at)
        assert stream.after(at, most_bytes=1 << 20, most=5) == [
            kept[key] for key in range(at + 1, min(position, at + 5) + 1)
        ]
        assert stream.lag_bytes(at) == sum(len(kept[key]) for key in kept if key > at)
