"""What each rule prevents happens when the rule is left out."""

from typing import NamedTuple

import pytest
from tests.recovery.defects import Defect
from tests.recovery.protocol import Durability, Mode
from tests.recovery.run import Run
from tests.recovery.world import ViolationError


class Case(NamedTuple):
    """A schedule in which a defect shows, and what is broken."""

    mode: Mode
    durability: Durability
    seed: int
    kind: str


# A change of the model gives other schedules to all seeds: look for new ones with --break.
CASES = {
    Defect.ACKNOWLEDGED_IS_FORGOTTEN: [
        Case(Mode.ASYNC, Durability.DISK, 1, "lost"),
        Case(Mode.ASYNC, Durability.REPLICA, 1, "lost"),
    ],
    Defect.SNAPSHOT_WITHOUT_WINDOWS: [
        Case(Mode.ASYNC, Durability.DISK, 2, "doubled"),
        Case(Mode.SYNC, Durability.BOTH, 2, "stuck"),
    ],
    Defect.NO_TERM_CHECK: [
        Case(Mode.GEO, Durability.REPLICA, 4, "stuck"),
        Case(Mode.ASYNC, Durability.BOTH, 5, "own_writes"),
    ],
    Defect.GEO_NO_RESUME: [
        Case(Mode.GEO, Durability.REPLICA, 4, "copy"),
    ],
    Defect.GEO_ACK_WITHOUT_TERM: [
        Case(Mode.GEO, Durability.REPLICA, 29, "copy"),
    ],
    Defect.GEO_EARLY_REPLIES: [
        Case(Mode.GEO, Durability.REPLICA, 55, "copy"),
    ],
    Defect.LOCALSGD_NEW_DELTA: [
        Case(Mode.LOCALSGD, Durability.REPLICA, 2, "payload"),
        Case(Mode.LOCALSGD, Durability.DISK, 4, "payload"),
    ],
    Defect.GATE_GAP: [
        Case(Mode.ASYNC, Durability.DISK, 10_018, "stuck"),
        Case(Mode.ASYNC, Durability.REPLICA, 17, "stuck"),
        Case(Mode.ASYNC, Durability.REPLICA, 37, "stuck"),
    ],
    Defect.STALE_PULLS: [
        Case(Mode.ASYNC, Durability.BOTH, 5, "own_writes"),
        Case(Mode.ASYNC, Durability.REPLICA, 20, "own_writes"),
    ],
    Defect.NO_FENCES: [
        Case(Mode.LOCALSGD, Durability.REPLICA, 104, "fenced"),
    ],
    Defect.REFUSAL_TAKES_SEQUENCE: [
        Case(Mode.ASYNC, Durability.DISK, 2, "stuck"),
        Case(Mode.ASYNC, Durability.REPLICA, 3, "payload"),
    ],
    Defect.NO_VOID: [
        Case(Mode.ASYNC, Durability.DISK, 2, "stuck"),
        Case(Mode.ASYNC, Durability.REPLICA, 6, "stuck"),
    ],
    Defect.VOID_WITHOUT_STEPS: [
        Case(Mode.ASYNC, Durability.BOTH, 10, "stuck"),
        Case(Mode.ASYNC, Durability.REPLICA, 30, "stuck"),
    ],
    Defect.WRITTEN_IS_DURABLE: [
        Case(Mode.GEO, Durability.DISK, 1, "claim"),
        Case(Mode.SYNC, Durability.DISK, 2, "claim"),
    ],
    Defect.TORN_RECORD_IS_READ: [
        Case(Mode.SYNC, Durability.DISK, 32, "sync"),
    ],
    Defect.FAILED_WRITE_IS_SKIPPED: [
        Case(Mode.SYNC, Durability.DISK, 3, "claim"),
        Case(Mode.SYNC, Durability.DISK, 22, "claim"),
    ],
    Defect.START_BEFORE_DURABLE: [
        Case(Mode.GEO, Durability.DISK, 4, "value"),
        Case(Mode.GEO, Durability.BOTH, 7, "value"),
    ],
    Defect.END_BEFORE_DURABLE: [
        Case(Mode.ASYNC, Durability.DISK, 1, "lost"),
        Case(Mode.ASYNC, Durability.DISK, 2, "lost"),
    ],
    Defect.SYNC_NO_OLD_VERSIONS: [
        Case(Mode.SYNC, Durability.REPLICA, 2, "stuck"),
        Case(Mode.SYNC, Durability.BOTH, 7, "stuck"),
    ],
    Defect.SYNC_TOO_FAR_AHEAD: [
        Case(Mode.SYNC, Durability.DISK, 16, "stuck"),
        Case(Mode.SYNC, Durability.REPLICA, 34, "stuck"),
    ],
    Defect.MEMORY_IS_DURABLE: [
        Case(Mode.ASYNC, Durability.DISK, 1, "claim"),
        Case(Mode.ASYNC, Durability.REPLICA, 1, "claim"),
    ],
    Defect.DURABLE_AT_TAKEOVER: [
        Case(Mode.ASYNC, Durability.REPLICA, 1, "claim"),
        Case(Mode.SYNC, Durability.REPLICA, 1, "claim"),
    ],
    Defect.REGISTERED_BEFORE_COUNTED: [
        Case(Mode.ASYNC, Durability.BOTH, 1, "claim"),
        Case(Mode.SYNC, Durability.BOTH, 1, "claim"),
    ],
    Defect.CUT_WITHOUT_HOLD: [
        Case(Mode.ASYNC, Durability.BOTH, 2, "cut"),
        Case(Mode.ASYNC, Durability.REPLICA, 3, "cut"),
    ],
    Defect.HANDOVER_WITHOUT_TAIL: [
        Case(Mode.LOCALSGD, Durability.REPLICA, 2, "stuck"),
        Case(Mode.ASYNC, Durability.REPLICA, 5, "stuck"),
    ],
}


def test_every_rule_has_a_schedule_that_needs_it() -> None:
    assert set(CASES) == set(Defect)
    assert all(CASES.values())


@pytest.mark.parametrize(
    ("defect", "case"), [(defect, case) for defect, cases in CASES.items() for case in cases]
)
def test_a_rule_that_is_left_out_is_missed(defect: Defect, case: Case) -> None:
    run = Run(case.seed, case.mode, case.durability, frozenset({defect}))

    with pytest.raises(ViolationError) as violation:
        run.play()

    assert violation.value.kind == case.kind


@pytest.mark.parametrize(
    "case", {case[:3]: case for cases in CASES.values() for case in cases}.values()
)
def test_the_same_schedule_with_all_rules_breaks_nothing(case: Case) -> None:
    Run(case.seed, case.mode, case.durability, frozenset()).play()
