"""The rules of the protocol that a run can leave out."""

from enum import StrEnum, auto


class Defect(StrEnum):
    """A rule that is left out; ``MEANINGS`` says what happens then."""

    ACKNOWLEDGED_IS_FORGOTTEN = auto()
    SNAPSHOT_WITHOUT_WINDOWS = auto()
    NO_TERM_CHECK = auto()
    GEO_NO_RESUME = auto()
    GEO_ACK_WITHOUT_TERM = auto()
    GEO_EARLY_REPLIES = auto()
    LOCALSGD_NEW_DELTA = auto()
    GATE_GAP = auto()
    STALE_PULLS = auto()
    NO_FENCES = auto()
    REFUSAL_TAKES_SEQUENCE = auto()
    NO_VOID = auto()
    VOID_WITHOUT_STEPS = auto()
    WRITTEN_IS_DURABLE = auto()
    TORN_RECORD_IS_READ = auto()
    FAILED_WRITE_IS_SKIPPED = auto()
    START_BEFORE_DURABLE = auto()
    END_BEFORE_DURABLE = auto()
    SYNC_NO_OLD_VERSIONS = auto()
    SYNC_TOO_FAR_AHEAD = auto()
    MEMORY_IS_DURABLE = auto()
    DURABLE_AT_TAKEOVER = auto()
    REGISTERED_BEFORE_COUNTED = auto()
    CUT_WITHOUT_HOLD = auto()
    HANDOVER_WITHOUT_TAIL = auto()


MEANINGS = {
    Defect.ACKNOWLEDGED_IS_FORGOTTEN: (
        "a worker forgets a change when it is acknowledged, not when it is durable"
    ),
    Defect.SNAPSHOT_WITHOUT_WINDOWS: "a snapshot leaves the identity windows out",
    Defect.NO_TERM_CHECK: "nobody compares terms",
    Defect.GEO_NO_RESUME: "a worker doesn't say what it heard from a part that isn't durable",
    Defect.GEO_ACK_WITHOUT_TERM: (
        "acknowledged replies carry no term, and entries keep the number they had at first"
    ),
    Defect.GEO_EARLY_REPLIES: "a worker takes in replies to exchanges that aren't its newest",
    Defect.LOCALSGD_NEW_DELTA: "a change is sent again with a delta that is taken anew",
    Defect.GATE_GAP: "groups that have a lower level for a worker don't learn its first step",
    Defect.STALE_PULLS: "a worker pulls where a change that was acknowledged is lost",
    Defect.NO_FENCES: "a new owner doesn't read the incarnations of the registry",
    Defect.REFUSAL_TAKES_SEQUENCE: "a refused change is in the window",
    Defect.NO_VOID: "a worker gives up a refused change without voiding it",
    Defect.VOID_WITHOUT_STEPS: "voiding a push doesn't finish its steps",
    Defect.WRITTEN_IS_DURABLE: "what was written counts before it was synced",
    Defect.TORN_RECORD_IS_READ: "a record that a crash cut in two is executed",
    Defect.FAILED_WRITE_IS_SKIPPED: "what a full disk didn't take isn't written again",
    Defect.START_BEFORE_DURABLE: (
        "training starts when the first values are acknowledged, not durable"
    ),
    Defect.END_BEFORE_DURABLE: "a worker ends when its last push is acknowledged, not durable",
    Defect.SYNC_NO_OLD_VERSIONS: "a group keeps no older version for a restarted worker",
    Defect.SYNC_TOO_FAR_AHEAD: (
        "a worker may have more undurable steps than groups keep versions"
    ),
    Defect.MEMORY_IS_DURABLE: "an owner reports as durable what only its memory holds",
    Defect.DURABLE_AT_TAKEOVER: (
        "a new owner reports durability before its own copies are registered"
    ),
    Defect.REGISTERED_BEFORE_COUNTED: (
        "a follower becomes eligible before the owner waits for it"
    ),
    Defect.CUT_WITHOUT_HOLD: "each group takes its image of a cut when it is told",
    Defect.HANDOVER_WITHOUT_TAIL: (
        "a handover switches to the snapshot's state, without the tail of the log"
    ),
}
