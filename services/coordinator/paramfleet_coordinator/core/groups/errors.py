"""What a process that hosts groups may not do."""

from paramfleet_shared.errors import ContractError, UnavailableError

__all__ = [
    "NotPlannedError",
    "ScaleRefusedError",
    "SettlingError",
    "StaleProposalError",
    "StaleTermError",
]


class SettlingError(UnavailableError):
    """The coordinator was started again, and doesn't know the newest sets of copies as yet."""

    code = "unavailable.settling"
    group: int
    sentence = (
        "the coordinator was restarted, and decides nothing about group {group} before every "
        "process has reported its state: try again"
    )


class NotPlannedError(UnavailableError):
    """A process asked for a group that the plan doesn't give to it."""

    code = "unavailable.not_planned"
    group: int
    process: str
    owner: str
    term: int
    sentence = (
        "group {group} isn't planned for process {process}: {owner} has it under term {term}; "
        "read the plan"
    )


class StaleTermError(UnavailableError):
    """An owner proposed something for a term that is over."""

    code = "unavailable.stale_term"
    group: int
    term: int
    newest: int
    sentence = "group {group} is owned under term {newest} by now, not {term}: nothing written"


class StaleProposalError(UnavailableError):
    """An owner's proposal was late: a newer one was written."""

    code = "unavailable.stale_proposal"
    group: int
    number: int
    newest: int
    sentence = (
        "copies of group {group} were proposed as number {newest} since, not {number}: "
        "nothing written"
    )


class ScaleRefusedError(ContractError):
    """The job can't have so many processes."""

    code = "contract.scale_refused"
    wanted: int
    reason: str
    sentence = "pservers = {wanted} is refused: {reason}"
