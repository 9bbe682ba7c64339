"""What bursts of whole paths come to."""

import pytest

from conditions import Conditions, Headline
from path_figures import BF16, LIMIT_PARTS, LIMITS, Case, Found, Measured, headlines_of, rows_of
from peer.work import Burst, Work
from rounds import Turns

FREE = Conditions(steal=0.0, reference_s=0.02, waiting=0.0)
TAKEN = FREE._replace(steal=0.5)
WORK = Work(rows=1000, dim=4, table_rows=2000)


class Script:
    """A watch that says what it was told to."""

    def __init__(self, conditions: list[Conditions]) -> None:
        self._conditions = iter(conditions)

    def begin(self) -> None:
        pass

    def look(self) -> None:
        pass

    def end(self) -> Conditions:
        return next(self._conditions)


def turns_of(conditions: list[Conditions]) -> Turns:
    turns = Turns(["a"], budget_s=60.0, max_rounds=len(conditions), watch=Script(conditions))
    assert len(list(turns)) == len(conditions)
    return turns


def measured(step_ms: float, cpu_ms: float = 1.0) -> Measured:
    """Return a burst of 10 steps."""
    burst = Burst(wall_s=step_ms / 100, step_ms=[step_ms] * 10, pull_ms=[step_ms / 2] * 10)
    return Measured(burst, server_ms=cpu_ms / 4, client_ms=cpu_ms * 3 / 4)


def found(**step_ms: float) -> Found:
    """Return one round, with the limits at 1 ms each, and 1 and 4 in flight alike."""
    cases = {Case(LIMITS, part): [measured(1.0, 0.0)] for part in LIMIT_PARTS}
    for name, each in step_ms.items():
        cases |= {Case(name, depth): [measured(each, each / 2)] for depth in (1, 4)}
    return cases


def medians(headlines: dict[str, Headline | None]) -> dict[str, float]:
    return {name: each.values[0] for name, each in headlines.items() if each}


def test_each_peer_is_compared_as_it_comes_and_on_its_own_transport() -> None:
    headlines = headlines_of(
        found(ours=2.0, ours_tcp=4.0, grpcio=8.0, torch_rpc=4.0, torch_rpc_tcp=12.0),
        turns_of([FREE]),
    )

    values = medians(headlines)
    assert values["path_vs_grpcio"] == pytest.approx(4.0)
    assert values["path_vs_grpcio_tcp"] == pytest.approx(2.0)
    assert values["path_vs_torch_rpc"] == pytest.approx(2.0)
    assert values["path_vs_torch_rpc_tcp"] == pytest.approx(3.0)
    assert values["path_vs_torch_rpc_tcp_cpu"] == pytest.approx(3.0)
    assert values["path_vs_torch_rpc_tcp_one_in_flight"] == pytest.approx(3.0)
    assert values["path_vs_limits"] == pytest.approx(1.0)
    assert values["path_tcp_vs_limits"] == pytest.approx(0.5)
    assert headlines["path_vs_redis"] is None
    assert headlines["path_vs_redis_tcp_cpu"] is None
    assert headlines["path_bf16_vs_float32"] is None
    assert BF16 not in {name for name, _ in found(ours=1.0)}


def test_a_system_counts_at_the_depth_at_which_it_is_faster() -> None:
    rounds = found(ours=2.0, ours_tcp=2.0, grpcio=8.0)
    rounds[Case("grpcio", 4)] = [measured(4.0)]

    values = medians(headlines_of(rounds, turns_of([FREE])))

    assert values["path_vs_grpcio"] == pytest.approx(2.0)
    assert values["path_vs_grpcio_one_in_flight"] == pytest.approx(4.0)


def test_ratios_and_records_leave_out_rounds_that_do_not_count() -> None:
    turns = turns_of([FREE, TAKEN])
    rounds = {
        case: [*mine, measured(100.0 if case.system == "ours" else 1.0)]
        for case, mine in found(ours=2.0, ours_tcp=4.0, grpcio=8.0).items()
    }

    headline = headlines_of(rounds, turns)["path_vs_grpcio"]
    rows = {(row["system"], row["in flight"]): row for row in rows_of(rounds, WORK, turns)}

    assert headline is not None
    assert headline.values == pytest.approx([4.0])
    assert headline.num_counted == 1
    ours = rows["ours", 1]
    assert ours["step p50 ms"] == 2.0
    assert ours["cpu ms a step"] == pytest.approx(1.0)
    assert ours["of it server"] == pytest.approx(0.25)
    assert rows["grpcio", 4]["ours_tcp is times"].median == pytest.approx(2.0)
    assert rows["grpcio", 4]["ours is times by cpu"].median == pytest.approx(4.0)
    assert rows[LIMITS, "unix"]["ours is times"] is None
    assert rows[LIMITS, "unix"]["cpu ms a step"] is None
