"""``fleet.text``: text as batches of skip-gram, and how good the words' vectors are.

What is named here is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paramfleet.text.evaluation import (
        Pair,
        Question,
        WordVectors,
        read_pairs,
        read_questions,
    )
    from paramfleet.text.skip_gram import SkipGramBatch, SkipGramSettings, SkipGramText
    from paramfleet.text.vocabulary import Vocabulary, VocabularyError

__all__ = [
    "Pair",
    "Question",
    "SkipGramBatch",
    "SkipGramSettings",
    "SkipGramText",
    "Vocabulary",
    "VocabularyError",
    "WordVectors",
    "read_pairs",
    "read_questions",
]

_MODULE_OF = {
    "Pair": "evaluation",
    "Question": "evaluation",
    "SkipGramBatch": "skip_gram",
    "SkipGramSettings": "skip_gram",
    "SkipGramText": "skip_gram",
    "Vocabulary": "vocabulary",
    "VocabularyError": "vocabulary",
    "WordVectors": "evaluation",
    "read_pairs": "evaluation",
    "read_questions": "evaluation",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for.

    Raises:
        AttributeError: if there is nothing of this name.
    """
    if name not in _MODULE_OF:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
