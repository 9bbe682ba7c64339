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
    GEO_NUMBERS_REPEAT = auto()
    GEO_ROWS_NOT_AGAIN = auto()
    GEO_ROWS_NOT_NAMED = auto()
    SYNC_BEGINS_EARLY = auto()
    LOST_IS_TAKEN = auto()
    LOSS_IS_FORGOTTEN = auto()
    ACKNOWLEDGED_IS_KNOWN = auto()
    UNPROTECTED_UNWRITTEN = auto()
    REMOVED_BEFORE_WRITTEN = auto()
    UNKNOWN_SET_IS_FORGOTTEN = auto()
    LATE_SET_IS_TAKEN = auto()
    INHERITED_DISK_STAYS = auto()
    TERM_WITHOUT_FORMER = auto()
    FENCED_GOES_ON = auto()
    LATE_UNDO_IS_TAKEN = auto()
    EXACT_IS_KEPT = auto()
    OLD_REGISTRY_IS_TAKEN = auto()
    ONLY_OWNERS_SPEAK = auto()
    MEMORY_REPLACES_DISK = auto()


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
    Defect.GEO_NUMBERS_REPEAT: (
        "replies to exchanges have numbers of before a rollback again (rows sent again)"
    ),
    Defect.GEO_ROWS_NOT_AGAIN: (
        "rows are neither sent again after a new term nor named (rows sent again)"
    ),
    Defect.GEO_ROWS_NOT_NAMED: (
        "a worker doesn't name the rows that it has, and that didn't come again"
    ),
    Defect.SYNC_BEGINS_EARLY: (
        "a worker that comes back begins before its former steps are durable"
    ),
    Defect.LOST_IS_TAKEN: "a group takes a part of a worker that was lost",
    Defect.LOSS_IS_FORGOTTEN: "a group that went back isn't told of a lost worker again",
    Defect.ACKNOWLEDGED_IS_KNOWN: (
        "a step counts as in all groups when they acknowledged it, not when it is durable"
    ),
    Defect.UNPROTECTED_UNWRITTEN: (
        "a group goes on without a copy while the registry still names some"
    ),
    Defect.REMOVED_BEFORE_WRITTEN: (
        "an owner waits no more for a lost copy that the registry names"
    ),
    Defect.UNKNOWN_SET_IS_FORGOTTEN: (
        "a lost copy isn't waited for though its registration is under way"
    ),
    Defect.LATE_SET_IS_TAKEN: (
        "the coordinator writes a set of copies that was proposed before the last"
    ),
    Defect.INHERITED_DISK_STAYS: "a disk stays eligible that the new owner doesn't name",
    Defect.TERM_WITHOUT_FORMER: "the coordinator doesn't ask from which term an owner goes on",
    Defect.FENCED_GOES_ON: "an owner that has stopped goes on under its old term",
    Defect.LATE_UNDO_IS_TAKEN: (
        "an owner goes on when an attempt is given up that was over before"
    ),
    Defect.EXACT_IS_KEPT: (
        "who had all once takes over as if nothing were lost (rows sent again)"
    ),
    Defect.OLD_REGISTRY_IS_TAKEN: "an old registry counts, whatever processes know",
    Defect.ONLY_OWNERS_SPEAK: (
        "who isn't the owner doesn't say what it has read, when the registry is an old one"
    ),
    Defect.MEMORY_REPLACES_DISK: (
        "a new owner names followers in place of an inherited disk before its own has the group"
    ),
}
