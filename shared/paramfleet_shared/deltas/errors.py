"""What can be wrong with a stream, its folder, or what is asked of it."""

from paramfleet_shared.errors import ContractError, HeldError, IntegrityError, UnavailableError

__all__ = [
    "BaseDamagedError",
    "ChangeDamagedError",
    "ChangeForkedError",
    "ChangeGapError",
    "ChangeOrderError",
    "ChangeRepeatedError",
    "ChangesUnavailableError",
    "OtherStreamError",
    "OtherWriterError",
    "StreamBusyError",
    "StreamChangeError",
    "StreamError",
    "StreamHeldError",
    "StreamReplacedError",
    "StreamUnreadableError",
]


class StreamError(ContractError):
    """A folder has no stream that this version can read."""

    code = "contract.stream"
    path: str
    rule: str
    sentence = "{path}: {rule}"


class StreamChangeError(ContractError):
    """A change or a base can't be a part of its stream; nothing was written."""

    code = "contract.stream_change"
    path: str
    """The folder."""
    what: str
    """Which table or parameter."""
    rule: str
    sentence = "{what}, for the stream in {path}: {rule}"


class OtherWriterError(ContractError):
    """Another writer has begun a stream in the folder: this one is at its end."""

    code = "contract.other_writer"
    path: str
    writer: str
    """The one that has the folder."""
    own: str
    sentence = (
        "{path} has another writer now ({writer}; this is {own}): end one of them, or give "
        "each a folder of its own"
    )


class StreamBusyError(UnavailableError):
    """Another process holds a lock of the folder for long; nothing was published."""

    code = "unavailable.stream_busy"
    path: str
    """The lock's file."""
    waited_s: float
    sentence = (
        "{path} is locked by another process for more than {waited_s:.0f} s: a base is made, "
        "or a process was stopped in the middle of a publication; try again"
    )


class StreamHeldError(HeldError):
    """Another process writes to the folder; nothing was changed."""

    code = "unavailable.stream_held"
    sentence = (
        "{path} is in use by the writer {holder}: end that process, or give this one another "
        "folder; --take-over replaces that process"
    )


class ChangesUnavailableError(UnavailableError):
    """Changes aren't in the folder any more, or not yet."""

    code = "unavailable.changes"
    path: str
    stream: str
    number: int
    """Of the change."""
    rule: str
    sentence = "{path}: change {number} of stream {stream}: {rule}"


class StreamReplacedError(UnavailableError):
    """The folder has another stream than the one that a reader follows."""

    code = "unavailable.stream_replaced"
    path: str
    stream: str
    """That is followed."""
    found: str
    sentence = (
        "{path} has stream {found} now, and stream {stream} was followed: open its newest base"
    )


class StreamUnreadableError(UnavailableError):
    """The system, or a store at an address, refuses a file now."""

    code = "unavailable.stream_unreadable"
    path: str
    reason: str
    sentence = "{path} can't be read now: {reason}; check the disk or the store, and try again"


class ChangeGapError(IntegrityError):
    """A change between two others, or before the newest, isn't there."""

    code = "integrity.change_gap"
    path: str
    stream: str
    number: int
    """The change that is missing."""
    sentence = (
        "{path}: change {number} of stream {stream} is missing, although stream.json says that "
        "it was published: restore the file, or begin at a later base"
    )


class ChangeRepeatedError(IntegrityError):
    """Where a change should be, one is that was before it."""

    code = "integrity.change_repeated"
    path: str
    stream: str
    number: int
    """The change that should be there."""
    found: int
    sentence = (
        "{path} has the earlier change {found} of stream {stream}, where change {number} "
        "should be: restore the file, or begin at a later base"
    )


class ChangeOrderError(IntegrityError):
    """Where a change should be, a later one is."""

    code = "integrity.change_order"
    path: str
    stream: str
    number: int
    """The change that should be there."""
    found: int
    sentence = (
        "{path} has change {found} of stream {stream}, where change {number} should be: "
        "restore the file, or begin at a later base"
    )


class ChangeForkedError(IntegrityError):
    """A change was made on another one than the one before it in the folder."""

    code = "integrity.change_forked"
    path: str
    stream: str
    number: int
    sentence = (
        "{path}: change {number} of stream {stream} doesn't follow the one before it, by its "
        "SHA-256: restore both, or begin at a later base"
    )


class OtherStreamError(IntegrityError):
    """A file is of another stream than the folder it is in."""

    code = "integrity.other_stream"
    path: str
    stream: str
    """Whose folder it is in."""
    number: int
    found: str
    sentence = (
        "{path} has a change of stream {found}, where change {number} of stream {stream} "
        "should be: restore the file, or begin at a later base"
    )


class ChangeDamagedError(IntegrityError):
    """A file of a change is torn, altered, or not what a writer writes."""

    code = "integrity.change_damaged"
    path: str
    stream: str
    number: int
    reason: str
    sentence = (
        "{path}, change {number} of stream {stream}: {reason}; restore the file, or begin at a "
        "later base"
    )


class BaseDamagedError(IntegrityError):
    """A base lacks a file, or has one that is torn, altered, or not what a writer writes."""

    code = "integrity.base_damaged"
    path: str
    stream: str
    number: int
    reason: str
    sentence = (
        "{path}, base {number} of stream {stream}: {reason}; restore the file, begin at "
        "another base, or have the writer begin again"
    )
