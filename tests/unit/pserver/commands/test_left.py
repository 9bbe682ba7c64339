"""A worker that has left and is started again takes no step a second time."""

from tests.unit.pserver.commands.histories import Replica, specs_of

from paramfleet_pserver.commands.records import Join, Leave, Make
from paramfleet_shared.values.ids import Rank, Step

BOB = Rank(1)


async def test_who_had_left_begins_where_it_left_and_not_with_the_slowest() -> None:
    replica = Replica("localsgd", 2, rate="full", elastic=False, returning=True)
    machine = replica.machine
    machine.execute(Make(specs_of("localsgd", "float32", "sgd")))
    machine.execute(Join(BOB, 1))
    machine.execute(Leave(BOB, 1, Step(162)))

    steps = [machine.execute(Join(BOB, 2)).step for _ in range(2)]  # its answer may be lost
    await replica.owners.close()

    assert steps == [162, 162]
