"""The functions of ``fleet`` belong in an order."""

from paramfleet_shared.errors import ContractError

__all__ = ["CallOrderError", "NotYetError"]


class NotYetError(ContractError):
    """An object was asked for something that it can't do yet, or no longer can do."""

    code = "contract.not_yet"


class CallOrderError(ContractError):
    """A ``fleet`` function was called before the one it needs, or in the wrong role."""

    code = "contract.call_order"
    function: str
    remedy: str
    sentence = "fleet.{function}(): {remedy}"
