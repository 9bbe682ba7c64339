"""Why a call was never sent."""

from paramfleet_shared.errors import ContractError, UnavailableError

__all__ = ["ChannelClosedError", "PeerUnreachableError"]


class ChannelClosedError(ContractError):
    """A call was made on a channel that its owner has closed."""

    code = "contract.channel_closed"
    peer: str
    operation: str
    sentence = "{operation!r} was called on the closed channel to {peer}"


class PeerUnreachableError(UnavailableError):
    """The peer could not be asked in the time the call had; it did nothing."""

    code = "unavailable.peer_unreachable"
    peer: str
    endpoint: str
    operation: str
    waited_s: float
    reason: str
    sentence = (
        "{peer} at {endpoint} could not be reached for {operation!r} "
        "within {waited_s:.3f} s: {reason}"
    )
