"""Errors state their facts and their sentence once."""

from typing import Any

import pytest
from typing_extensions import override

from paramfleet_shared.errors import (
    ContractError,
    UnavailableError,
    error_from_wire,
    error_to_wire,
)


class ShelfError(ContractError):
    """A leaf class of this test."""

    code = "contract.test_shelf"
    shelf: str
    height: int
    remedy: str = "take another"
    sentence = "shelf {shelf!r} is {height:,} cm high: {remedy}"


class BooksError(UnavailableError):
    """Another, whose sentence needs more than its facts."""

    code = "unavailable.test_books"
    books: list[str]

    @override
    def describe(self) -> str:
        return f"{len(self.books)} books: {', '.join(self.books)}"


def test_facts_are_attributes_and_stand_in_the_sentence() -> None:
    error = ShelfError(shelf="a", height=1200)

    assert str(error) == "shelf 'a' is 1,200 cm high: take another"
    assert (error.shelf, error.height, error.remedy) == ("a", 1200, "take another")
    assert error.facts == {"shelf": "a", "height": 1200, "remedy": "take another"}


@pytest.mark.parametrize(
    "error", [ShelfError(shelf="a", height=3, remedy="none"), BooksError(books=["x", "y"])]
)
def test_an_error_is_built_again_at_the_other_end(error: ContractError) -> None:
    again = error_from_wire(error_to_wire(error))

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.facts == error.facts
    assert again.remote


@pytest.mark.parametrize("facts", [{}, {"shelf": "a"}, {"shelf": "a", "height": 1, "depth": 2}])
def test_facts_that_are_not_those_of_the_class_are_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="ShelfError takes shelf, height, remedy by keyword"):
        ShelfError(**facts)


def test_a_sentence_names_only_facts_of_its_class() -> None:
    with pytest.raises(TypeError, match=r"no such facts: \['widht'\]"):

        class WidthError(ContractError):
            code = "contract.test_width"
            width: int
            sentence = "too wide: {widht}"
