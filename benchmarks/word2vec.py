"""Words a second of models/recall/word2vec: ``python benchmarks/word2vec.py``.

One process beside gensim, and two workers in GEO beside async, with and without a delay on
the wire. See README.md beside this file.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import paramfleet as fleet
from conditions import MIN_ROUNDS, Headline
from harness import Suite, run_script, suite_of
from jobs import JobShape, run_jobs, training_jobs, turn_of
from paramfleet.runner.config.configuration import read_config
from paramfleet.runner.folders import load_model_class
from paramfleet.runner.showing.display import shown
from paramfleet.runner.training import Trainer
from paramfleet_shared.system.clock import SystemClock
from rounds import Rounds
from texts import SENTENCE, write_text

__all__ = ["CONFIG", "measure"]

BUDGET_S = 60.0
QUICK_S = 20.0
"""A smaller budget takes a tiny text: it shows that everything works, and no speed."""

CONFIG = Path(__file__).parents[1] / "models" / "recall" / "word2vec" / "config.yaml"
TEXT = ("text8_head.txt.xz",)
ROUND_TRIP_S = 0.005
PERIOD = 400
GENSIM = {
    "vector_size": 100, "window": 5, "negative": 5, "sg": 1, "hs": 0, "sample": 1e-3,
    "min_count": 5, "workers": 1, "alpha": 0.025,
}  # fmt: skip

METHOD = f"""\
Rows of 100, window 5, 5 negatives, sample 1e-3, min_count 5; words of text that have a vector
count, thinned out or not. `single` is an epoch of models/recall/word2vec by the runner, in one
process with one thread, text read from a file; gensim's is one of its skip-gram with one
worker thread, from a list of sentences of {SENTENCE} words in memory; in turns. Jobs are two
workers and one pserver on the model's batches of 512 words, which were drawn before; `async`
asks for rows when the forward does, `prefetch` one batch ahead, as the runner does. Between
workers and pserver a proxy hands every byte on 2.5 ms after it came (round trip 5 ms), or at
once. Jobs stay warm, workers have a core each, windows are taken in turns, and a window of GEO
has one exchange in its middle. `_cpu` are ratios of processor time a word. Beside gensim both
may use all cores, because gensim's second thread does."""

SHAPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "async": ("async", ("--send_queue_size=2",)),
    "prefetch": ("async", ("--send_queue_size=2", "--prefetch=1")),
    "geo": ("geo", (f"--k_steps={PERIOD}",)),
}


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure for about ``budget_s`` seconds."""
    quick = budget_s < QUICK_S
    with tempfile.TemporaryDirectory(prefix="word2vec-") as folder:
        text = Path(folder) / "text"
        what = write_text(text, names=TEXT, most_words=40_000 if quick else None)
        begun = time.perf_counter()
        rounds = beside_gensim(text, budget_s=budget_s * 0.3, max_rounds=1 if quick else 1000)
        left_s = budget_s - (time.perf_counter() - begun)
        jobs = run_jobs(_measure_jobs(text, budget_s=left_s, quick=quick))
    singles = [
        {
            "one_process": name,
            "words_per_s": [round(each) for each in rounds.figure(name)],
            "cpu_us_per_word": 1e6 * rounds.cpu_s(name),
        }
        for name in rounds.figures
    ]
    missing = {} if "gensim" in rounds.figures else {"gensim": "it isn't installed"}
    return suite_of(
        "word2vec",
        rows=[*singles, *(_row(case, jobs) for case in jobs.bytes_of)],
        headlines=_headlines(rounds, jobs.rounds),
        method=METHOD,
        turns={"one process": rounds.turns, "jobs": jobs.rounds.turns},
        details={"text": what, "missing": missing},
    )


class _Case(NamedTuple):
    """A job at a distance."""

    job: str
    round_trip_s: float


class _Jobs(NamedTuple):
    """What the windows of all jobs came to."""

    rounds: Rounds
    """By the text of the case."""
    bytes_of: dict[_Case, list[float]]
    """Bytes of a word, round by round."""


def beside_gensim(text: Path, *, budget_s: float, max_rounds: int) -> Rounds:
    """Train epochs of ours and of gensim, if it is installed, in turns."""
    ours = _Single(text)
    cases = {"single": ours.epoch}
    if find_spec("gensim") is not None:
        cases["gensim"] = _Gensim(text, num_words=ours.num_words).epoch
    for case in cases.values():
        case()  # kernels are compiled, rows are there
    rounds = Rounds(list(cases), budget_s=budget_s, max_rounds=max_rounds, least=MIN_ROUNDS)
    rounds.run(cases)
    return rounds


class _Single:
    """The model as ``paramfleet train`` trains it; an epoch's figure is its words a second."""

    def __init__(self, text: Path) -> None:
        options = [
            f"runner.train_data_dir={text}",
            "runner.test_data_dir=",
            "runner.epochs=1000",
        ]
        raw = read_config(CONFIG, [*options, "runner.print_interval=0"])
        cls = load_model_class(raw)
        model: Any = cls(raw.read_as(cls.parameters))
        self.num_words: int = model.vocabulary.num_occurrences
        fleet.init(fleet.PaddleCloudRoleMaker(environment={}))
        self._trainer = Trainer(model, SystemClock())
        self._epoch = 0

    def epoch(self) -> float:
        begun = time.perf_counter()
        with shown(interval=0) as display:
            self._trainer.run_epoch(self._epoch, display, lambda *_: None)
        self._epoch += 1
        return self.num_words / (time.perf_counter() - begun)


class _Gensim:
    """gensim's skip-gram."""

    def __init__(self, text: Path, *, num_words: int) -> None:
        from gensim.models import Word2Vec  # noqa: PLC0415 (of the group 'benchmark')

        self._text = [line.split() for line in text.read_text(encoding="utf-8").splitlines()]
        self._model = Word2Vec(**GENSIM)
        self._model.build_vocab(self._text)
        self._num_words = num_words

    def epoch(self) -> float:
        begun = time.perf_counter()
        self._model.train(self._text, total_examples=len(self._text), epochs=1)
        return self._num_words / (time.perf_counter() - begun)


async def _measure_jobs(text: Path, *, budget_s: float, quick: bool) -> _Jobs:
    now = asyncio.get_running_loop().time
    begun = now()
    tiny = ("--dim=8", "--batches=20") if quick else ()
    shapes = [
        JobShape(
            script="skip_gram",
            mode=mode,
            arguments=(f"--text={text}", *more, *tiny),
            distant=True,
        )
        for mode, more in SHAPES.values()
    ]
    cases = [_Case(name, trip_s) for trip_s in (ROUND_TRIP_S, 0.0) for name in SHAPES]
    names = {str(case): case for case in cases}
    bytes_of: dict[_Case, list[float]] = {case: [] for case in cases}
    async with training_jobs(shapes, warm_steps=20 if quick else PERIOD) as running:
        jobs = dict(zip(SHAPES, running, strict=True))
        left_s = budget_s - (now() - begun)
        rounds = Rounds(
            list(names), budget_s=left_s, max_rounds=1 if quick else 1000, least=MIN_ROUNDS
        )
        for name in rounds.turns:
            case = names[name]
            jobs[case.job].delay(case.round_trip_s / 2)
            window = await jobs[case.job].window(steps=4 if quick else 50)
            jobs[case.job].delay(0.0)
            rounds.figures[name].append(turn_of(window))
            num_words = window["samples_per_s"] * window["seconds"]
            bytes_of[case].append(window["bytes"] / num_words)
    return _Jobs(rounds, bytes_of)


def _row(case: _Case, jobs: _Jobs) -> dict[str, Any]:
    rounds, name, beside = jobs.rounds, str(case), str(case._replace(job="async"))
    return {
        "job": case.job,
        "round_trip_ms": round(case.round_trip_s * 1e3),
        "words_per_s": [round(value) for value in rounds.figure(name)],
        "vs_async": rounds.ratio(name, beside),
        "cpu_us_per_word": 1e6 * rounds.cpu_s(name),
        "vs_async_cpu": rounds.cpu_ratio(name, beside),
        "bytes_per_word": round(statistics.median(rounds.turns.kept(jobs.bytes_of[case]))),
        "rounds": rounds.turns.num_counted,
    }


def _headlines(singles: Rounds, jobs: Rounds) -> dict[str, Headline | None]:
    headlines: dict[str, Headline | None] = {}

    def add(name: str, rounds: Rounds, *pair: str) -> None:
        headlines[name] = rounds.headline(*pair)
        headlines[f"{name}_cpu"] = rounds.cpu_headline(*pair)

    for name, trip_s in (
        ("word2vec_geo_vs_async_rtt5ms", ROUND_TRIP_S),
        ("word2vec_geo_vs_async", 0.0),
    ):
        add(name, jobs, str(_Case("geo", trip_s)), str(_Case("async", trip_s)))
    if "gensim" in singles.figures:
        add("word2vec_vs_gensim", singles, "single", "gensim")
    return headlines


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
