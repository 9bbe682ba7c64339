"""Counts what costs a peer nothing and this side something."""

from paramfleet_shared.net.http2.events import ConnectionFault
from paramfleet_shared.net.http2.frames import ErrorCode
from paramfleet_shared.net.wire.limits import Limits

__all__ = ["FloodGuard"]

_WINDOW_S = 1.0


class FloodGuard:
    """Rates over the running second; over a limit the connection ends.

    Rapid reset is CVE-2023-44487; the others are those of CVE-2019-9511 to 9518.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._window_start = float("-inf")
        self._num_control = 0
        self._num_resets = 0

    def count_control(self, now: float) -> None:
        """Note a frame that asks for work and carries nothing.

        Raises:
            ConnectionFault: if there are too many.
        """
        self._turn_window(now)
        self._num_control += 1
        if self._num_control > self._limits.max_control_frames_per_s:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "control frame flood")

    def count_reset(self, now: float) -> None:
        """Note a stream that the peer opened and reset.

        Raises:
            ConnectionFault: if there are too many.
        """
        self._turn_window(now)
        self._num_resets += 1
        if self._num_resets > self._limits.max_resets_per_s:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "rapid reset")

    def _turn_window(self, now: float) -> None:
        if now - self._window_start > _WINDOW_S:
            self._window_start = now
            self._num_control = self._num_resets = 0
