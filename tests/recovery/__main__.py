"""Runs the model of recovery: ``python -m tests.recovery --runs 1000 --seed 1``.

``--break`` leaves a rule out; violations should follow. The last line is JSON.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.recovery.defects import MEANINGS, Defect
from tests.recovery.protocol import Durability, Mode
from tests.recovery.run import Run
from tests.recovery.world import ViolationError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 1 if there were violations."""
    options = _options(arguments)
    began, counts = time.process_time(), Counter[str]()
    found: list[tuple[str, str, int, str, str]] = []
    for mode in options.mode or Mode:
        for durability in options.durability or Durability:
            for seed in range(options.seed, options.seed + options.runs):
                run = Run(seed, mode, durability, frozenset(options.defects))
                try:
                    run.play()
                except ViolationError as violation:
                    found.append((mode, durability, seed, violation.kind, violation.facts))
                counts.update(run.world.counts)
                counts["runs"] += 1
    for each in found[: options.show]:
        print("violation", *each)
    report = {
        **counts,
        "violations": len(found),
        "kinds": Counter(each[3] for each in found),
        "seed": options.seed,
        "first": found[0][:4] if found else None,
        "break": options.defects,
        "cpu_s": round(time.process_time() - began, 1),
    }
    print(json.dumps(report))
    return 1 if found else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    rules = "\n".join(f"  {defect:28}{MEANINGS[defect]}" for defect in Defect)
    parser = argparse.ArgumentParser(
        prog="python -m tests.recovery",
        description="Runs the executable model of recovery.",
        epilog=f"what --break leaves out:\n{rules}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=200, help="of each mode and durability")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--mode", type=Mode, action="append", choices=list(Mode))
    parser.add_argument(
        "--durability", type=Durability, action="append", choices=list(Durability)
    )
    parser.add_argument(
        "--break",
        dest="defects",
        type=Defect,
        action="append",
        default=[],
        choices=list(Defect),
        metavar="RULE",
        help="leave this rule out; may be given several times",
    )
    parser.add_argument("--show", type=int, default=3, help="how many violations to print")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
