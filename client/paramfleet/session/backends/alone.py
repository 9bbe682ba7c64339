"""One process that has joined no job: it trains alone, serves, or will join."""

from collections.abc import Callable

from typing_extensions import override

from paramfleet.session.backends.base import Backend

__all__ = ["AloneBackend"]


class AloneBackend(Backend):
    """The role says who this process is; there is no other to wait for."""

    joined = False

    @override
    def worker_index(self) -> int:
        return self.own.role().index or 0

    @override
    def worker_num(self) -> int:
        return max(1, self.own.role().worker_num)

    @override
    def barrier(self, name: str) -> None:
        del name

    @override
    def gather(self, name: str, payload: bytes) -> list[bytes]:
        del name
        return [payload]

    @override
    def stop(self, finish: Callable[[], None]) -> None:
        del finish
