"""Accuracy, bytes and speed of workers that train apart: ``make bench-localsgd``.

Four workers on one machine train a small residual network on MNIST, and a small GPT on
text8. See README.md beside this file.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import Suite, markdown_table, with_machine, write_json
from paramfleet_shared.system.processes.keeping import tied

__all__ = ["measure"]

WORKER = Path(__file__).parent / "work" / "localsgd_worker.py"
NUM_WORKERS = 4
LIMIT_S = 3600.0
"""A whole run is stopped after so long: it hangs."""

IMAGE_STEPS = 944
"""Two epochs of 60,000 images in batches of 4 x 32, as a multiple of 16."""
IMAGE_BATCH = 32
WARM_UP = 50
"""Steps in which the learning rate rises; ADACOMM and post-local go apart behind them."""
IMAGE_RATE = 0.1
SPEED_STEPS = 96
SPEED_ROUNDS = 3
TEXT_STEPS = 2700
TEXT_RATE = 1.5e-2
TEXT_BATCH = 32
TEXT_SIZE = {"context": 32, "width": 32, "depth": 1}

DILOCO = {
    "begin_step": 0,
    "outer_optimizer": "nesterov",
    "outer_lr": 0.7,
    "outer_momentum": 0.85,
}
"""Of so few periods, a momentum of 0.9 would see too little."""
IMAGE_SETTINGS: dict[str, dict[str, Any]] = {
    "k = 1": {"k_steps": 1, "begin_step": 0},
    "k = 2": {"k_steps": 2, "begin_step": 0},
    "k = 4": {"k_steps": 4, "begin_step": 0},
    "k = 8": {"k_steps": 8, "begin_step": 0},
    "k = 16": {"k_steps": 16, "begin_step": 0},
    "ADACOMM": {"k_steps": 16, "interval": "paper", "begin_step": WARM_UP},
    "post-local": {"k_steps": 16, "begin_step": WARM_UP},
    "DiLoCo": {"k_steps": 16, **DILOCO, "outer_lr": 0.9, "outer_momentum": 0.5},
}
OVERLAPPED = "k = 16, overlapped"
SPEED_SETTINGS = {
    name: settings
    for name, settings in IMAGE_SETTINGS.items()
    if name not in {"ADACOMM", "post-local"}
} | {OVERLAPPED: {"k_steps": 16, "begin_step": 0, "overlap_steps": 16}}
TEXT_SETTINGS: dict[str, dict[str, Any] | None] = {
    "DDP": None,
    "DiLoCo, k = 27, int8": {"k_steps": 27, "wire_dtype": "int8", **DILOCO},
}
TEXT_HEADLINE = "DiLoCo, k = 27, int8"

METHOD = f"""\
Four gloo workers of one torch thread each share this machine; each setting has the same
seeds. Images: MNIST, {IMAGE_STEPS} steps of 4 x {IMAGE_BATCH} images, each image once an
epoch; a residual network of 78,000 parameters, SGD with Nesterov momentum 0.9, a warm-up of
{WARM_UP} steps and a cosine to 0. Accuracy is of the 10,000 test images after the last
synchronisation, and a difference is of runs of one seed: its standard error is about 0.1
points a run, 0.06 over three seeds. With SGD, k = 1 is what DDP computes. Text: text8, a GPT
of one block of width 32, {TEXT_STEPS} steps of 4 x {TEXT_BATCH} windows of 32 characters,
AdamW with the same rates for all; the loss is of 196,608 held-out characters, and DDP is
torch's. Bytes are what one worker sends, of a ring all-reduce or of its two halves. Samples/s
are of {SPEED_STEPS} steps with a link of 20 ms and 100 Mbit/s between all workers: an
exchange's result is handed out in real time no sooner than 3 round trips and its bytes took,
so that what is computed meanwhile isn't waited for. The windows of all settings are taken in
turns, and a gain is the median of ratios to k = 1 in one round; ADACOMM's and post-local's
are computed of their numbers of steps and synchronisations, and of what a step and a
synchronisation took at k = 1 and 16."""


def image_runs(folder: Path, seeds: Sequence[int], steps: int) -> Iterator[dict[str, Any]]:
    """Yield the runs that are compared by their accuracy."""
    for seed in seeds:
        for name, settings in IMAGE_SETTINGS.items():
            yield _run("images", f"accuracy/{name}", settings, folder, seed=seed, steps=steps)


def speed_runs(folder: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the runs whose time counts; each round begins with another one."""
    names = list(SPEED_SETTINGS)
    for number in range(rounds):
        for name in (*names[number:], *names[:number]):
            yield _run(
                "images", f"speed/{name}", SPEED_SETTINGS[name], folder, seed=number,
                steps=SPEED_STEPS,
            ) | {"is_linked": True}  # fmt: skip


def text_runs(folder: Path, seeds: Sequence[int], steps: int) -> Iterator[dict[str, Any]]:
    """Yield the runs that are compared by their loss."""
    for seed in seeds:
        for name, settings in TEXT_SETTINGS.items():
            yield _run("text", f"loss/{name}", settings, folder, seed=seed, steps=steps)


def _run(
    task: str,
    name: str,
    settings: dict[str, Any] | None,
    folder: Path,
    *,
    seed: int,
    steps: int,
) -> dict[str, Any]:
    is_text = task == "text"
    return {
        "name": name,
        "task": task,
        "settings": settings,
        "seed": seed,
        "steps": steps,
        "rate": TEXT_RATE if is_text else IMAGE_RATE,
        "batch": TEXT_BATCH if is_text else IMAGE_BATCH,
        "size": TEXT_SIZE if is_text else {},
        "data": {"images": str(folder), "text": str(folder / "text8_head.txt.xz")},
    }


def train(plan: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Let the workers train what is planned; return what they found by name.

    Raises:
        RuntimeError: if a worker failed.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        file, store = Path(folder) / "plan.json", Path(folder) / "store"
        file.write_text(json.dumps(list(plan)), encoding="utf-8")
        workers = [
            subprocess.Popen(
                tied(
                    [
                        sys.executable,
                        str(WORKER),
                        str(rank),
                        str(NUM_WORKERS),
                        str(store),
                        str(file),
                    ]
                ),
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(NUM_WORKERS)
        ]
        try:
            assert workers[0].stdout is not None
            for line in workers[0].stdout:
                print(line, end="", file=sys.stderr, flush=True)
                run = json.loads(line)
                found.setdefault(run["name"], []).append(run)
            failed = [worker.wait(LIMIT_S) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        if any(failed):
            message = f"workers ended with {failed}"
            raise RuntimeError(message)
    return found


def image_rows(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the table of accuracies, bytes and speeds."""
    base = found["accuracy/k = 1"]
    one, sixteen = (_median(found[f"speed/k = {k}"], "seconds") / SPEED_STEPS for k in (1, 16))
    sync_s = (one - sixteen) * 16 / 15
    rows = []
    for name in IMAGE_SETTINGS:
        runs = found[f"accuracy/{name}"]
        syncs, steps = _mean(runs, "syncs"), _mean(runs, "steps")
        losses = [
            first["accuracy"] - run["accuracy"] for first, run in zip(base, runs, strict=True)
        ]
        timed = found.get(f"speed/{name}")
        if timed is None:
            step_s = one - sync_s + sync_s * syncs / steps
            gain = one / step_s - 1
        else:
            step_s = _median(timed, "seconds") / SPEED_STEPS
            gain = _gain(found["speed/k = 1"], timed)
        rows.append({
            "setting": name,
            "accuracy": round(_mean(runs, "accuracy"), 3),
            "loss_points": round(statistics.mean(losses), 3),
            "loss_points_of_seeds": [round(loss, 2) for loss in losses],
            "syncs": round(syncs, 1),
            "fewer_syncs": round(_mean(base, "syncs") / syncs, 2),
            "mb_sent": round(_mean(runs, "bytes") / 1e6, 2),
            "samples_per_s": round(NUM_WORKERS * IMAGE_BATCH / step_s, 1),
            "gain_percent": round(100 * gain, 1),
        })  # fmt: skip
    return rows


def text_rows(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the table of losses and bytes."""
    base = found["loss/DDP"]
    rows = []
    for name in TEXT_SETTINGS:
        runs = found[f"loss/{name}"]
        gaps = [run["loss"] / first["loss"] - 1 for first, run in zip(base, runs, strict=True)]
        rows.append({
            "text setting": name,
            "loss": round(_mean(runs, "loss"), 4),
            "loss_gap_percent": round(100 * statistics.mean(gaps), 2),
            "syncs": round(_mean(runs, "syncs"), 1),
            "mb_sent": round(_mean(runs, "bytes") / 1e6, 3),
            "fewer_bytes": round(_mean(base, "bytes") / _mean(runs, "bytes"), 1),
        })  # fmt: skip
    return rows


def headlines(
    images: Sequence[dict[str, Any]], texts: Sequence[dict[str, Any]]
) -> dict[str, float | None]:
    """Return the figures that the goals are about."""
    by_name = {row["setting"]: row for row in images}
    adaptive = by_name["ADACOMM"]
    best = min(
        (row for row in images if row["fewer_syncs"] >= 8), key=lambda row: row["loss_points"]
    )
    (text,) = (row for row in texts if row["text setting"] == TEXT_HEADLINE)
    return {
        "adacomm_accuracy_loss_points": adaptive["loss_points"],
        "adacomm_sync_reduction": adaptive["fewer_syncs"],
        "best_of_8x_accuracy_loss_points": best["loss_points"],
        "best_of_8x_sync_reduction": best["fewer_syncs"],
        "k16_throughput_gain": by_name["k = 16"]["gain_percent"],
        "k16_accuracy_loss_points": by_name["k = 16"]["loss_points"],
        "diloco_byte_reduction": text["fewer_bytes"],
        "diloco_loss_gap": text["loss_gap_percent"] / 100,
    }


UNITS = {
    "adacomm_accuracy_loss_points": "percentage points of accuracy below k = 1",
    "adacomm_sync_reduction": "synchronisations at k = 1 for each of ADACOMM's",
    "k16_throughput_gain": "percent more samples/s than k = 1 over the link",
    "diloco_byte_reduction": "bytes of DDP for each of DiLoCo's",
    "diloco_loss_gap": "share of DDP's loss that DiLoCo's is above it",
}


def measure(folder: Path, seeds: Sequence[int], *, quick: bool) -> Suite:
    """Train everything, and put the tables together."""
    found = train([
        *image_runs(folder, seeds, SPEED_STEPS if quick else IMAGE_STEPS),
        *speed_runs(folder, 1 if quick else SPEED_ROUNDS),
        *text_runs(folder, seeds, 60 if quick else TEXT_STEPS),
    ])  # fmt: skip
    images, texts = image_rows(found), text_rows(found)
    overlapped = _gain(found["speed/k = 1"], found[f"speed/{OVERLAPPED}"])
    return {
        "benchmark": "localsgd",
        "rows": [*images, *texts],
        "summary": headlines(images, texts),
        "method": METHOD,
        "details": {
            "units": UNITS,
            "seeds": list(seeds),
            "k16_overlapped_throughput_gain": 100 * overlapped,
            "adacomm_periods": [run["k_steps"] for run in found["accuracy/ADACOMM"]],
        },
    }


def _mean(runs: Sequence[dict[str, Any]], key: str) -> float:
    return float(statistics.mean(run[key] for run in runs))


def _median(runs: Sequence[dict[str, Any]], key: str) -> float:
    return float(statistics.median(run[key] for run in runs))


def _gain(base: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]) -> float:
    """Return how much faster runs are than those of the same rounds, as a share."""
    pairs = zip(base, runs, strict=True)
    return (
        float(statistics.median(one["seconds"] / other["seconds"] for one, other in pairs)) - 1
    )


def main() -> int:
    """Measure, print the tables, and the result as one JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data_dir", type=Path, required=True, help="of MNIST and text8")
    parser.add_argument("--output", type=Path, help="write the result here too")
    parser.add_argument("--seeds", default="1,2,3", help="one run of each for each")
    parser.add_argument("--quick", action="store_true", help="see that it works")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    result = with_machine(lambda: measure(options.data_dir, seeds, quick=options.quick))
    table = markdown_table(result["rows"])
    print(*table, sep="\n")
    if options.output is not None:
        write_json(options.output, result)
        options.output.with_suffix(".md").write_text("\n".join(table) + "\n", encoding="utf-8")
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
