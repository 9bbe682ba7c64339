"""The suite of tables runs over every case. Speed is not judged."""

import table
import table_fbgemm
from harness import Rounds


def test_every_case_has_its_figures() -> None:
    found = table.measure(budget_s=0.0, sizes=(2_000,), batch=256)

    rates = {row["case"]: row["M rows/s"] for row in found["rows"] if "case" in row}
    for rule in table.RULES:
        assert {f"push {rule} uniform", f"push {rule} zipf"} <= rates.keys()
    assert all(least > 0 for _median, least, _most in rates.values())
    assert {row["filled"] for row in found["rows"] if "filled" in row} == set(table.RULES)
    assert set(found["summary"]) == {
        "table_pull_vs_gather_limit",
        "table_push_sgd_vs_rmw_limit",
        "push_adam_vs_push_sgd",
        "push_adam_vs_rmw_limit",
        "two_threads_vs_one",
        "limit_two_threads_vs_one",
        "worst_insert_batch_ms",
        "worst_insert_batch_unprepared_ms",
        "memory_ratio_sgd",
        "memory_ratio_adagrad",
        "table_pull_vs_fbgemm",
        "table_push_sgd_vs_fbgemm",
    }


def test_a_peer_that_is_not_installed_has_no_ratio_and_one_that_is_has_its_own() -> None:
    rounds = Rounds(["pull hit uniform", "push sgd uniform"])
    assert set(table_fbgemm.ratios(rounds).values()) == {None}

    rounds.figures = {
        "pull hit uniform": [30.0, 40.0, 60.0],
        "fbgemm lookup uniform": [20.0, 20.0, 20.0],
        "push sgd uniform": [20.0, 20.0, 20.0],
        "fbgemm update uniform": [0.5, 1.0, 2.0],
    }
    assert table_fbgemm.ratios(rounds) == {
        "table_pull_vs_fbgemm": 2.0,
        "table_push_sgd_vs_fbgemm": 20.0,
    }
