"""Gives odd bytes to what reads disks: ``python -m tests.fuzz --cases 100000 --seed 1``.

The last line is JSON. A case that is neither read nor refused ends it with 1, and the last line
says how to run that case again.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from tests.fuzz.readers import readers
from tests.fuzz.running import BrokenCaseError, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 1 if a case went wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--cases", type=int, default=100_000, help="of all readers, or of --only"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", help="one reader")
    options = parser.parse_args(arguments)
    report: dict[str, object] = {"seed": options.seed, "first": options.first, "cases": 0}
    total = 0
    with readers() as known:
        if options.only and options.only not in known:
            parser.error(f"no reader {options.only!r}; there are {', '.join(known)}")
        for name, reader in known.items():
            if options.only not in {None, name}:
                continue
            cases = options.cases if options.only else round(options.cases * reader.share)
            try:
                found = run(reader, seed=options.seed, first=options.first, cases=cases)
            except BrokenCaseError as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 1
            total += found.cases
            report[name] = {
                "cases": found.cases,
                "refused": found.refused,
                "seconds": round(found.seconds, 1),
                "growth_mib": found.growth_bytes >> 20,
            }
            print(name, report[name], flush=True)
    print(json.dumps({**report, "cases": total}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
