"""Why a call was never sent."""

from paramfleet_shared.errors import ContractError, UnavailableError

__all__ = ["ChannelClosedError", "PeerUnreachableError"]


class ChannelClosedError(ContractError):
    """A call was made on a channel that its owner has closed."""

    code = "contract.channel_closed"

    def __init__(self, *, peer: str, operation: str) -> None:
        super().__init__(
            f"{operation!r} was called on the closed channel to {peer}",
            peer=peer,
            operation=operation,
        )
        self.peer = peer
        self.operation = operation


class PeerUnreachableError(UnavailableError):
    """The peer could not be asked in the time the call had; it did nothing."""

    code = "unavailable.peer_unreachable"

    def __init__(
        self, *, peer: str, endpoint: str, operation: str, waited_s: float, reason: str
    ) -> None:
        super().__init__(
            f"{peer} at {endpoint} could not be reached for {operation!r} "
            f"within {waited_s:.3f} s: {reason}",
            peer=peer,
            endpoint=endpoint,
            operation=operation,
            waited_s=waited_s,
            reason=reason,
        )
        self.peer = peer
        self.endpoint = endpoint
        self.operation = operation
        self.waited_s = waited_s
        self.reason = reason
