"""What is to fail in one run, all of it from a seed, in logical points and not in times."""

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

__all__ = [
    "ELASTIC",
    "MODES",
    "MOVING_PACE_MS",
    "NUM_SERVERS",
    "NUM_WORKERS",
    "RETURNING",
    "Kill",
    "Mode",
    "Move",
    "Order",
    "Plan",
    "plan_from",
    "plan_run",
]

Mode = Literal["sync", "async", "geo", "localsgd"]

MODES: Final[tuple[Mode, ...]] = get_args(Mode)

NUM_SERVERS = 2

NUM_WORKERS = 2

STEPS = 162
"""A multiple of 6: GEO exchanges every 2 steps, and LocalSGD every 3."""

PACE_MS = 4
"""Least time of a step: else GEO has ended before its exchanges have met a fault."""

MOVING_PACE_MS = 60
"""Where groups move or are followed: else the training is over before that has begun."""

ELASTIC: Final = frozenset({"async", "geo"})
"""Modes whose jobs go on without a worker that dies."""

RETURNING: Final[frozenset[Mode]] = frozenset({"sync", "localsgd"})
"""Modes whose workers are started again when they die, and end with all their steps."""

_COMMANDS = {"sync": 2.0, "async": 2.0, "geo": 1.0, "localsgd": 0.6}
"""Changes that a pserver takes for each step."""

_POINTS = (
    "before_apply", "after_apply_before_log", "after_log_before_answer", "before_write",
    "before_sync", "after_sync",
)  # fmt: skip
"""Points that a pserver reaches amid its training."""

_WHEN_FOLLOWED = {"follower_snapshot_half": 2, "before_append_ack": 60}
"""Points that the process reaches that follows a group, and how often at least, or nearly."""

_WHEN_MOVED = {"handover_fenced": 2, "handover_promoted": 2}
"""Points of the two processes between which a group moves."""

_OF_LOG = frozenset({"before_write", "before_sync", "after_sync"})
"""Those of the log's thread, which writes several commands at once."""

_COMMANDS_A_WRITE = 6

_ONE_IN = 3
"""Seeds, of which one has moves or replicas. Modes take turns of 4: each mode has its part."""

_MOVES = 3
"""In a run whose seed has some."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that is killed from outside."""

    process: str
    """``pserver-1``, ``worker-1``, ``coordinator-0`` or ``redis-0``."""
    step: int
    """Of worker 0, after which it is killed."""


@dataclass(frozen=True, slots=True)
class Move:
    """Groups that are spread anew while the job trains."""

    step: int
    """Of worker 0, after which it is asked for."""
    processes: int
    """Pservers that there are to be then."""


@dataclass(frozen=True, slots=True)
class Order:
    """A command that hurts a process."""

    step: int
    """Of worker 0, after which it is given."""
    words: tuple[str, ...]
    """Behind ``paramfleet chaos``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One run."""

    seed: int
    mode: Mode
    durability: Literal["async", "sync"] = "async"
    steps: int = STEPS
    max_staleness: int | None = None
    """async: how far a worker may lead; None for any lead."""
    failpoints: str = ""
    faults: str = ""
    pace_ms: int = PACE_MS
    elastic: bool = False
    """Whether the job goes on without workers that die: of async and GEO."""
    replicas: int = 0
    """Pservers that follow each one, as of ``paramfleet launch``."""
    moves: tuple[Move, ...] = ()
    orders: tuple[Order, ...] = ()
    kills: tuple[Kill, ...] = ()
    defects: str = ""

    def facts(self) -> dict[str, Any]:
        """Return the plan in plain values."""
        return asdict(self)


def plan_from(facts: Mapping[str, Any]) -> Plan:
    """Rebuild a plan from its facts.

    Raises:
        KeyError: if one is missing.
        TypeError: if they are none of a plan.
    """
    kills = tuple(Kill(**kill) for kill in facts["kills"])
    moves = tuple(Move(**move) for move in facts.get("moves", ()))
    orders = tuple(
        Order(each["step"], tuple(each["words"])) for each in facts.get("orders", ())
    )
    return Plan(**{**facts, "kills": kills, "moves": moves, "orders": orders})


def plan_run(
    seed: int,
    mode: Mode,
    durability: Literal["async", "sync"] = "async",
    *,
    replicas: int | None = None,
    moves: int | None = None,
) -> Plan:
    """Return the plan of a seed: the same each time.

    Where it isn't said, every third seed has replicas, moves, or both.

    Args:
        seed: Of the run.
        mode: How it trains.
        durability: How pservers write to their disks.
        replicas: Pservers that follow each one; None if the seed says so.
        moves: How often groups are spread over more pservers, or fewer; None likewise.
    """
    kind = seed // _ONE_IN % 3 if seed % _ONE_IN == 0 else None
    replicas = int(kind in {0, 2}) if replicas is None else replicas
    moves = (_MOVES if kind in {0, 1} else 0) if moves is None else moves
    chance = random.Random(f"{seed}/{mode}/{durability}")  # noqa: S311 -- repeats by its seed
    points: list[str] = []
    kills: list[Kill] = []
    for server in range(NUM_SERVERS):
        deaths = chance.choice((0, 1, 1, 2) if server else (1, 1, 2))
        points += _deaths_of(server, deaths, mode, chance, kills)
    if chance.random() < 0.4:
        point = chance.choice(("before_placement_written", "after_placement_written"))
        points.append(f"{point}=kill@{chance.randint(1, 4)}")
    if chance.random() < 0.25:
        kills.append(Kill("redis-0", chance.randint(STEPS // 8, STEPS * 7 // 8)))
    if chance.random() < 0.3:
        server, first = chance.randrange(NUM_SERVERS), chance.randint(2, 30)
        points.append(f"pserver-{server}:before_write=full@{first}-{first + 3}")
    if chance.random() < 0.2:
        server, nth = chance.randrange(NUM_SERVERS), chance.randint(2, 40)
        points.append(f"pserver-{server}:before_sync=stop@{nth}")
    if chance.random() < 0.3:
        worker, late_ms = chance.randrange(NUM_WORKERS), chance.randint(5, 50)
        first = chance.randint(5, 60)
        points.append(f"worker-{worker}:after_answer=delay:{late_ms}@{first}-{first + 9}")
    faults = ""
    if chance.random() < 0.75:  # without, calls take the shorter way through the client
        faults = f"drop=0.01,duplicate=0.01,delay=0.02:20,reorder=0.02:20,seed={seed}"
    bounded = mode == "async" and chance.random() < 0.5
    staleness = chance.randint(1, 6) if bounded else None
    elastic = mode in ELASTIC and chance.random() < 0.4
    if elastic or (mode in RETURNING and chance.random() < 0.4):
        points += _death_of_worker(chance, kills)
    spread = sorted(chance.sample(range(STEPS // 8, STEPS * 7 // 8), moves))
    points += _deaths_when_followed(replicas, moves, chance)
    if chance.random() < 0.25:
        _forget(mode in RETURNING or elastic, chance, kills)
    return Plan(
        seed=seed,
        mode=mode,
        durability=durability,
        max_staleness=staleness,
        elastic=elastic,
        replicas=replicas,
        pace_ms=MOVING_PACE_MS if replicas or moves else PACE_MS,
        moves=tuple(
            Move(step, NUM_SERVERS * (1 + each % 2)) for each, step in enumerate(spread, 1)
        ),
        failpoints=";".join(points),
        faults=faults,
        kills=tuple(sorted(kills, key=lambda kill: kill.step)),
    )


def _forget(workers_may_die: bool, chance: random.Random, kills: list[Kill]) -> None:  # noqa: FBT001
    """Kill the coordinator; perhaps all others, too, who know the members of the job."""
    step = chance.randint(STEPS // 8, STEPS * 7 // 8)
    kills.append(Kill("coordinator-0", step))
    if chance.random() < 0.6:
        kills.append(Kill("redis-0", step))
        if workers_may_die:
            kills.append(Kill("worker-1", step))


def _deaths_when_followed(replicas: int, moves: int, chance: random.Random) -> list[str]:
    """Return the failpoints at which a process dies that follows a group, or hands one over."""
    reached = _WHEN_FOLLOWED if replicas or moves else {}
    reached = reached | (_WHEN_MOVED if moves else {})
    if not reached or chance.random() < 0.3:
        return []
    point = chance.choice(sorted(reached))
    server = chance.randrange(2 * NUM_SERVERS if moves else NUM_SERVERS)
    return [f"pserver-{server}:{point}=kill@{chance.randint(1, reached[point])}"]


def _death_of_worker(chance: random.Random, kills: list[Kill]) -> list[str]:
    """Return the failpoint at which worker 1 dies; none if it is killed from outside."""
    if chance.random() < 0.5:
        kills.append(Kill("worker-1", chance.randint(STEPS // 8, STEPS * 3 // 4)))
        return []
    point = chance.choice(("before_send", "after_answer"))
    return [f"worker-1:{point}=kill@{chance.randint(STEPS // 8, STEPS // 3)}"]


def _deaths_of(
    server: int, deaths: int, mode: Mode, chance: random.Random, kills: list[Kill]
) -> list[str]:
    """Return the failpoints at which a pserver dies; its other deaths go into ``kills``."""
    points = []
    expected = int(STEPS * _COMMANDS[mode])
    for life in range(1, deaths + 1):
        way = chance.random()
        if way < 0.3:
            step = chance.randint(STEPS // 10, STEPS * 9 // 10)
            kills.append(Kill(f"pserver-{server}", step))
        elif life == 1 and way < 0.45:
            nth = chance.choice(
                (1, chance.randint(2, 60))
            )  # the first snapshot, or a later one
            points.append(f"pserver-{server}:snapshot_half_written=kill@{nth}")
        elif life > 1 and way < 0.6:
            nth = chance.randint(1, max(2, expected // 4))
            points.append(f"pserver-{server}:while_replaying=kill@{nth}#{life}")
        elif life > 1 and way < 0.7:
            points.append(f"pserver-{server}:before_join_answer=kill@1#{life}")
        else:
            point = chance.choice(_POINTS)
            most = expected // (life * (_COMMANDS_A_WRITE if point in _OF_LOG else 1))
            nth = chance.randint(2, max(3, most * 3 // 4))
            points.append(f"pserver-{server}:{point}=kill@{nth}#{life}")
    return points
