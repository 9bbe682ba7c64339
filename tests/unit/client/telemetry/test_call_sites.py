"""Messages name the call of the script that waits."""

from concurrent.futures import ThreadPoolExecutor

from tests.unit.client.api.test_together import refuse_exchange

from paramfleet.api.collectives import Util
from paramfleet.telemetry.call_sites import waits_in

LINES = 10
"""From the first test's beginning to its call."""


def test_what_the_script_called_is_named_with_its_line() -> None:
    named = list[str]()
    util = Util(
        gather=lambda name, payload: [payload],
        barrier=lambda name: named.append(waits_in(name)),
        rank=lambda: 0,
        size=lambda: 1,
        exchange=refuse_exchange,
    )

    util.barrier()
    line = test_what_the_script_called_is_named_with_its_line.__code__.co_firstlineno + LINES

    assert named == [f"fleet.util.barrier (test_call_sites.py:{line})"]


def test_another_thread_holds_up_no_training() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(waits_in, "fleet.finish").result() == ""
