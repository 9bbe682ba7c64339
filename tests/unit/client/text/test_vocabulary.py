"""The words of a text are those that a plain reader finds, in the same order everywhere."""

import gzip
import itertools
import lzma
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramfleet.data.reading.files import CannotReadFileError, DamagedFileError
from paramfleet.text.pieces import PIECE_BYTES, Tokens, read_pieces
from paramfleet.text.vocabulary import Vocabulary, VocabularyError

PATTERNS: dict[Tokens, re.Pattern[bytes]] = {
    "letters": re.compile(rb"[a-z]+"),
    "blanks": re.compile(rb"[^\x00-\x20]+"),
}

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
}


def plain_words(text: bytes, tokens: Tokens) -> list[bytes]:
    return PATTERNS[tokens].findall(text.lower() if tokens == "letters" else text)


def long_text(size: int = 200_000) -> bytes:
    random = np.random.default_rng(3)
    words = [
        bytes(random.integers(97, 123, random.integers(1, 9)).tolist()) for _ in range(9000)
    ]
    drawn = random.integers(0, len(words), size // 5) * random.random(size // 5)
    return b" ".join(words[int(each)] for each in drawn)


@settings(max_examples=60)
@given(st.binary(max_size=300), st.sampled_from(["letters", "blanks"]))
def test_words_are_counted_and_numbered_as_a_plain_reader_does(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, tokens: Tokens
) -> None:
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(text)
    words = plain_words(text, tokens)
    expected = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    if not expected:
        with pytest.raises(VocabularyError):
            Vocabulary.build([path], min_count=1, tokens=tokens)
        return

    known = Vocabulary.build([path], min_count=1, tokens=tokens)
    known.save(path)
    known = Vocabulary.load(path, tokens=tokens)

    assert known.counts.tolist() == [count for _, count in expected]
    order = {word: number for number, (word, _) in enumerate(expected)}
    assert known.numbers(text).tolist() == [order[word] for word in words]


def test_a_vocabulary_grows_and_pieces_cut_no_word(tmp_path: Path) -> None:
    text = long_text()
    (tmp_path / "text").write_bytes(text)
    counts = Counter(plain_words(text, "letters"))

    known = Vocabulary.build([tmp_path / "text"], min_count=3)

    assert len(text) > 2 * PIECE_BYTES
    assert len(known) == sum(count >= 3 for count in counts.values()) > 2100
    assert all(
        counts[word.encode()] == n for word, n in zip(known.words, known.counts, strict=True)
    )
    assert known.num_occurrences == sum(n for n in counts.values() if n >= 3)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_files_of_each_kind_are_read_in_pieces(tmp_path: Path, suffix: str) -> None:
    text = long_text(150_000)
    names = [str(tmp_path / f"{name}{suffix}") for name in ("a", "b")]
    for name in names:
        Path(name).write_bytes(PACK[suffix](text))

    pieces = list(read_pieces(names, "letters"))

    assert len(pieces) > 4
    assert b"".join(pieces) == text + text
    words = [plain_words(piece, "letters") for piece in pieces]
    assert list(itertools.chain.from_iterable(words)) == 2 * plain_words(text, "letters")


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_file_that_is_cut_off_is_damaged(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text{suffix}"
    path.write_bytes(PACK[suffix](long_text(9000))[:-40])

    with pytest.raises(DamagedFileError, match=re.escape(path.name)):
        Vocabulary.build([path])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotReadFileError, match="nothing"):
        Vocabulary.build([tmp_path / "nothing"])


def test_a_saved_vocabulary_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("the cat the dog a cat the end", encoding="utf-8")
    made = Vocabulary.build([tmp_path / "text"], min_count=2)

    made.save(tmp_path / "words")
    read = Vocabulary.load(tmp_path / "words")

    assert (tmp_path / "words").read_text(encoding="utf-8") == "the 3\ncat 2\n"
    assert (read.words, read.counts.tolist()) == (["the", "cat"], [3, 2])
    assert read.numbers(b"The dog, the Cat.").tolist() == [0, 0, 1]


@pytest.mark.parametrize("lines", ["", "the\n", "the 3 4\n", "the 3\nthe 2\n", "the -1\n"])
def test_what_is_no_vocabulary_is_refused(tmp_path: Path, lines: str) -> None:
    (tmp_path / "words").write_text(lines, encoding="utf-8")

    with pytest.raises(VocabularyError):
        Vocabulary.load(tmp_path / "words")
    with pytest.raises(VocabularyError, match="read"):
        Vocabulary.load(tmp_path / "nothing")
