"""Which operations of a server a caller may ask for, by the role of its certificate.

A server that serves TLS has a table of its operations. What isn't in it nobody may ask for, so
that an operation that is added without a word about its callers is closed. Without certificates
all callers have proven the same secret, and no caller can be told from another.
"""

from collections.abc import Mapping

from paramfleet_shared.errors import ContractError

__all__ = ["OperationRefusedError", "Rights", "require_right", "roles_of"]

Rights = Mapping[str, frozenset[str]]
"""By operation: the roles of certificates whose holders may ask for it."""


class OperationRefusedError(ContractError):
    """A caller's certificate isn't of a role that may ask for an operation."""

    code = "contract.operation_refused"
    server: str
    operation: str
    role: str
    allowed: str
    sentence = (
        "{server} refuses {operation!r} to a certificate of {role}: it is for {allowed}; check "
        "the certificate of the caller (`paramfleet certs show`)"
    )


def require_right(rights: Rights, operation: str, *, role: str, server: str) -> None:
    """Pass if a role may ask for an operation.

    Args:
        rights: The server's table.
        operation: What is asked for.
        role: Whom the caller's certificate stands for.
        server: Its name, for the error.

    Raises:
        OperationRefusedError: if it may not.
    """
    allowed = rights.get(operation, frozenset())
    if role not in allowed:
        whom = " or ".join(sorted(allowed)) or "nobody"
        raise OperationRefusedError(
            server=server, operation=operation, role=role or "nobody", allowed=whom
        )


def roles_of(rights: Rights) -> list[str]:
    """Return the roles that may ask for anything of a server."""
    return sorted(frozenset[str]().union(*rights.values()))
