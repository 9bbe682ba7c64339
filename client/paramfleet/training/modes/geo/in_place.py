"""GEO's dense tables where they are too large to be copied: exchanged while training waits."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet.config.strategy import GeoMerge
from paramfleet.tables.dense import DenseBlock
from paramfleet.tables.replica import DenseReplica
from paramfleet.training.in_place import Change, InPlace
from paramfleet.training.job import Job

__all__ = ["GeoInPlace"]


class GeoInPlace:
    """What was agreed on of each table, and its exchange. The training thread owns it.

    Args:
        job: The worker's connections.
        blocks: The tables; they hold what the pservers do.
        merge: What becomes of the unsent rest.
    """

    def __init__(self, job: Job, blocks: Sequence[DenseBlock], merge: GeoMerge) -> None:
        self._moves = InPlace(job, blocks)
        self._replicas = {
            block.name: DenseReplica(
                block.piece(slice(0, block.size)), worker_num=job.worker_num, merge=merge
            )
            for block in blocks
        }

    def exchange(self, powers: Mapping[str, Any], *, step: int, rest: bool) -> None:
        """Send what has moved, and take in what others changed.

        The exchange of the rows, without ``continues``, has to follow.

        Args:
            powers: As a part says them, by which the pservers divide.
            step: Steps that the worker has taken.
            rest: Whether all is sent that is left, undivided.
        """

        def delta(block: DenseBlock, where: slice) -> NDArray[np.float32]:
            replica = self._replicas[block.name]
            return replica.delta_of_piece(block.piece(where), where, rest=rest)

        def take(block: DenseBlock, where: slice) -> NDArray[np.float32]:
            replica = self._replicas[block.name]
            return replica.take_piece(block.piece(where), where, rest=rest)

        def receive(block: DenseBlock, where: slice, served: NDArray[np.float32]) -> None:
            self._receive(block, where, served, sent=True, rest=rest)

        self._moves.change(
            Change(
                op="exchange",
                fields={"step": max(step - 1, 0)},
                numbers=take,
                part_fields=lambda _: {"ack": 0, "max_rows": 1, **powers},
                received=receive,
                guarded=delta if "guarded_steps" in powers else None,
            )
        )

    def listen(self) -> None:
        """Take in what others changed."""
        self._moves.pull(self._receive)

    def reload(self) -> None:
        """Take the pservers' values; this worker's progress is forgotten."""
        self._moves.pull(self._reset)

    def _receive(
        self,
        block: DenseBlock,
        where: slice,
        served: NDArray[np.float32],
        *,
        sent: bool = False,
        rest: bool = False,
    ) -> None:
        replica = self._replicas[block.name]
        moved = replica.receive_piece(block.piece(where), where, served, sent=sent, rest=rest)
        block.install_piece(where.start, moved)

    def _reset(self, block: DenseBlock, where: slice, served: NDArray[np.float32]) -> None:
        self._replicas[block.name].reset_piece(where, served)
        block.install_piece(where.start, served)
