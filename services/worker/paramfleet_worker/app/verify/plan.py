"""What is to fail in one run, all of it from a seed, in logical points and not in times."""

import random
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

__all__ = ["MODES", "NUM_SERVERS", "NUM_WORKERS", "Kill", "Mode", "Plan", "plan_run"]

Mode = Literal["sync", "async", "geo", "localsgd"]

MODES: Final[tuple[Mode, ...]] = get_args(Mode)

NUM_SERVERS = 2

NUM_WORKERS = 2

STEPS = 240

_COMMANDS = {"sync": 2.0, "async": 2.0, "geo": 1.0, "localsgd": 0.6}
"""Changes that a pserver takes for each step."""

_POINTS = (
    "before_apply", "after_apply_before_log", "after_log_before_answer", "before_write",
    "before_sync", "after_sync",
)  # fmt: skip
"""Points that a pserver reaches amid its training."""

_OF_LOG = frozenset({"before_write", "before_sync", "after_sync"})
"""Those of the log's thread, which writes several commands at once."""

_COMMANDS_A_WRITE = 6


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that is killed from outside."""

    process: str
    """``pserver-1`` or ``redis-0``."""
    step: int
    """Of worker 0, after which it is killed."""


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
    kills: tuple[Kill, ...] = ()
    defects: str = ""

    def facts(self) -> dict[str, Any]:
        """Return the plan in plain values."""
        return asdict(self)


def plan_run(seed: int, mode: Mode, durability: Literal["async", "sync"] = "async") -> Plan:
    """Return the plan of a seed: the same each time.

    Args:
        seed: Of the run.
        mode: How it trains.
        durability: How pservers write to their disks.
    """
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
        faults = f"drop=0.01,duplicate=0.01,delay=0.02:20,seed={seed}"
    bounded = mode == "async" and chance.random() < 0.5
    return Plan(
        seed=seed,
        mode=mode,
        durability=durability,
        max_staleness=chance.randint(1, 6) if bounded else None,
        failpoints=";".join(points),
        faults=faults,
        kills=tuple(sorted(kills, key=lambda kill: kill.step)),
    )


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
