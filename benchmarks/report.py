"""What the suites found, for people: a page of tables, and plots."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from conditions import MIN_ROUNDS
from harness import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["GOALS", "HEADLINES", "HeadlineRecord", "page", "plot", "summary_of"]

HEADLINES: dict[str, dict[str, float | None]] = {
    "transport": {
        "transport_pull_vs_raw_tcp": 0.75,
        "transport_push_vs_raw_tcp": 0.75,
        "small_call_vs_raw_tcp": 0.35,
    },
    "path": {
        "path_vs_torch_rpc": 2.0,
        "path_vs_torch_rpc_cpu": None,
        "path_vs_torch_rpc_tcp": None,
        "path_vs_torch_rpc_tcp_cpu": None,
        "path_vs_grpcio": 3.0,
        "path_vs_grpcio_cpu": None,
        "path_vs_grpcio_tcp": None,
        "path_vs_grpcio_tcp_cpu": None,
        "path_vs_redis": 25.0,
        "path_vs_redis_tcp": None,
        "path_vs_redis_tcp_cpu": None,
        "path_bf16_vs_torch_rpc": 3.0,
    },
    "table": {
        "table_pull_vs_gather_limit": 0.45,
        "table_push_sgd_vs_rmw_limit": 0.3,
        "push_adam_vs_push_sgd": 0.8,
        "table_pull_vs_fbgemm": 1.5,
        "table_push_sgd_vs_fbgemm": 20.0,
    },
    "training": {
        "async_train_vs_single": 1.2,
        "async_train_vs_single_cpu": None,
        "geo_train_vs_single": 1.7,
        "geo_train_vs_single_cpu": None,
    },
    "delay": {
        "geo_vs_async_rtt20ms": 3.0,
    },
    "compression": {
        "wire_bf16_auc_loss": 0.001,
        "wire_int8_auc_loss": 0.002,
    },
    "quality": {
        "quality_async_mean_loss": 0.003,
        "quality_async_worst_loss": 0.006,
        "quality_geo_mean_loss": 0.003,
        "quality_geo_worst_loss": 0.006,
    },
    "word2vec": {
        "word2vec_vs_gensim": 0.5,
        "word2vec_geo_vs_async_rtt5ms": 3.0,
        "word2vec_geo_vs_async": 1.0,
    },
    "word2vec_quality": {
        "word2vec_similarity_gap": 0.01,
    },
    "localsgd": {
        "adacomm_accuracy_loss_points": 0.3,
        "adacomm_sync_reduction": 4.0,
        "best_of_8x_accuracy_loss_points": 0.3,
        "k16_throughput_gain": 14.0,
        "diloco_byte_reduction": 100.0,
        "diloco_loss_gap": 0.01,
    },
    "localsgd_servers": {
        "slow_worker_delay_percent": 5.0,
    },
    "durability": {
        "durability_async_cost": 0.85,
        "durability_async_cost_cpu": None,
        "durability_sync_cost": None,
        "replica_cost": 0.7,
        "replica_cost_cpu": None,
    },
    "recovery": {
        "recovery_p50_s": None,
        "recovery_p99_s": 5.0,
        "recovery_sync_loss_gap": 1e-6,
    },
    "start": {
        "launch_to_first_step_s": 5.0,
        "start_vs_bare": 2.0,
        "import_cpu_s": 0.6,
        "pserver_import_cpu_s": 1.0,
        "first_compile_cpu_s": 25.0,
    },
}
"""The headline figures by suite, in their order, and what each is to reach, if anything."""

WITHOUT_ROUNDS = (
    "compression",
    "quality",
    "localsgd",
    "localsgd_servers",
    "word2vec_quality",
)
"""Suites whose figures are no times: each is of all seeds, or of one."""

GOALS = {name: goal for goals in HEADLINES.values() for name, goal in goals.items()}
"""All of them."""

_AT_MOST = (
    "_loss", "_gap", "_loss_points", "_delay_percent", "_p50_s", "_p99_s", "_cpu_s", "_step_s",
    "_bare",
)  # fmt: skip
"""Names that end so are meant to stay below their goal, all others above it."""


class HeadlineRecord(TypedDict):
    """A headline figure, as the last line of a run and ``summary.json`` have it."""

    value: float | None
    """None where there is none; ``refused`` says why."""
    low: float | None
    high: float | None
    """Least and most of what was measured, also where the value is refused."""
    rounds: int | None
    """Rounds that count, or seeds; 1 of what is measured once, None where a result lacks it."""
    refused: NotRequired[str]
    """Why there is no value."""
    left_out: NotRequired[str]
    """Of figures that this run did not measure: what does."""


def summary_of(
    results: Mapping[str, Mapping[str, Any]], left_out: Mapping[str, str]
) -> dict[str, HeadlineRecord]:
    """Return a record of each headline figure.

    Args:
        results: By suite, as the suites wrote them.
        left_out: Commands that run the suites which this run left out; their results, if there
            are any, are of a former one.
    """
    found = {}
    for suite, goals in HEADLINES.items():
        for name in goals:
            found[name] = _record(suite, name, results.get(suite))
            if suite in left_out:
                found[name]["left_out"] = f"`{left_out[suite]}` measures it"
    return found


def _record(suite: str, name: str, result: Mapping[str, Any] | None) -> HeadlineRecord:
    """Return a headline's record, given the result of its suite, if there is one."""
    if result is None:
        why = "it was never measured"
        return {"value": None, "low": None, "high": None, "rounds": 0, "refused": why}
    value, details = result["summary"].get(name), result.get("details", {})
    is_known = "counted" in details or "failed" in result or suite in WITHOUT_ROUNDS
    alone = value if is_known else None
    seeds = details.get("seeds", 1)
    once = 0 if value is None else seeds if isinstance(seeds, int) else len(seeds)
    _, low, high = details.get("spread", {}).get(name, (value, alone, alone))
    rounds = details.get("counted", {}).get(name, once if is_known else None)
    record: HeadlineRecord = {"value": value, "low": low, "high": high, "rounds": rounds}
    if value is None:
        record["refused"] = details.get("refused", {}).get(name) or _reason(result)
    return record


def _reason(result: Mapping[str, Any]) -> str:
    """Return why a suite has no figure, where it doesn't name the figure."""
    if "failed" in result:
        lines = result["failed"].splitlines()
        return " ".join(["its suite failed:", *lines[:1], *lines[1:][-1:]])
    missing = result.get("details", {}).get("missing", {})
    lacks = "; ".join(f"without {each}: {why}" for each, why in missing.items())
    return lacks or "its suite did not measure it here"


def page(results: Mapping[str, Mapping[str, Any]], plots: Sequence[str]) -> str:
    """Return the results as Markdown.

    Args:
        results: By suite, as the suites wrote them; a failed one has ``failed``.
        plots: Names of the suites that have a plot.
    """
    refused = _told(results, "refused")
    lines = [
        "# Results",
        "",
        "Made by `make bench`; how to read it: [README.md](../README.md).",
        "A figure is `median (least..most)` over the rounds that count. One is refused if",
        f"fewer than {MIN_ROUNDS} count or if they differ too much; its reason stands below.",
        "",
        *_headline_lines(summary_of(results, {}), _told(results, "spread"), refused),
        *_refusal_lines(refused),
    ]
    for name, result in results.items():
        lines += ["", f"## {name}", "", *_suite_lines(result)]
        if name in plots:
            lines += ["", f"![{name}]({name}.png)"]
    machine = next((each["machine"] for each in results.values() if "machine" in each), None)
    if machine is not None:
        lines += ["", "## The machine", "", *_machine_lines(machine)]
    return "\n".join(lines) + "\n"


def _told(results: Mapping[str, Mapping[str, Any]], what: str) -> dict[str, Any]:
    """Return by figure what suites tell of it: its ``spread``, or why it is ``refused``."""
    found: dict[str, Any] = {}
    for result in results.values():
        found.update(result.get("details", {}).get(what, {}))
    return found


def _headline_lines(
    summary: Mapping[str, HeadlineRecord],
    spreads: Mapping[str, Any],
    refused: Mapping[str, str],
) -> list[str]:
    rows = []
    for name, record in summary.items():
        value = record["value"]
        goal, at_most = GOALS[name], name.endswith(_AT_MOST)
        rows.append(
            {
                "figure": f"`{name}`",
                "measured": spreads.get(name, value),
                "goal": None if goal is None else f"{_direction(at_most=at_most)} {goal:g}",
                "reached": "refused"
                if name in refused
                else _reached(value, goal, at_most=at_most),
            }
        )
    return markdown_table(rows)


def _direction(*, at_most: bool) -> str:
    return "at most" if at_most else "at least"


def _reached(value: float | None, goal: float | None, *, at_most: bool) -> str | None:
    if value is None:
        return "not measured"
    if goal is None:
        return None
    return "yes" if (value <= goal if at_most else value >= goal) else "no"


def _refusal_lines(refused: Mapping[str, str]) -> list[str]:
    """Return why each figure is refused, whether it is a headline of all or of its suite."""
    lines = [f"- `{name}` is refused: {why}." for name, why in refused.items()]
    return ["", *lines] if lines else []


def _round_lines(rounds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return of each part of a suite how many rounds count, and why others do not."""
    lines = []
    for part, told in rounds.items():
        line = f"Rounds of {part}: {told['counted']} of {told['run']} count."
        if told["dropped"]:
            why = "; ".join(f"{reason} ({num})" for reason, num in told["dropped"].items())
            line += f" Left out: {why}."
        if not told["counted"]:
            line += " The tables show all of them."
        lines.append(line)
    return lines


def _suite_lines(result: Mapping[str, Any]) -> list[str]:
    if "failed" in result:
        return ["It did not end well:", "", "```", result["failed"].strip(), "```"]
    extra = {name: value for name, value in result["summary"].items() if name not in GOALS}
    details = result.get("details", {})
    spreads = details.get("spread", {})
    load = result["load_average_before"][0], result["load_average_after"][0]
    lines = [*result["method"].splitlines(), "", *markdown_table(result["rows"])]
    if extra:
        cells = [
            {
                "figure": f"`{name}`",
                "measured": spreads.get(name, value),
                "refused": "yes" if name in details.get("refused", {}) else None,
            }
            for name, value in extra.items()
        ]
        lines += ["", *markdown_table(cells)]
    if "rounds" in details:
        lines += ["", *_round_lines(details["rounds"])]
    lines += ["", f"Load average {load[0]} before, {load[1]} after; {result['wall_s']:.0f} s."]
    for name, why in details.get("missing", {}).items():
        lines += [f"Without `{name}`: {why}."]
    return lines


def _machine_lines(machine: Mapping[str, Any]) -> list[str]:
    facts = {name: value for name, value in machine.items() if name != "versions"}
    lines = [f"- {name.replace('_', ' ')}: {value}" for name, value in facts.items()]
    versions = ", ".join(f"{name} {value}" for name, value in machine["versions"].items())
    return [*lines, f"- versions: {versions}"]


def plot(result: Mapping[str, Any], path: Path) -> bool:
    """Draw a suite's records into a PNG, if matplotlib is installed and there are any.

    Returns:
        Whether it was drawn.
    """
    rows = result["rows"]
    if not rows or find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure  # noqa: PLC0415 (of the group 'benchmark')

    groups = list(_groups(rows))
    heights = [1.2 + 0.28 * len(group) for group in groups]
    figure = Figure(figsize=(9, sum(heights)), layout="constrained")
    axes = figure.subplots(len(groups), height_ratios=heights, squeeze=False)
    figure.suptitle(result["benchmark"])
    for area, group in zip(axes[:, 0], groups, strict=True):
        _draw_bars(area, group)
    figure.savefig(path, dpi=110)
    return True


def _groups(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Yield runs of records that have the same keys and a figure; of growth, an axis each."""
    for _, run in groupby(rows, key=lambda row: [*row, row.get("grows")]):
        group = list(run)
        if _figure_key(group[0]) is not None:
            yield group


def _figure_key(row: Mapping[str, Any]) -> str | None:
    """Return a record's first key that holds a measured figure: a float or a spread."""
    return next((k for k, value in row.items() if isinstance(value, float | list)), None)


def _draw_bars(area: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw one bar a record: the median, and a line from the least to the most."""
    key = _figure_key(rows[0])
    assert key is not None, "groups without figures are left out"
    names = list(rows[0])[: list(rows[0]).index(key)]
    labels = [" ".join(f"{row[name]}" for name in names) for row in rows]
    spreads = [
        value if isinstance(value, list) else [value] * 3 for value in _column(rows, key)
    ]
    medians = [spread[0] for spread in spreads]
    errors = [
        [spread[0] - spread[1] for spread in spreads],
        [spread[2] - spread[0] for spread in spreads],
    ]
    area.barh(range(len(rows)), medians, xerr=errors, color="#4878a8", ecolor="#444444")
    area.set_yticks(range(len(rows)), labels)
    area.invert_yaxis()
    area.set_xlabel(key)
    area.grid(visible=True, axis="x", alpha=0.3)
    area.set_axisbelow(True)


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    """Return one figure of all records; what is missing is 0."""
    return [0.0 if row[key] is None else row[key] for row in rows]
