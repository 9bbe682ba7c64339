"""Analogies and similarity on vectors made by hand."""

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from paramfleet.text.evaluation import (
    JudgementError,
    Pair,
    Question,
    WordVectors,
    read_pairs,
    read_questions,
    spearman,
)

WORDS = ["king", "man", "woman", "queen", "paris", "france"]
VECTORS = np.array(
    [[1, 0, 1, 0], [0, 0, 1, 0], [0, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 3], [0, 0, 0.4, 1]],
    np.float32,
)
RIGHT = Question("man", "king", "woman", "queen")
WRONG = Question("man", "king", "woman", "paris")
UNKNOWN = Question("man", "king", "woman", "duchess")


def test_an_analogy_is_answered_by_the_nearest_other_word() -> None:
    vectors = WordVectors(WORDS, VECTORS)

    assert vectors.analogies([RIGHT]) == 1.0
    assert vectors.analogies([RIGHT, WRONG, UNKNOWN]) == 0.5
    assert math.isnan(vectors.analogies([UNKNOWN]))


def test_words_of_the_question_are_no_answer() -> None:
    nothing_moves = Question("man", "man", "king", "queen")  # nearest is king itself

    assert WordVectors(WORDS, VECTORS).analogies([nothing_moves]) == 1.0


def test_only_the_most_frequent_words_are_known() -> None:
    vectors = WordVectors(WORDS, VECTORS)

    assert math.isnan(vectors.analogies([RIGHT], restrict=3))
    assert vectors.analogies([RIGHT], restrict=4) == 1.0


def test_lengths_of_vectors_say_nothing() -> None:
    longer = VECTORS * np.array([[1], [9], [0.1], [4], [1], [2]], np.float32)

    assert WordVectors(WORDS, longer).analogies([RIGHT, WRONG]) == 0.5


def test_similarity_is_the_correlation_of_ranks() -> None:
    vectors = WordVectors(WORDS, VECTORS)
    pairs = [
        Pair("king", "queen", 9.0),
        Pair("king", "man", 8.0),
        Pair("king", "paris", 1.0),
        Pair("king", "duchess", 5.0),
    ]

    assert vectors.similarity(pairs) == pytest.approx(1.0)
    turned = [pair._replace(score=-pair.score) for pair in pairs]
    assert vectors.similarity(turned) == pytest.approx(-1.0)
    assert math.isnan(vectors.similarity(pairs[3:]))


def test_equal_numbers_share_their_rank() -> None:
    left, right = np.array([1.0, 2, 2, 3]), np.array([1.0, 3, 2, 4])

    # ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4: scipy.stats.spearmanr says the same
    assert spearman(left, right) == pytest.approx(0.9486832980505138)
    assert math.isnan(spearman(left, np.ones(4)))


def test_questions_and_judgements_are_read(tmp_path: Path) -> None:
    questions, pairs = tmp_path / "questions.gz", tmp_path / "pairs"
    questions.write_bytes(gzip.compress(b": family\nMan king Woman queen\n\n"))
    pairs.write_bytes("# of\u2028two\nLove\tsex\t6.77\r\nNew\xa0York\tcity\t5\n".encode())

    assert read_questions(questions) == [RIGHT]
    assert read_pairs(pairs) == [Pair("love", "sex", 6.77), Pair("new\xa0york", "city", 5)]


def test_a_line_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text(": family\nman king woman\n", encoding="utf-8")

    with pytest.raises(JudgementError, match="line 2: 3 words"):
        read_questions(path)
    with pytest.raises(JudgementError, match="line 1: must be two words"):
        read_pairs(path)
