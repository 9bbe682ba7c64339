"""Header blocks mean the same with the memo as without."""

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hypothesis import given, settings
from hypothesis import strategies as st

from paramfleet_shared.net.http2.headers import hpack_memo
from paramfleet_shared.net.http2.headers.hpack_memo import MemoDecoder, StaticEncoder

names = st.sampled_from(
    [b":method", b":path", b":status", b"content-length", b"x-odd", b"a" * 200]
)
values = st.sampled_from([b"GET", b"POST", b"/", b"200", b"204", b"", b"17"]) | st.binary(
    max_size=300
)
blocks = st.lists(st.lists(st.tuples(names, values), max_size=6), min_size=1, max_size=6)


def pairs(headers: object) -> list[tuple[bytes, bytes]]:
    assert isinstance(headers, list | tuple)
    return [(bytes(name), bytes(value)) for name, value in headers]


def decoded_or_error(decoder: Decoder, block: bytes) -> object:
    try:
        return pairs(list(decoder.decode(block, raw=True)))
    except HPACKError as error:
        return type(error)


@given(blocks)
def test_our_blocks_are_read_by_hpack_and_by_us(many: list[list[tuple[bytes, bytes]]]) -> None:
    ours, plain, memo = StaticEncoder(), Decoder(), MemoDecoder()

    for headers in many + many:
        block = ours.encode(headers)
        assert pairs(list(plain.decode(block, raw=True))) == headers
        assert pairs(memo.decode(block, raw=True)) == headers


@given(blocks, st.booleans())
def test_blocks_of_hpack_with_its_dynamic_table_are_read_by_us(
    many: list[list[tuple[bytes, bytes]]], huffman: bool
) -> None:
    plain, memo = Encoder(), MemoDecoder()

    for headers in many + many:
        assert pairs(memo.decode(plain.encode(headers, huffman), raw=True)) == headers


@given(st.lists(st.binary(max_size=40), max_size=5))
@settings(max_examples=300)
def test_noise_is_read_as_hpack_reads_it(noise: list[bytes]) -> None:
    plain, memo = Decoder(), MemoDecoder()

    for block in noise:
        expected = decoded_or_error(plain, block)
        assert decoded_or_error(memo, block) == expected
        if isinstance(expected, type):
            return


def test_equal_blocks_are_answered_from_memory() -> None:
    memo, block = MemoDecoder(), StaticEncoder().encode([(b":path", b"/v1/pull")])

    assert memo.decode(block) is memo.decode(block)
    assert MemoDecoder().decode(block) is memo.decode(block)  # another connection's


def test_a_block_of_the_dynamic_table_is_forgotten_when_the_table_changes() -> None:
    plain, memo = Encoder(), MemoDecoder()
    first = [(b"x-a", b"1")]
    memo.decode(plain.encode(first), raw=True)
    indexed = plain.encode(first)
    assert pairs(memo.decode(indexed, raw=True)) == first

    memo.decode(plain.encode([(b"x-b", b"2")]), raw=True)  # what index 62 was is now 63

    assert pairs(memo.decode(indexed, raw=True)) == [(b"x-b", b"2")]


def test_long_names_and_values_are_written_as_the_rfc_counts_them() -> None:
    headers = [(b"n" * 126, b"v" * 127), (b"n" * 254, b"v" * 255), (b"n", b"v" * 40_000)]

    assert pairs(list(Decoder().decode(StaticEncoder().encode(headers), raw=True))) == headers


def test_headers_over_the_limit_are_refused() -> None:
    memo = MemoDecoder()
    memo.max_header_list_size = 100

    with pytest.raises(HPACKError):
        memo.decode(StaticEncoder().encode([(b"x", b"y" * 90)]))


def test_a_table_that_must_shrink_first_is_left_to_hpack() -> None:
    memo = MemoDecoder()
    memo.max_allowed_table_size = 0

    with pytest.raises(HPACKError):
        memo.decode(StaticEncoder().encode([(b":path", b"/")]))


def test_a_new_table_size_of_the_peer_is_answered_with_none() -> None:
    ours, plain = StaticEncoder(), Decoder()
    ours.limit_table(100)

    block = ours.opened(ours.encode([(b":path", b"/")]))

    assert block[:1] == b"\x20"
    assert pairs(list(plain.decode(block, raw=True))) == [(b":path", b"/")]
    assert ours.opened(ours.encode([(b":path", b"/")]))[:1] != b"\x20"


def test_memories_stay_small() -> None:
    ours, memo = StaticEncoder(), MemoDecoder()

    for number in range(2000):
        memo.decode(ours.encode([(b"content-length", b"%d" % number)]))

    assert len(memo._memo) <= 512
    for function in (hpack_memo._encode_field, hpack_memo._known_static):
        assert function.cache_info().maxsize == 512
