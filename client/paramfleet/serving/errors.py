"""What can be wrong with an exported model, or with what is asked of it."""

from paramfleet_shared.errors import ContractError, IntegrityError

__all__ = ["ExportDamagedError", "ExportError", "ExportMismatchError", "UnknownRowError"]


class ExportError(ContractError):
    """A folder is not an export, or one of a format that this version cannot read."""

    code = "contract.export"
    path: str
    rule: str
    sentence = "{path}: {rule}"


class ExportDamagedError(IntegrityError):
    """A file of an export is missing, or its content is not what was exported."""

    code = "integrity.export_damaged"
    path: str
    reason: str
    sentence = "{path}: {reason}; export the model again"


class ExportMismatchError(ContractError):
    """The given model does not match the exported one; it was not changed."""

    code = "contract.export_mismatch"
    path: str
    rule: str
    sentence = "{path}: {rule}: give the model that was trained"


class UnknownRowError(ContractError):
    """The argument ``unknown`` is wrong."""

    code = "contract.unknown_row"
    table: str
    rule: str
    sentence = "unknown, table {table!r}: {rule}"
