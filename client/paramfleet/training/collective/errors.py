"""What collective mode raises."""

from paramfleet_shared.errors import ContractError, IntegrityError, UnavailableError

__all__ = ["CollectiveSetupError", "PeersLostError", "RendezvousError", "WrongModeError"]


class WrongModeError(ContractError):
    """A function of parameter-server mode was called in collective mode."""

    code = "contract.wrong_mode"

    def __init__(self, *, function: str, remedy: str) -> None:
        super().__init__(
            f"fleet.{function}() and is_collective=True: {remedy}",
            function=function,
            remedy=remedy,
        )
        self.function = function


class CollectiveSetupError(ContractError):
    """Collective mode can't run like this on this machine, or with this model or optimizer."""

    code = "contract.collective_setup"

    def __init__(self, *, found: str, rule: str) -> None:
        super().__init__(f"{found}: {rule}", found=found, rule=rule)


class RendezvousError(UnavailableError):
    """The workers of a collective job didn't find each other."""

    code = "unavailable.rendezvous"

    def __init__(self, *, peer: str, operation: str, waited_s: float, reason: str) -> None:
        super().__init__(
            f"{operation} with {peer}: gave up after {waited_s:.1f} s: {reason}",
            peer=peer,
            operation=operation,
            waited_s=waited_s,
            reason=reason,
        )
        self.peer = peer


class PeersLostError(IntegrityError):
    """Workers of a collective job ended, or didn't come to where all must come."""

    code = "integrity.peers_lost"

    def __init__(self, *, peer: str, operation: str, waited_s: float, reason: str) -> None:
        super().__init__(
            f"{operation} with {peer}: failed after {waited_s:.1f} s: {reason}",
            peer=peer,
            operation=operation,
            waited_s=waited_s,
            reason=reason,
        )
        self.peer = peer
