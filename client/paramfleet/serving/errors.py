"""What can be wrong with an exported model, or with what is asked of it."""

from paramfleet_shared.errors import ContractError, IntegrityError

__all__ = ["ExportDamagedError", "ExportError", "ExportMismatchError", "UnknownRowError"]


class ExportError(ContractError):
    """A folder is no export that this version can read."""

    code = "contract.export"

    def __init__(self, *, path: str, rule: str) -> None:
        super().__init__(f"{path}: {rule}", path=path, rule=rule)
        self.path = path
        self.rule = rule


class ExportDamagedError(IntegrityError):
    """A file of an export is not what was saved."""

    code = "integrity.export_damaged"

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}; export the model again", path=path, reason=reason)
        self.path = path
        self.reason = reason


class ExportMismatchError(ContractError):
    """The model that was given isn't the one that was exported; it was not changed."""

    code = "contract.export_mismatch"

    def __init__(self, *, path: str, rule: str) -> None:
        super().__init__(
            f"{path}: {rule}: give the model that was trained", path=path, rule=rule
        )
        self.path = path
        self.rule = rule


class UnknownRowError(ContractError):
    """What ids without a row shall read is described wrongly."""

    code = "contract.unknown_row"

    def __init__(self, *, table: str, rule: str) -> None:
        super().__init__(f"unknown, table {table!r}: {rule}", table=table, rule=rule)
        self.table = table
        self.rule = rule
