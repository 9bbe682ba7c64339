"""What can be wrong with an exported model, or with what is asked of it."""

from paramfleet_shared.errors import ContractError, IntegrityError

__all__ = ["ExportDamagedError", "ExportError", "ExportMismatchError", "UnknownRowError"]


class ExportError(ContractError):
    """A folder is no export that this version can read."""

    code = "contract.export"
    path: str
    rule: str
    sentence = "{path}: {rule}"


class ExportDamagedError(IntegrityError):
    """A file of an export is not what was saved."""

    code = "integrity.export_damaged"
    path: str
    reason: str
    sentence = "{path}: {reason}; export the model again"


class ExportMismatchError(ContractError):
    """The model that was given isn't the one that was exported; it was not changed."""

    code = "contract.export_mismatch"
    path: str
    rule: str
    sentence = "{path}: {rule}: give the model that was trained"


class UnknownRowError(ContractError):
    """What ids without a row shall read is described wrongly."""

    code = "contract.unknown_row"
    table: str
    rule: str
    sentence = "unknown, table {table!r}: {rule}"
