"""Which points of the code can be made to fail, and which bugs tests can plant."""

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["DEFECTS", "FAILPOINTS", "FAULTS_VARIABLE", "Failpoint"]

FAULTS_VARIABLE: Final = "PARAMFLEET_FAULTS"
"""Faults of the network by chance."""


class Failpoint(NamedTuple):
    """One point of the code."""

    role: str
    """Of the process that has it."""
    sentence: str
    """When it is reached."""
    writes: bool = False
    """Whether the disk is written there, and so may be full."""


FAILPOINTS: Final[Mapping[str, Failpoint]] = {
    "before_apply": Failpoint("pserver", "A command is about to be executed."),
    "after_apply_before_log": Failpoint(
        "pserver", "A command was executed, and isn't in the log yet."
    ),
    "after_log_before_answer": Failpoint(
        "pserver", "A change is in the log's memory, and its answer isn't sent."
    ),
    "before_write": Failpoint(
        "pserver", "Commands are about to be written to the log's file.", writes=True
    ),
    "before_sync": Failpoint(
        "pserver", "They are written, and the file isn't synced.", writes=True
    ),
    "after_sync": Failpoint("pserver", "They are synced, and no answer is sent yet."),
    "snapshot_half_written": Failpoint(
        "pserver", "A snapshot's file has its first message.", writes=True
    ),
    "before_join_answer": Failpoint(
        "pserver", "A worker has joined a pserver that was restarted, and has no answer yet."
    ),
    "while_replaying": Failpoint(
        "pserver", "A command of the log is about to be executed again."
    ),
    "follower_snapshot_half": Failpoint(
        "pserver", "A follower has the first part of a group's snapshot."
    ),
    "before_append_ack": Failpoint(
        "pserver", "A follower has executed commands, and has not acknowledged them yet."
    ),
    "handover_fenced": Failpoint(
        "pserver",
        "An owner executes nothing more of a group, and has not answered its follower yet.",
    ),
    "handover_promoted": Failpoint(
        "pserver", "A follower is about to become the owner of a group."
    ),
    "before_send": Failpoint("worker", "A change is in the outbox, and isn't sent."),
    "after_answer": Failpoint("worker", "All pservers have answered a change."),
    "before_placement_written": Failpoint(
        "coordinator",
        "What was decided of the job is about to be written to the registry (Redis).",
    ),
    "after_placement_written": Failpoint(
        "coordinator", "It is written, and no newcomer has read it."
    ),
}
"""Every point, by the name that the code calls ``failpoint`` with."""

DEFECTS: Final[Mapping[str, str]] = {
    "durable_before_log": "Changes are reported durable when they are executed.",
    "durable_before_replica": "Changes are reported durable without a look at followers.",
    "windows_left_out": "Which changes were taken is in no snapshot.",
}
"""Bugs that tests of ``paramfleet verify`` plant, to see that it finds them."""
