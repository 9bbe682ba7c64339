"""The functions of ``fleet`` belong in an order."""

from paramfleet_shared.errors import ContractError

__all__ = ["CallOrderError", "NotYetError"]


class NotYetError(ContractError):
    """Something was asked of an object that isn't so far yet, or not any more."""

    code = "contract.not_yet"


class CallOrderError(ContractError):
    """A ``fleet`` function was called before the one it needs, or in the wrong role."""

    code = "contract.call_order"
    function: str
    remedy: str
    sentence = "fleet.{function}(): {remedy}"
