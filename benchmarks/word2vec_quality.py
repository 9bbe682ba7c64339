"""What GEO costs word2vec: ``python benchmarks/word2vec_quality.py --seeds=1,2``.

models/recall/word2vec on both texts of ``PARAMFLEET_DATA``, five epochs, in one process and by
two workers in GEO; then analogies and word similarity. It takes minutes a run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import Suite, markdown_table, with_machine, write_json
from paramfleet_shared.system.processes.keeping import tied
from texts import data_folder, write_text
from word2vec import CONFIG, PERIOD

__all__ = ["compare"]

TEXTS = ("novels50.txt.xz", "text8_head.txt.xz")
JUDGEMENTS = ("questions-words.txt.gz", "EN-WS-353-ALL.txt.gz", "EN-RG-65.txt.gz")
SCORES = ("analogy_accuracy", "similarity", "similarity_EN-WS-353-ALL", "similarity_EN-RG-65")
COMMANDS = {
    "single": ("train",),
    "geo": ("launch", "--worker_num=2", "--server_num=1"),
}

METHOD = f"""\
models/recall/word2vec as its configuration has it (rows of 100, window 5, 5 negatives, batches
of 512 words), {{epochs}} epochs, in one process and by two workers and a server in GEO with an
exchange every {PERIOD} steps. The gap is what GEO's mean over the seeds lacks of the single
process's, as a share of it: less than 0 if GEO is better. `similarity` is the mean of both
sets of pairs."""


def compare(seeds: Sequence[int], *, epochs: int, most_words: int | None) -> Suite:
    """Train with each seed in both ways, and compare the scores.

    Raises:
        SystemExit: if there is no text.
    """
    source = data_folder()
    if source is None:
        message = "PARAMFLEET_DATA names no folder of texts"
        raise SystemExit(message)
    rows = []
    with tempfile.TemporaryDirectory(prefix="word2vec-") as name:
        folder = Path(name)
        what = write_text(folder / "text", names=TEXTS, most_words=most_words)
        (folder / "test").mkdir()
        for judgement in JUDGEMENTS:
            (folder / "test" / judgement).write_bytes((source / judgement).read_bytes())
        for seed in seeds:
            for how, command in COMMANDS.items():
                keys = {
                    "runner.train_data_dir": folder / "text",
                    "runner.test_data_dir": folder / "test",
                    "runner.epochs": epochs,
                    "runner.seed": seed,
                    "runner.print_interval": 0,
                    "runner.model_save_path": "",
                    "runner.geo_step": PERIOD,
                }
                result = _train(command, keys, folder)
                scores = {score: result.get(score, 0.0) for score in SCORES}
                rows.append({"how": how, "seed": seed, **scores, "seconds": result["seconds"]})
                print(*markdown_table(rows[-1:]), sep="\n", flush=True)
    gaps = {score: _gap(rows, score) for score in SCORES}
    return {
        "benchmark": "word2vec_quality",
        "rows": rows,
        "summary": {
            "word2vec_similarity_gap": gaps["similarity"],
            "word2vec_analogy_gap": gaps["analogy_accuracy"],
        },
        "method": METHOD.format(epochs=epochs),
        "details": {"text": what, "gaps": gaps},
    }


def _train(command: Sequence[str], keys: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run a command on the model; return its result."""
    options = [f"{key}={value}" for key, value in keys.items()]
    ended = subprocess.run(
        tied(
            [sys.executable, "-m", "paramfleet_worker", *command, "-m", str(CONFIG), *options]
        ),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


def _gap(rows: Sequence[dict[str, Any]], score: str) -> float:
    """Return what GEO's mean lacks of the single process's, as a share of it."""
    means = {}
    for how in COMMANDS:
        values = [row[score] for row in rows if row["how"] == how]
        means[how] = sum(values) / len(values)
    return (means["single"] - means["geo"]) / means["single"] if means["single"] else 0.0


def main() -> None:
    """Compare, and print the result as one JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--most_words", type=int, help="of the text")
    parser.add_argument("--output", type=Path, help="write the result here too")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    result = with_machine(
        lambda: compare(seeds, epochs=options.epochs, most_words=options.most_words)
    )
    if options.output is not None:
        write_json(options.output, result)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
