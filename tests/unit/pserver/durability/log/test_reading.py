"""What a segment's bytes say, whatever has become of them."""

import random
import zlib
from dataclasses import replace

import pytest
from tests.unit.pserver.durability.log.segments import SALT, read, segment

from paramfleet_pserver.durability.log.core.layout import (
    BATCH_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    BatchHeader,
    HeaderError,
    SegmentHeader,
)
from paramfleet_pserver.durability.log.core.reading import end_of
from paramfleet_shared.settings.config import read_environment

GROUPS = [[b"one", b"two"], [b"", b"four" * 9], [b"five"], [b"six" * 5, b"7"]]
COMMANDS = [command for group in GROUPS for command in group]
SYNCED = [0, 2, 2, 5]
WHOLE = segment(GROUPS, synced=SYNCED, published=2)
CASES = int(read_environment().get("LOG_FUZZ_CASES", "10000"))


def outcome(content: bytes) -> list[bytes] | None:
    """Return the commands of a log of one segment; None if it is damaged."""
    try:
        header = SegmentHeader.of(content)
    except HeaderError:
        return None
    found, end = read(content), end_of(content, header)
    assert end.stop == found.stop
    return None if end.stop.position <= end.synced else found.commands


def check(content: bytes) -> list[bytes] | None:
    """Return what bytes hold that are damaged somehow: never another command."""
    found = outcome(content)
    if found is not None:
        assert found == COMMANDS[: len(found)]
        assert len(found) >= 2, "published"
    return found


def test_a_whole_segment_is_read_to_its_end() -> None:
    found = read(WHOLE)

    assert found.commands == COMMANDS
    assert (found.stop.position, found.stop.reason, found.synced) == (8, "", 5)
    assert not any(WHOLE[found.stop.offset :])


def test_each_byte_may_be_another_and_no_command_is() -> None:
    for offset in range(len(WHOLE)):
        for flip in (1, 0x80, 0xFF):
            damaged = bytearray(WHOLE)
            damaged[offset] ^= flip
            check(bytes(damaged))


def test_each_prefix_holds_a_prefix_of_the_commands() -> None:
    lengths = []
    for length in range(len(WHOLE)):
        found = check(WHOLE[:length])
        lengths.append(None if found is None else len(found))

    whole = [each for each in lengths if each is not None]
    assert whole == sorted(whole)
    assert set(whole) == {2, 4, 5, 7}
    assert lengths[: len(lengths) - len(whole)] == [None] * (len(lengths) - len(whole))


def test_damage_behind_the_last_known_sync_is_a_torn_tail() -> None:
    damaged = bytearray(WHOLE)
    damaged[WHOLE.index(b"six")] ^= 1

    found = read(bytes(damaged))

    assert outcome(bytes(damaged)) == COMMANDS[:5]
    assert found.stop.position == 6
    assert found.stop.reason == "the checksum of the batch's commands is wrong"


@pytest.mark.parametrize("command", [b"one", b"four", b"five"])
def test_damage_before_the_last_known_sync_is_damage(command: bytes) -> None:
    damaged = bytearray(WHOLE)
    damaged[WHOLE.index(command)] ^= 1

    assert outcome(bytes(damaged)) is None


def test_a_batch_that_was_never_synced_does_not_confirm_those_before_it() -> None:
    content = bytearray(segment(GROUPS, synced=[0, 2, 2, 2], published=2))
    content[content.index(b"five")] ^= 1

    assert outcome(bytes(content)) == COMMANDS[:4]


def test_what_a_header_confirms_must_be_there_even_if_only_zeros_follow() -> None:
    content = segment(GROUPS[:1], synced=[0], published=3)

    assert read(content).stop.reason == ""
    assert outcome(content) is None


def test_bytes_in_a_command_do_not_pass_for_a_header() -> None:
    batch = BatchHeader(
        num_bytes=0, checksum=0, count=1, term=9, first=99, synced=98, salt=SALT ^ 1
    ).to_bytes()
    content = bytearray(segment([[b"x"], [batch]], synced=[0, 0]))
    content[content.index(batch[:8]) - 20] ^= 1  # the batch that the command is in

    assert outcome(bytes(content)) == [b"x"]


def rewritten(**changes: int) -> bytes:
    """Return a segment of one batch whose header says something else, with a right checksum."""
    content = segment([[b"abc"]], synced=[0])
    header = replace(BatchHeader.at(content, SEGMENT_HEADER_BYTES), **changes).to_bytes()
    rest = content[SEGMENT_HEADER_BYTES + BATCH_HEADER_BYTES :]
    return content[:SEGMENT_HEADER_BYTES] + header + rest


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"salt": 1}, "the batch is of another segment"),
        ({"first": 2}, "the batch begins at position 2"),
        ({"term": 2}, "the batch is of term 2, after one of 3"),
        ({"synced": 1}, "the batch says that it was synced before it was written"),
        ({"num_bytes": 1 << 60}, f"the batch has {1 << 60} bytes, and 56 follow"),
        ({"num_bytes": 15}, "the batch has 15 bytes, and 56 follow"),
        ({"count": 0}, "the batch has 0 commands in 16 bytes"),
        ({"count": (1 << 32) - 1}, f"the batch has {(1 << 32) - 1} commands in 16 bytes"),
        ({"checksum": 1}, "the checksum of the batch's commands is wrong"),
    ],
)
def test_a_batch_that_does_not_belong_where_it_is_ends_the_log(
    changes: dict[str, int], reason: str
) -> None:
    found = read(rewritten(**changes))

    assert found.commands == []
    assert (found.stop.offset, found.stop.reason) == (SEGMENT_HEADER_BYTES, reason)


def test_lengths_that_do_not_add_up_end_the_log() -> None:
    content = bytearray(segment([[b"abc"]], synced=[0]))
    begin = SEGMENT_HEADER_BYTES + BATCH_HEADER_BYTES
    content[begin] = 200
    checksum = zlib.crc32(content[begin : begin + 16])
    header = replace(BatchHeader.at(bytes(content), SEGMENT_HEADER_BYTES), checksum=checksum)
    content[SEGMENT_HEADER_BYTES:begin] = header.to_bytes()

    assert "don't add up" in read(bytes(content)).stop.reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "ends after 0 bytes"),
        (bytes(600), "doesn't begin as a segment"),
        (WHOLE[:8] + b"\x02" + WHOLE[9:], "version is 2, and this program knows 1"),
        (WHOLE[:30] + b"\x02" + WHOLE[31:], "checksum of the segment's header"),
    ],
)
def test_what_is_no_segment_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(HeaderError, match=reason):
        SegmentHeader.of(content)


def test_a_header_whose_numbers_contradict_each_other_is_refused() -> None:
    header = SegmentHeader(job="j", number=1, term=1, first=5, published=3, salt=0)

    with pytest.raises(HeaderError, match="contradict"):
        SegmentHeader.of(header.to_bytes())


def damaged_by(rng: random.Random) -> bytes:
    """Return the segment with a few damages of any kind."""
    content = bytearray(WHOLE)
    for _ in range(rng.randint(1, 4)):
        begin = rng.randrange(len(content) or 1)
        end = min(len(content), begin + rng.choice([1, 4, 8, 64, 200]))
        match rng.randrange(5):
            case 0:
                content[begin:end] = rng.randbytes(end - begin)
            case 1:
                content[begin:end] = bytes(end - begin)
            case 2:
                del content[begin:end]
            case 3:
                source = rng.randrange(len(WHOLE))
                content[begin:end] = WHOLE[source : source + end - begin]
            case _:
                del content[begin:]
        if not content:
            break
    return bytes(content)


def test_no_damage_makes_another_command() -> None:
    rng = random.Random(7)
    kinds = set()
    for _ in range(CASES):
        found = outcome(damaged_by(rng))
        if found is not None:
            assert found == COMMANDS[: len(found)]
        kinds.add(None if found is None else len(found))

    assert {None, 2, 4, 5, 7} <= kinds
