"""What is true of the state that a job ends with."""

from collections import Counter

from tests.recovery.groups.state import GroupState
from tests.recovery.groups.sync import SyncState, sequential
from tests.recovery.groups.tables import TableState
from tests.recovery.protocol import (
    FIRST_ASSIGNED,
    GROUPS,
    ROWS,
    STEPS,
    WORKERS,
    Kind,
    first_value,
    rows_of,
)
from tests.recovery.workers.own_copy import OwnCopyWorker
from tests.recovery.world import World, violated


def check_end(world: World) -> None:
    """Check all that the protocol promises of the end."""
    states = []
    for group in GROUPS:
        owner = world.owner(group)
        assert owner is not None
        states.append(owner.state)
    for state in states:
        _check_once(state)
    values = [state.value for state in states if isinstance(state, SyncState)]
    if values and world.lost:
        _check_shrunk(world, [state for state in states if isinstance(state, SyncState)])
        return
    if values:
        if values != sequential(STEPS):
            violated("sync", f"{values} aren't those of the sequential run")
        return
    tables = [state for state in states if isinstance(state, TableState)]
    for table in tables:
        _check_all_there(world, table)
        _check_values(table)
    for worker in world.workers:
        if isinstance(worker, OwnCopyWorker):
            _check_progress(worker)
            _check_heard(worker, tables)


def _check_shrunk(world: World, states: list[SyncState]) -> None:
    """All parts of the others are in; a lost worker's up to some step, the same in all."""
    ends = []
    (lost,) = world.lost
    for state in states:
        steps = [step for step, ranks in state.counted.items() if lost in ranks]
        others = [ranks - {lost} for ranks in state.counted.values()]
        whole = len(others) == STEPS and all(len(each) == WORKERS - 1 for each in others)
        if not whole or sorted(steps) != list(range(len(steps))):
            violated("sync", f"group {state.group} counts {state.counted}")
        ends.append(len(steps))
    if len(set(ends)) > 1:
        violated("sync", f"a lost worker is in {ends} steps")


def _check_once(state: GroupState) -> None:
    for change, count in state.applied.items():
        if count > 1:
            facts = f"{change} {count} times in group {state.group}"
            violated("doubled", facts)


def _check_all_there(world: World, state: TableState) -> None:
    """All changes of living workers are there, and all that were reported durable."""
    wanted = {
        (worker.rank, worker.incarnation, entry.sequence)
        for worker in world.workers
        for entry in worker.entries
    }
    wanted |= {change[1:] for change in world.reported if change[0] == state.group}
    for worker in world.workers:
        for entry in worker.entries:
            if entry.kind is Kind.VOID:
                continue  # some groups may have taken it before
            change = (worker.rank, worker.incarnation, entry.sequence)
            part = state.parts.get(change, entry.parts[state.group])
            if part != entry.parts[state.group]:
                violated("payload", f"{change} of group {state.group} is {part}")
    if lost := wanted - set(state.applied):
        violated("lost", f"{sorted(lost)} of group {state.group}")


def _check_values(state: TableState) -> None:
    for row in rows_of(state.group):
        if state.value(row) != first_value(row) + state.sums[row]:
            violated("value", f"row {row}")
    if state.assigned != FIRST_ASSIGNED:
        violated("value", f"first values of group {state.group}")


def _check_progress(worker: OwnCopyWorker) -> None:
    """A worker sent exactly what it made."""
    sent: Counter[int] = Counter()
    for entry in worker.entries:
        if entry.kind is Kind.EXCHANGE:
            for part in entry.parts.values():
                sent.update(part.deltas)
    if +sent != +worker.progress:
        violated("progress", f"worker {worker.rank} sent other than it made")


def _check_heard(worker: OwnCopyWorker, states: list[TableState]) -> None:
    """A worker ends with the values of the groups."""
    for row in range(ROWS):
        served = states[row % len(GROUPS)].value(row)
        if worker.values(row) != (served, served):
            facts = f"worker {worker.rank} row {row}: {worker.values(row)}, not {served}"
            violated("copy", facts)
