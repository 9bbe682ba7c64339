"""The state machine of each mode."""

from tests.recovery.defects import Defect
from tests.recovery.groups.geo import GeoRowsState, GeoState
from tests.recovery.groups.localsgd import LocalSgdState
from tests.recovery.groups.state import GroupState
from tests.recovery.groups.sync import SyncState
from tests.recovery.groups.tables import TableState
from tests.recovery.protocol import KEPT_STEPS, Mode


def new_state(mode: Mode, group: int, defects: frozenset[Defect]) -> GroupState:
    """Return the state that a group begins with."""
    match mode:
        case Mode.ASYNC:
            return TableState(group)
        case Mode.SYNC | Mode.SHRINK:
            kept = 0 if Defect.SYNC_NO_OLD_VERSIONS in defects else KEPT_STEPS
            return SyncState(group, kept=kept, may_lose=mode is Mode.SHRINK)
        case Mode.GEO:
            return GeoState(group)
        case Mode.GEO_ROWS:
            return GeoRowsState(
                group,
                numbers_repeat=Defect.GEO_NUMBERS_REPEAT in defects,
                sends_again=Defect.GEO_ROWS_NOT_AGAIN not in defects,
            )
        case Mode.LOCALSGD:
            return LocalSgdState(group)
