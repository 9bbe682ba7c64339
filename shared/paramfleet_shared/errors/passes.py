"""Errors of passes that are written back to pservers at their end; a part of ``served``."""

from typing_extensions import override

from paramfleet_shared.errors import ContractError, UnavailableError

__all__ = [
    "ForeignWriteError",
    "PassCommittedError",
    "PassInDoubtError",
    "PassNotPreparedError",
    "PassNumberError",
    "PassNumbersError",
    "PassPieceRepeatedError",
    "PassPiecesError",
    "PassPreparedError",
    "PassUpdatesError",
]


class PassNumberError(ContractError):
    """A piece is of another pass than the next one; it isn't kept."""

    code = "contract.pass_number"
    number: int
    expected: int
    sentence = (
        "pass {number} can't be prepared: the next one of this job is {expected}; begin the "
        "pass again"
    )


class PassInDoubtError(ContractError):
    """A worker's former process has prepared a pass that nobody has decided about."""

    code = "contract.pass_in_doubt"
    rank: int
    number: int
    sentence = (
        "worker {rank}: its former process has prepared pass {number} or a part of it: "
        "commit or abort that before pieces are prepared again"
    )


class PassPiecesError(ContractError):
    """A piece doesn't go with the number of pieces that its worker names; it isn't kept."""

    code = "contract.pass_pieces"
    rank: int
    number: int
    piece: int
    pieces: int
    sentence = (
        "worker {rank}, pass {number}: piece {piece} doesn't fit {pieces} pieces, which are "
        "numbered from 0"
    )


class PassPieceRepeatedError(ContractError):
    """A worker prepared a piece twice, with other numbers; the first is kept."""

    code = "contract.pass_piece_repeated"
    rank: int
    number: int
    piece: int
    sentence = (
        "worker {rank} prepared piece {piece} of pass {number} before, with other numbers: "
        "abort the pass, and prepare it again"
    )


class PassNotPreparedError(ContractError):
    """A pass was to be committed that isn't prepared here as it should be."""

    code = "contract.pass_not_prepared"
    number: int
    rank: int | None
    """Whose pieces are lacking, or too many; None if there are none at all."""
    held: int
    named: int | None
    """None if the commit, or the worker, names no number."""

    @override
    def describe(self) -> str:
        begin = f"pass {self.number} can't be committed: "
        if self.rank is None:
            return begin + "no piece of it is prepared here"
        of = f"{self.held} of worker {self.rank}'s pieces are prepared here, "
        named = "and the number of pieces is not known"
        if self.named is not None:
            named = f"and there should be {self.named}, from 0 on"
        return begin + of + named


class PassCommittedError(ContractError):
    """A pass was to be aborted that is committed; it stays so."""

    code = "contract.pass_committed"
    number: int
    committed: int
    sentence = "pass {number} can't be aborted: all passes up to {committed} are committed"


class PassUpdatesError(ContractError):
    """A pass names no number of steps that a table can come to; nothing was kept."""

    code = "contract.pass_updates"
    table: str
    rank: int
    updates: int
    present: int
    sentence = (
        "table {table!r}: worker {rank} writes back what it trained for {updates} steps, and "
        "{present} were taken before: begin the pass again"
    )


class PassNumbersError(ContractError):
    """A pass writes back numbers that training doesn't make; nothing was kept."""

    code = "contract.pass_numbers"
    table: str
    rank: int
    number: int
    rule: str
    sentence = (
        "worker {rank}, pass {number}: of the numbers for table {table!r} {rule}; "
        "nothing was kept"
    )


class ForeignWriteError(ContractError):
    """Somebody changed a table since a pass read it; nothing of the pass was written."""

    code = "contract.foreign_write"
    table: str
    by: str
    number: int
    sentence = (
        "table {table!r} was written by {by} since the pass began: nothing of pass {number} "
        "was written; begin it again"
    )


class PassPreparedError(UnavailableError):
    """A table was to be changed while a pass is written back; nothing was changed."""

    code = "unavailable.pass_prepared"
    operation: str
    number: int
    rank: int
    sentence = (
        "{operation!r} must wait: pass {number} of worker {rank} is being written back: "
        "send it again"
    )
