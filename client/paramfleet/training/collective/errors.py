"""What collective mode raises."""

from paramfleet_shared.errors import ContractError, IntegrityError, UnavailableError

__all__ = ["CollectiveSetupError", "PeersLostError", "RendezvousError", "WrongModeError"]


class WrongModeError(ContractError):
    """A function was called in a mode that lacks it, mostly collective mode."""

    code = "contract.wrong_mode"
    function: str
    remedy: str
    mode: str = "is_collective=True"
    sentence = "fleet.{function}() and {mode}: {remedy}"


class CollectiveSetupError(ContractError):
    """Collective mode can't run like this on this machine, or with this model or optimizer."""

    code = "contract.collective_setup"
    found: str
    rule: str
    sentence = "{found}: {rule}"


class RendezvousError(UnavailableError):
    """The workers of a collective job didn't find each other."""

    code = "unavailable.rendezvous"
    peer: str
    operation: str
    waited_s: float
    reason: str
    sentence = "{operation} with {peer}: gave up after {waited_s:.1f} s: {reason}"


class PeersLostError(IntegrityError):
    """Workers of a collective job ended, or didn't come to where all must come."""

    code = "integrity.peers_lost"
    peer: str
    operation: str
    waited_s: float
    reason: str
    sentence = "{operation} with {peer}: failed after {waited_s:.1f} s: {reason}"
