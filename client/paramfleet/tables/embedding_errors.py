"""What can be wrong with an embedding or with its ids, in training and in serving."""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors import ContractError

__all__ = [
    "EmbeddingOptionError",
    "IdError",
    "UntraceableError",
    "id_type_error",
    "negative_id_error",
]


class IdError(ContractError):
    """A tensor of ids has a wrong dtype, or negative ids that are not accepted."""

    code = "contract.id"
    table: str
    found: str
    rule: str
    sentence = "table {table!r}: {found}: {rule}"


class UntraceableError(ContractError):
    """Rows were to be looked up where ids have no values: while a model is traced or mapped."""

    code = "contract.untraceable"
    table: str
    where: str
    sentence = (
        "table {table!r}: rows can't be looked up in {where}, where ids have no values: look "
        "them up before, and pass them in; export a trained model with fleet.serving"
    )


def id_type_error(table: str, dtype: str) -> IdError:
    """Return what says that ids have a type that isn't an id's.

    Args:
        table: The table's name.
        dtype: The type's, of torch or numpy.
    """
    rule = "ids must be int64 or int32"
    if dtype.endswith("uint64"):
        rule += (
            "; convert uint64 with view(torch.int64), which keeps the bits, and make the "
            "module with negative_ids=True"
        )
    return IdError(table=table, found=f"dtype {dtype}", rule=rule)


def negative_id_error(
    table: str, ids: NDArray[np.int64], negative: NDArray[np.bool_]
) -> IdError:
    """Return what says that negative ids came where none are expected.

    Args:
        table: The table's name.
        ids: int64 [n], those of a call.
        negative: bool [n], which of them must not be there; one at least.
    """
    first = int(np.argmax(negative))
    return IdError(
        table=table,
        found=f"{negative.sum()} negative ids, the first {ids[first]} at position {first}",
        rule="ids must be >= 0; for padding, set padding_idx to that id; for hashes of 64 "
        "bits, make the module with negative_ids=True",
    )


class EmbeddingOptionError(ContractError):
    """Sparse tables do not support an option of an embedding, or its value."""

    code = "contract.embedding_option"
    option: str
    value: str
    rule: str
    sentence = "{option}={value}: {rule}"
