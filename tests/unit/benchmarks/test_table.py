"""The suite of tables runs over every case. Speed is not judged."""

import table
import table_fbgemm
from rounds import Rounds, Turn


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
    ours = {"pull hit uniform": 30.0, "push sgd uniform": 20.0}
    assert set(table_fbgemm.headlines(rounds_of(ours)).values()) == {None}

    theirs = {"fbgemm lookup uniform": 15.0, "fbgemm update uniform": 1.0}
    found = table_fbgemm.headlines(rounds_of(ours | theirs))

    values = {name: headline and headline.values for name, headline in found.items()}
    assert values == {"table_pull_vs_fbgemm": [2.0], "table_push_sgd_vs_fbgemm": [20.0]}


def rounds_of(rates: dict[str, float]) -> Rounds:
    """Return a round of cases with these rates."""
    rounds = Rounds(list(rates), max_rounds=1)
    for name in rounds.turns:
        rounds.figures[name].append(Turn(rates[name], 0.0))
    return rounds
