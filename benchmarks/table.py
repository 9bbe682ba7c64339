"""Rows a second through shards of a sparse table: ``python benchmarks/table.py``.

Beside the bare limits of memory (``table_limits.c``) and torch's own tables. See README.md
beside this file.
"""

import ctypes
import itertools
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import table_fbgemm
import table_torch
from conditions import Headline
from cores import cores_of, cores_of_worker, pin_thread, thread_on
from harness import Suite, run_script, suite_of
from paramfleet_shared.tables.memory.reservation import reserve
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from paramfleet_shared.tables.warm import warm
from rounds import Rounds, Turns, least_rounds

BUDGET_S = 100.0
FULL_FROM_S = 30.0
"""With less time only the smallest table is measured."""

DIM = 16
BATCH = 4096 * 26
SIZES = (1_000_000, 10_000_000)
NUM_BATCHES = 8
BURST = 4
"""Batches of a turn; its figure is their median."""

WIDE = 3 * DIM
"""Floats of a row with Adam's state."""
WIDE_LIMIT = "limit rmw of 192 bytes uniform"

RULES = ("sgd", "momentum", "adagrad", "adam")
LARGE_RULES = ("sgd", "adam")
"""Of tables that aren't the smallest."""

METHOD = (
    "Rows of 16 floats; batches of 106,496 draws, uniform or by Zipf's law of exponent 1.05, "
    "then made different and shuffled, as clients send them; pushes are told so. A turn runs "
    "4 batches of a case, its figure is their median in million rows a second; ratios are of "
    "one round, '_cpu' of processor time. All runs on one core, but two threads have one each. "
    "The limits are C loops that prefetch, and copy (gather) or step (rmw) the 64 "
    "bytes of rows whose places are known. Two threads own a shard of half the rows each, "
    "against one thread that does the same one after the other; so do the threads that show "
    "what memory allows them. Adam's rows and their limit have 192 bytes. The worst insert is "
    "the slowest batch while a table is filled whose pages were made before; 'unprepared' is "
    "with new pages and all. Memory is what the process grows by against 4 bytes a number and "
    "8 an id. torch's tables know dense ids only, and are measured at the smallest size; it "
    "runs with one thread. fbgemm's, where it is installed (see table_fbgemm.py), knows dense "
    "ids only, too, and is measured at every size; its update is a lookup and the backward "
    "pass, by SGD."
)

Cases = dict[str, Callable[[], float]]


class Filled(NamedTuple):
    """A shard, and what filling it took."""

    shard: SparseShard
    worst_ms: float
    worst_cpu_ms: float
    memory_ratio: float


class _Found(NamedTuple):
    """What was measured so far; a larger table's headlines replace a smaller one's."""

    rows: list[dict[str, Any]]
    headlines: dict[str, Headline | None]
    others: dict[str, float | None]
    """Headlines of no rounds."""
    turns: dict[str, Turns]


def measure(
    *, budget_s: float = BUDGET_S, sizes: tuple[int, ...] | None = None, batch: int = BATCH
) -> Suite:
    """Measure for about ``budget_s`` seconds; ``sizes`` and ``batch`` are for tests."""
    if sizes is None:
        sizes = SIZES if budget_s >= FULL_FROM_S else SIZES[:1]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = _Found([], {}, {}, {})
    try:
        with (
            tempfile.TemporaryDirectory(prefix="table-") as folder,
            thread_on(cores_of("client")),
        ):
            limits = _limits(Path(folder))
            for size in sizes:
                part_s = budget_s * (0.6 if size == max(sizes) else 0.2)  # filling takes half
                _measure_size(
                    size,
                    batch,
                    part_s,
                    limits,
                    found,
                    smallest=sizes[0],
                    least=least_rounds(budget_s),
                )
    finally:
        torch.set_num_threads(threads)
    missing = {} if limits else {"limits": "there is no C compiler"}
    rows, headlines, others, turns = found
    if headlines.get("table_pull_vs_fbgemm") is None:
        missing["fbgemm-gpu-cpu"] = "it isn't installed"
    result = suite_of(
        "table",
        rows=rows,
        headlines=headlines,
        method=METHOD,
        turns=turns,
        details={"missing": missing},
    )
    result["summary"] |= others
    return result


def _measure_size(  # noqa: PLR0913 (what differs by size, and what is found)
    size: int,
    batch: int,
    budget_s: float,
    limits: ctypes.CDLL | None,
    found: _Found,
    *,
    smallest: int,
    least: int,
) -> None:
    """Measure tables of one size; add it to ``found``."""
    begun = time.perf_counter()
    rng = np.random.default_rng(0)
    universe = np.unique(rng.integers(0, 2**63, size + size // 8, np.int64))[: size + batch]
    rng.shuffle(universe)
    unknown, universe = universe[size:], universe[:size]
    rules = RULES if size == smallest else LARGE_RULES
    filled = {rule: _fill(rule, universe, batch) for rule in rules}
    shard = filled["sgd"].shard
    draws = {"uniform": _uniform(size, batch, rng), "zipf": _zipf(size, batch, rng)}
    cases: Cases = {}
    for keys, places in draws.items():
        batches = [universe[each] for each in places]
        cases[f"pull hit {keys}"] = _burst(batches, _pull(shard))
        for rule, each in filled.items():
            cases[f"push {rule} {keys}"] = _burst(batches, _push(each.shard))
        if limits is not None:
            cases |= _limit_cases(limits, size, keys, places)
    cases["pull miss uniform"] = _burst([unknown[:batch]], _pull(shard))
    cases |= _thread_cases(universe, draws["uniform"], batch)
    if limits is not None:
        cases |= _limit_thread_cases(limits, size, draws["uniform"])
    if size == smallest:
        for name, act in table_torch.acts(size, DIM, BATCH).items():
            cases[f"torch {name} uniform"] = _burst(draws["uniform"], act)
    for name, act in table_fbgemm.acts(size, DIM, BATCH).items():
        cases[f"fbgemm {name} uniform"] = _burst(draws["uniform"], act)
    for case in cases.values():
        case()  # once, so that all pages and caches are as they will be
    left_s = budget_s - (time.perf_counter() - begun)
    rounds = Rounds(list(cases), budget_s=left_s, least=least)
    rounds.run(cases)
    found.rows.extend(_case_rows(size, rounds, cases))
    found.rows.extend(
        {
            "rows": size,
            "filled": rule,
            "worst_insert_ms": each.worst_ms,
            "worst_insert_cpu_ms": each.worst_cpu_ms,
            "memory_ratio": each.memory_ratio,
        }
        for rule, each in filled.items()
    )
    found.turns[f"{size} rows"] = rounds.turns
    found.headlines.update(_headlines(rounds) | table_fbgemm.headlines(rounds))
    ready = _fill("sgd", universe, batch, prefault=True)
    found.others.update(
        worst_insert_batch_ms=ready.worst_ms,
        worst_insert_batch_unprepared_ms=filled["sgd"].worst_ms,
        memory_ratio_sgd=filled["sgd"].memory_ratio,
        memory_ratio_adagrad=_fill("adagrad", universe, batch).memory_ratio,
    )


def _case_rows(size: int, rounds: Rounds, cases: Cases) -> Iterator[dict[str, Any]]:
    """Tell each case's figure, and its ratio to the limit that it has."""
    for name in cases:
        limit = _limit_of(name)
        has_limit = limit in cases and name.startswith(("pull", "push"))
        yield {
            "rows": size,
            "case": name,
            "M rows/s": rounds.figure(name),
            "cpu ns a row": 1e3 * rounds.cpu_s(name),
            "vs_limit": rounds.ratio(name, limit) if has_limit else None,
            "vs_limit_cpu": rounds.cpu_ratio(name, limit) if has_limit else None,
        }


def _headlines(rounds: Rounds) -> dict[str, Headline | None]:
    pairs = {
        "table_pull_vs_gather_limit": ("pull hit uniform", "limit gather uniform"),
        "table_push_sgd_vs_rmw_limit": ("push sgd uniform", "limit rmw uniform"),
        "push_adam_vs_push_sgd": ("push adam uniform", "push sgd uniform"),
        "push_adam_vs_rmw_limit": ("push adam uniform", WIDE_LIMIT),
        "two_threads_vs_one": ("pull by two threads", "pull by one thread"),
        "limit_two_threads_vs_one": ("limit by two threads", "limit by one thread"),
    }
    return {
        name: rounds.headline(*pair) if pair[1] in rounds.figures else None
        for name, pair in pairs.items()
    }


def _limit_of(name: str) -> str:
    act, keys = name.partition(" ")[0], name.rpartition(" ")[2]
    if name == "push adam uniform":
        return WIDE_LIMIT
    return f"limit {'gather' if act == 'pull' else 'rmw'} {keys}"


def _spec(rule: Any) -> TableSpec:
    return TableSpec(
        name="rows",
        kind="sparse",
        dim=DIM,
        initializer=InitializerSpec(kind="uniform", low=-0.01, high=0.01),
        optimizer=OptimizerSpec(rule=rule),
    )


def _fill(
    rule: str, universe: NDArray[np.int64], batch: int, *, prefault: bool = False
) -> Filled:
    spec = _spec(rule)
    warm(spec)
    out = np.zeros((batch, DIM), np.float32)
    before = _resident_bytes()
    shard = SparseShard(spec, max_rows=universe.size + 2 * batch)
    if prefault:
        shard.prefault(universe.size)
    wall_ms, cpu_ms = [], []
    for start in range(0, universe.size, batch):
        ids = universe[start : start + batch]
        wall, cpu = time.perf_counter(), time.thread_time()
        shard.pull(ids, out[: ids.size], create=True)
        wall_ms.append(1e3 * (time.perf_counter() - wall))
        cpu_ms.append(1e3 * (time.thread_time() - cpu))
    ideal = universe.size * (8 + shard.layout.row_bytes)
    ratio = (_resident_bytes() - before) / ideal
    return Filled(shard, max(wall_ms), max(cpu_ms), ratio)


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:  # not Linux: the most so far, which filling raises
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize()


def _uniform(size: int, batch: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    return [_different(rng.integers(0, size, batch), rng) for _ in range(NUM_BATCHES)]


def _zipf(size: int, batch: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    below = np.cumsum(np.arange(1, size + 1, dtype=np.float64) ** -1.05)
    draws = [np.searchsorted(below, rng.random(batch) * below[-1]) for _ in range(NUM_BATCHES)]
    return [_different(each, rng) for each in draws]


def _different(draws: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    return rng.permutation(np.unique(draws).astype(np.int64))


def _burst(
    batches: list[NDArray[np.int64]], act: Callable[[NDArray[np.int64]], object]
) -> Callable[[], float]:
    """Return a case that runs ``BURST`` batches, and gives their million rows a second."""
    turn = 0

    def run() -> float:
        nonlocal turn
        rates = []
        for _ in range(BURST):
            ids = batches[turn % len(batches)]
            turn += 1
            start = time.perf_counter()
            act(ids)
            rates.append(ids.size / (time.perf_counter() - start) / 1e6)
        return statistics.median(rates)

    return run


def _pull(shard: SparseShard) -> Callable[[NDArray[np.int64]], None]:
    out = np.zeros((BATCH, DIM), np.float32)
    return lambda ids: shard.pull(ids, out[: ids.size], create=False)


def _push(shard: SparseShard) -> Callable[[NDArray[np.int64]], None]:
    grads = np.random.default_rng(1).standard_normal((BATCH, DIM), np.float32)
    return lambda ids: shard.push(ids, grads[: ids.size], lr=0.01, step=1, unique=True)


def _limits(folder: Path) -> ctypes.CDLL | None:
    """Return the compiled loops; None where nothing compiles C."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "limits.so"
    source = Path(__file__).with_name("table_limits.c")
    flags = ["-O3", "-march=native", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", str(library), str(source)], check=True)
    return ctypes.CDLL(str(library))


def _limit_cases(
    limits: ctypes.CDLL, size: int, keys: str, places: list[NDArray[np.int64]]
) -> Cases:
    rows = reserve(size * WIDE, np.float32)
    rows[:] = 1.0
    batch = np.zeros((BATCH, DIM), np.float32)

    def call(function: Any) -> Callable[[NDArray[np.int64]], None]:
        def act(slots: NDArray[np.int64]) -> None:
            # The arrays are named here, so that they live as long as this.
            addresses = [ctypes.c_void_p(each.ctypes.data) for each in (rows, batch, slots)]
            function(*addresses, ctypes.c_int64(slots.size))

        return act

    cases = {
        f"limit gather {keys}": _burst(places, call(limits.gather)),
        f"limit rmw {keys}": _burst(places, call(limits.step)),
    }
    if keys == "uniform":
        cases[WIDE_LIMIT] = _burst(places, call(limits.step_wide))
    return cases


def _thread_cases(
    universe: NDArray[np.int64], places: list[NDArray[np.int64]], batch: int
) -> Cases:
    halves = np.array_split(universe, 2)
    shards = [_fill("sgd", half, batch).shard for half in halves]
    out = np.zeros((2, BATCH, DIM), np.float32)
    batches = [np.stack([half[each % halves[1].size] for half in halves]) for each in places]

    def pull(number: int, ids: NDArray[np.int64]) -> None:
        shards[number].pull(ids[number], out[number, : ids.shape[1]], create=False)

    return _by_threads("pull", pull, batches)


def _limit_thread_cases(
    limits: ctypes.CDLL, size: int, places: list[NDArray[np.int64]]
) -> Cases:
    """Return what memory allows two threads: each gathers from a half of the rows."""
    half = size // 2
    tables = [reserve(half * DIM, np.float32) for _ in range(2)]
    for table in tables:
        table[:] = 1.0
    out = np.zeros((2, BATCH, DIM), np.float32)

    def gather(number: int, slots: NDArray[np.int64]) -> None:
        arrays = (tables[number], out[number], slots[number])
        addresses = [ctypes.c_void_p(each.ctypes.data) for each in arrays]
        limits.gather(*addresses, ctypes.c_int64(slots.shape[1]))

    return _by_threads("limit", gather, [np.stack([each % half] * 2) for each in places])


def _by_threads(
    name: str,
    act: Callable[[int, NDArray[np.int64]], None],
    batches: list[NDArray[np.int64]],
) -> Cases:
    """Return cases that act on both halves by one thread and by two."""
    places = itertools.count()
    pool = ThreadPoolExecutor(2, initializer=lambda: pin_thread(cores_of_worker(next(places))))

    def by_one(ids: NDArray[np.int64]) -> None:
        for number in range(2):
            act(number, ids)

    def by_two(ids: NDArray[np.int64]) -> None:
        list(pool.map(lambda number: act(number, ids), range(2)))

    return {
        f"{name} by one thread": _burst(batches, by_one),
        f"{name} by two threads": _burst(batches, by_two),
    }


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
