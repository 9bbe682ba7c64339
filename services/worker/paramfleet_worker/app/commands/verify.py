"""``paramfleet verify``: whether a job loses or doubles a change when its processes die."""

import asyncio
import contextlib
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from paramfleet_shared.errors import ContractError
from paramfleet_shared.settings.cli import BoundedCommand, echo
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_worker.app.commands.arguments import FiniteRange
from paramfleet_worker.app.commands.outcomes import exit_code_of
from paramfleet_worker.app.verify.plan import MODES, Plan, plan_from, plan_run
from paramfleet_worker.app.verify.running import Ran, run_plan
from paramfleet_worker.process.prepared.running import PreparedProcess

__all__ = ["PlanFileError", "summary_of", "too_slow", "verify"]


class PlanFileError(ContractError):
    """A file holds no plan."""

    code = "contract.plan_file"
    path: str
    reason: str
    sentence = "{path} holds no plan of `paramfleet verify`: {reason}"


@click.command("verify", cls=BoundedCommand)
@click.option("--runs", type=click.IntRange(1, 1_000_000), default=4, help="Jobs to run.  [4]")
@click.option(
    "--mode",
    type=click.Choice([*MODES, "all"]),
    default="all",
    help="Training mode; all runs one mode after the other.  [all]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 1 << 53),
    default=1,
    help="Seed of run 1.  [1]",
)
@click.option(
    "--durability",
    type=click.Choice(["async", "sync"]),
    default="async",
    help="As for paramfleet launch.  [async]",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=None,
    help="Number of runs at the same time.  [one for each core]",
)
@click.option(
    "--replicas",
    type=click.IntRange(0, 1),
    default=None,
    help="As for paramfleet launch.  [1 in some of the runs]",
)
@click.option(
    "--moves",
    type=click.IntRange(0, 8),
    default=None,
    help="How many times each run adds or removes pservers.  [3 in some of the runs]",
)
@click.option(
    "--within",
    type=FiniteRange(min=1.0),
    default=60.0,
    help="Seconds after a kill in which every worker must complete a step again.  [60]",
)
@click.option(
    "--fresh",
    is_flag=True,
    help="Start each process as a new interpreter instead of a fork.",
)
@click.option(
    "--plan",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Repeat a failed run from its plan.json, instead of using the seed.",
)
@click.option("--json", "as_json", is_flag=True, help="Also print each run as a line of JSON.")
def verify(**options: Any) -> None:
    """Kill processes of small jobs and check the results.

    Checks that no change is lost and none is applied twice. Each run is a job of two pservers
    and two workers on this machine, with a data folder. The seed decides which processes are
    killed at which point, and which messages the network loses. In a third of the runs pservers
    are added and removed, or have replicas. A run that gives a wrong result, or stops for too
    long, is reported with its seed, and its folder is kept. The last line is JSON. The exit
    code is 0 only if all runs were correct.
    """
    sys.exit(exit_code_of("verify", lambda: _verify(options)))


def summary_of(all_ran: Sequence[Ran], seed: int) -> dict[str, Any]:
    """Return what the last line says.

    Args:
        all_ran: Every run.
        seed: Of the first.
    """
    took = sorted(s for ran in all_ran for s in ran.recovery_s)
    return {
        "runs": len(all_ran),
        "failed": sum(bool(ran.problems) for ran in all_ran),
        "kills": sum(len(ran.kills) for ran in all_ran),
        "migrations": sum(ran.moves for ran in all_ran),
        "acked": sum(ran.acked for ran in all_ran),
        "lost": sum(ran.lost for ran in all_ran),
        "doubled": sum(ran.doubled for ran in all_ran),
        "recovery_p50_s": _percentile(took, 50),
        "recovery_p99_s": _percentile(took, 99),
        "seed": seed,
    }


def _verify(options: dict[str, Any]) -> int:
    """Run all; return the exit code.

    Raises:
        PlanFileError: if the file of a plan holds none.
    """
    plans = _plans(options)
    jobs = options["jobs"] or max(1, os.cpu_count() or 1)
    with contextlib.ExitStack() as stack:
        if not options["fresh"]:
            prepared = PreparedProcess()
            stack.callback(prepared.close)
            stack.enter_context(prepared.prepared.starting())
        all_ran = asyncio.run(
            _run_all(plans, jobs, options["within"], as_json=options["as_json"])
        )
    echo(json.dumps(summary_of(all_ran, plans[0].seed)))
    return 1 if any(ran.problems for ran in all_ran) else 0


def too_slow(ran: Ran, within_s: float) -> list[str]:
    """Return the recoveries of a run that took longer than they may, in words."""
    return [
        f"workers stood still for {seconds:.1f} s after a kill, and {within_s:g} s are allowed"
        for seconds in ran.recovery_s
        if seconds > within_s
    ]


async def _run_all(
    plans: Sequence[Plan], jobs: int, within_s: float, *, as_json: bool
) -> list[Ran]:
    """Run all plans, so many at once, and show each one that has ended."""
    clock, slots, all_ran = SystemClock(), asyncio.Semaphore(jobs), []

    async def run(plan: Plan) -> None:
        async with slots:
            folder = Path(tempfile.mkdtemp(prefix="paramfleet-verify-"))
            ran = await run_plan(plan, folder, read_environment(), clock)
        ran.problems += too_slow(ran, within_s)
        all_ran.append(ran)
        if as_json:
            echo(json.dumps(_facts(ran)))
        else:
            _tell(f"run {len(all_ran)} of {len(plans)}", ran)
        if not ran.problems:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async with asyncio.TaskGroup() as group:
        for plan in plans:
            group.create_task(run(plan))
    return all_ran


def _plans(options: dict[str, Any]) -> list[Plan]:
    if options["plan"] is not None:
        return [_read_plan(options["plan"])] * options["runs"]
    modes = MODES if options["mode"] == "all" else (options["mode"],)
    return [
        plan_run(
            options["seed"] + run,
            modes[run % len(modes)],
            options["durability"],
            replicas=options["replicas"],
            moves=options["moves"],
        )
        for run in range(options["runs"])
    ]


def _read_plan(path: Path) -> Plan:
    """Return the plan in a file.

    Raises:
        PlanFileError: if there is none.
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return plan_from(facts)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PlanFileError(path=str(path), reason=repr(error)) from error


def _tell(which: str, ran: Ran) -> None:
    """Show a run to a person."""
    plan = ran.plan
    took = ", ".join(f"{seconds:.2f}" for seconds in ran.recovery_s) or "none"
    outcome = "wrong" if ran.problems else "right"
    echo(
        f"{which}, seed {plan.seed}, {plan.mode}: {outcome}, in {ran.seconds:.1f} s; "
        f"{len(ran.kills)} kills, {ran.moves} moves, {ran.acked} changes, "
        f"seconds to recover: {took}"
    )
    if not ran.problems:
        return
    for problem in ran.problems:
        echo(f"    {problem}")
    echo(f"    plan: {json.dumps(plan.facts())}")
    echo(f"    logs: {ran.folder}")
    again = f"--replicas {plan.replicas} --moves {len(plan.moves)} "
    again += f"--runs 1 --seed {plan.seed} --mode {plan.mode} --durability {plan.durability}"
    echo(f"    again: paramfleet verify {again}")


def _facts(ran: Ran) -> dict[str, Any]:
    return {
        "plan": ran.plan.facts(),
        "problems": ran.problems,
        "folder": str(ran.folder) if ran.problems else None,
        "seconds": round(ran.seconds, 2),
        "kills": len(ran.kills),
        "migrations": ran.moves,
        "acked": ran.acked,
        "lost": ran.lost,
        "doubled": ran.doubled,
        "recovery_s": ran.recovery_s,
    }


def _percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Return the number that so many of a hundred don't exceed; None if there are none."""
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)], 3)
