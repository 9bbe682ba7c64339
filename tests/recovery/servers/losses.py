"""A worker of sync that won't come back: all groups agree on its last step.

Groups refuse what comes from it, and say of how many of its parts they know that all groups
have them. The greatest number is where it ends. A step is applied only when that is known of
each part, so none is applied that another group may lack.
"""

from tests.recovery.defects import Defect
from tests.recovery.groups.sync import SyncState
from tests.recovery.protocol import GROUPS, Command, Kind, Part
from tests.recovery.servers.copies import MemoryCopy, Pserver
from tests.recovery.servers.durability import durable_position
from tests.recovery.world import World


class Losses:
    """Tells owners of losses, with each heartbeat: one that went back has to learn it again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: set[int] = set()

    def tell(self, pserver: Pserver) -> None:
        """Tell the owners in a pserver, and take what they know."""
        for group, copy in pserver.copies.items():
            state = copy.state
            if copy.role != "owner" or copy.fenced_for is not None:
                continue
            for rank, incarnation in self._world.lost.items():
                if isinstance(state, SyncState):
                    self._tell(group, copy, state, (rank, incarnation))

    def _tell(
        self, group: int, copy: MemoryCopy, state: SyncState, lost: tuple[int, int]
    ) -> None:
        world, (rank, incarnation) = self._world, lost
        if rank not in state.lost:
            if group in self._told and world.lacks(Defect.LOSS_IS_FORGOTTEN):
                return
            self._told.add(group)
            copy.execute(Command(Kind.LOSE, rank, incarnation))
        if durable_position(world, copy) >= state.lost[rank]:
            world.known.setdefault(group, state.known.get(rank, 0))
        if len(world.known) == len(GROUPS) and rank not in state.ends:
            end = max(world.known.values())
            copy.execute(Command(Kind.END, rank, incarnation, part=Part(step=end)))
