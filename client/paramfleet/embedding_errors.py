"""What can be wrong with an embedding or with its ids, in training and in serving."""

from paramfleet_shared.errors import ContractError

__all__ = ["EmbeddingOptionError", "IdError"]


class IdError(ContractError):
    """An id tensor holds what can't be an id."""

    code = "contract.id"

    def __init__(self, *, table: str, found: str, rule: str) -> None:
        super().__init__(
            f"table {table!r}: {found}: {rule}", table=table, found=found, rule=rule
        )


class EmbeddingOptionError(ContractError):
    """An embedding was asked for something that a sparse table doesn't do."""

    code = "contract.embedding_option"

    def __init__(self, *, option: str, value: str, rule: str) -> None:
        super().__init__(f"{option}={value}: {rule}", option=option, value=value, rule=rule)
