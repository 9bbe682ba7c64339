"""A training with rows on disk: ``python benchmarks/cold_training.py --folder DIR``.

See README.md beside this file.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from conditions import quotients
from device import PAGE_BYTES, has_fio, random_reads, reads_beside
from harness import QUICK_BUDGET_S, Suite, markdown_table, suite_of, with_machine, write_json
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.system.processes.own_modules import module_command
from paramfleet_shared.tables.disk.access.transfers import Transfers
from paramfleet_shared.tables.disk.shards.moving import BESIDE_BYTES
from paramfleet_shared.tables.sparse import INDEX_BYTES
from peer.children import ChildFailedError
from rounds import Ratio, Rounds, Turn, own_cpu_s

BUDGET_S = 240.0
ROWS, QUICK_ROWS = 1_000_000, 20_000
SHARE = 10
"""Of so many rows one is in memory, where the others are on disk."""
DIM, SAMPLES = 16, 512
STEPS, WARM, PASSES = 32, 6, 6
"""Of a pass; passes before those that are measured, so that async has taken its first
``fresh_steps``, whose rows aren't pulled in advance; and these."""
WITHIN_S = 300.0
"""For one job."""
LAST_CHARACTERS = 3000

PAGES, READS = 1 << 16, 20_000
"""Of 4 KiB in the file that the disk's reads are of, and reads where there is no fio."""

MEMORY, TENTH, KNOWN = "memory", "a tenth in memory", "a tenth, passes known"
DEVICE = "device, reads/s"
CASES = (MEMORY, DEVICE, TENTH, KNOWN)
OPTIONS: dict[str, list[str]] = {MEMORY: [], TENTH: ["--counts"], KNOWN: ["--known"]}
"""Of ``work/cold_steps.py``."""

METHOD = f"""\
Samples a second of one worker and one pserver under `paramfleet launch`, in async: {ROWS:,}
rows of {DIM} floats with Adagrad, {SAMPLES} samples of 26 ids a step, drawn by Zipf's law of
exponent 1.05 over all rows, through three layers of 400, with `fleet.prefetch` two batches
ahead. A turn is a job of its own: it makes all rows, trains {WARM} passes of {STEPS} steps, and
then those {PASSES} that are measured. `memory` has no budget, the others one for a tenth of the
rows; in `passes known` the rows of the next pass are asked for by `fleet.prefetch_rows` in the
last quarter of this one, as training by days does. `device` is fio's random reads of 4 KiB, 64
at once, where it is installed, else a bare loop. `vs_allowed` compares with what the slower
allows of the same round: the job in memory, or the disk's reads divided by the rows a sample
read from it. `vs_allowed_with_merges` does so with the reads that fio does beside reads and
writes in order, of as many bytes a second each as were written during that job: rows that
change go back to the disk in merges, which read and write pages. `cpu_us/sample` is the time of
all processors of the machine."""


class Trained(NamedTuple):
    """What one job took for a sample."""

    turn: Turn
    cpu_s: float
    """Seconds of all processors of the machine, whoever used them."""
    misses: float
    """Rows that were read from disk, where they were counted."""
    written_per_s: float
    """Bytes that were written to the disk in a second, whoever did so."""


def measure(folder: Path, *, num_rows: int = ROWS, budget_s: float = BUDGET_S) -> Suite:
    """Measure for about ``budget_s`` seconds in a folder of the disk.

    Raises:
        ChildFailedError: if a job fails, or takes too long.
    """
    rounds = Rounds(CASES, budget_s=budget_s)
    trained: dict[str, list[Trained]] = {case: [] for case in OPTIONS}
    beside: list[float] = []
    """Reads a second beside merges, where there is fio, behind each job of ``TENTH``."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix="cold-training-") as file:
        rng = np.random.default_rng(0)
        file.write(rng.bytes(PAGES * PAGE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        for case in rounds.turns:
            if case == DEVICE:
                rate = random_reads(
                    Path(file.name), num=READS, rng=rng, transfers=Transfers("auto")
                )
                rounds.figures[case].append(Turn(rate, 0.0))
                continue
            trained[case].append(_train(case, folder, num_rows))
            rounds.figures[case].append(trained[case][-1].turn)
            if case == TENTH and has_fio():
                written_per_s = trained[case][-1].written_per_s
                beside.append(reads_beside(Path(file.name), written_per_s))
    allowed = [
        min(memory.rate, device.rate / max(tenth.misses, 1e-9))
        for memory, device, tenth in zip(
            rounds.figures[MEMORY], rounds.figures[DEVICE], trained[TENTH], strict=True
        )
    ]
    vs_allowed = quotients([turn.rate for turn in rounds.figures[TENTH]], allowed)

    with_merges: dict[str, Any] = {}
    if beside:
        bounds = [
            min(memory.rate, rate / max(tenth.misses, 1e-9))
            for memory, rate, tenth in zip(
                rounds.figures[MEMORY], beside, trained[TENTH], strict=True
            )
        ]
        with_merges["vs_allowed_with_merges"] = quotients(
            [turn.rate for turn in rounds.figures[TENTH]], bounds
        )

    def spread(values: Sequence[float]) -> Ratio:
        return Ratio.of(rounds.turns.kept(values))

    def row(case: str) -> dict[str, Any]:
        ratio = {} if case == MEMORY else {"vs_memory": rounds.ratio(case, MEMORY)}
        cpu_us = spread([job.cpu_s * 1e6 for job in trained[case]])
        found = {"samples_per_s": rounds.figure(case), **ratio, "cpu_us/sample": cpu_us}
        return {"case": case, **found}

    tenth_row = row(TENTH) | {
        "misses/sample": spread([job.misses for job in trained[TENTH]]),
        "vs_allowed": spread(vs_allowed),
    }
    tenth_row |= {name: spread(values) for name, values in with_merges.items()}
    if beside:
        tenth_row["reads_per_s_beside_merges"] = spread(beside)

    return suite_of(
        "cold_training",
        rows=[
            row(MEMORY),
            {"case": DEVICE, "reads_per_s": rounds.figure(DEVICE)},
            tenth_row,
            row(KNOWN),
        ],
        headlines={
            "training_tenth_vs_memory": rounds.headline(TENTH, MEMORY),
            "training_known_vs_memory": rounds.headline(KNOWN, MEMORY),
            "training_tenth_vs_allowed": rounds.turns.headline(vs_allowed),
            **{
                f"training_tenth_{name}": rounds.turns.headline(values)
                for name, values in with_merges.items()
            },
        },
        method=METHOD,
        turns={"cold_training": rounds.turns},
    )


def _train(case: str, folder: Path, num_rows: int) -> Trained:
    """Run a job to its end.

    Raises:
        ChildFailedError: if it fails, or takes too long.
    """
    environment = dict(read_environment())
    if case != MEMORY:
        row_bytes = 2 * 4 * DIM + INDEX_BYTES + BESIDE_BYTES
        budget = str(num_rows // SHARE * row_bytes)
        environment["PARAMFLEET_PSERVER__MEMORY_BUDGET_BYTES"] = budget
    with tempfile.TemporaryDirectory(dir=folder, prefix="cold-training-") as name:
        environment["PARAMFLEET_PSERVER__COLD_DIR"] = str(Path(name) / "cold")
        cpu = own_cpu_s()
        ended = subprocess.run(
            tied([*_command(name, num_rows), *OPTIONS[case]]),
            cwd=name,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=WITHIN_S,
        )
        if ended.returncode:
            raise ChildFailedError(ended.stderr[-LAST_CHARACTERS:])
        found = json.loads((Path(name) / "found.json").read_text(encoding="utf-8"))
    samples = PASSES * STEPS * SAMPLES
    turn = Turn(samples / found["seconds"], own_cpu_s() - cpu)
    return Trained(
        turn,
        cpu_s=found["busy"] / samples,
        misses=found["reads"] / samples,
        written_per_s=found["written"] / found["seconds"],
    )


def _command(folder: str, num_rows: int) -> Sequence[str]:
    launch = module_command("paramfleet_worker", "launch")
    script = str(Path(__file__).parent / "work" / "cold_steps.py")
    options = {"rows": num_rows, "dim": DIM, "samples": SAMPLES}
    options |= {"steps": STEPS, "warm": WARM, "passes": PASSES}
    return [
        *(*launch, "--worker-num=1", "--server-num=1", "--log-dir=log", script),
        *(f"--folder={folder}", *(f"--{name}={value}" for name, value in options.items())),
    ]


def main() -> int:
    """Measure, and print the tables and the suite."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="on the disk to measure")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds to measure")
    parser.add_argument("--quick", action="store_true", help="see that it works, in seconds")
    parser.add_argument("--output", type=Path, help="write the result here")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = QUICK_ROWS if options.quick else options.rows
    budget_s = QUICK_BUDGET_S if options.quick else options.budget
    suite = with_machine(lambda: measure(options.folder, num_rows=rows, budget_s=budget_s))
    for line in markdown_table(suite["rows"]):
        print(line)
    for name, value in suite["summary"].items():
        print(f"{name}: {value} {suite['details']['refused'].get(name, '')}")
    if options.output:
        write_json(options.output, suite)
    return 0


if __name__ == "__main__":
    sys.exit(main())
