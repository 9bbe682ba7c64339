"""How a job trains: one object, read once when the optimizer is made.

The names are Fleet's. Every key either works or raises: none is silently
ignored, and the order of assignment doesn't matter.
"""

import difflib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.encoding import WIRE_DTYPES, WireDtype

__all__ = ["DistributedStrategy", "GeoMerge", "ModeName", "StrategyError", "TrainingMode"]

ModeName = Literal["local", "sync", "async", "geo"]
GeoMerge = Literal["remainder", "average"]


class StrategyError(ContractError):
    """A strategy key is unknown, out of range, or has no effect with the others."""

    code = "contract.strategy"

    def __init__(self, *, key: str, value: str, rule: str) -> None:
        super().__init__(f"strategy {key} = {value}: {rule}", key=key, value=value, rule=rule)
        self.key = key
        self.value = value
        self.rule = rule

    @classmethod
    def of(cls, key: str, value: object, rule: str) -> "StrategyError":
        """Show the value as code."""
        return cls(key=key, value=repr(value), rule=rule)

    @classmethod
    def unknown(cls, shown: str, key: str, known: list[str]) -> "StrategyError":
        """Name the nearest known key."""
        nearest = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known)}"
        return cls(key=shown, value="?", rule=f"unknown; {hint}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Key:
    """One key of ``a_sync_configs``: its type, least value, modes, and default."""

    type: type
    default: Any
    modes: frozenset[str]
    least: int | None = None
    only: tuple[Any, ...] | None = None
    remedy: str = ""


_ASYNC = frozenset({"async"})
_GEO = frozenset({"geo"})
_ALL = frozenset({"sync", "async", "geo"})
_KEYS: dict[str, _Key] = {
    "k_steps": _Key(type=int, default=0, least=0, modes=_ALL),
    "max_merge_var_num": _Key(type=int, default=1, least=1, modes=_ASYNC),
    "send_queue_size": _Key(type=int, default=16, least=1, modes=_ASYNC),
    "independent_recv_thread": _Key(type=bool, default=False, modes=_ASYNC),
    "min_send_grad_num_before_recv": _Key(type=int, default=1, least=1, modes=_ASYNC),
    "thread_pool_size": _Key(type=int, default=1, least=1, modes=_ASYNC),
    "send_wait_times": _Key(type=int, default=1, least=0, modes=_ASYNC),
    "max_staleness": _Key(type=int, default=None, least=0, modes=_ASYNC),
    "wire_dtype": _Key(type=str, default="float32", modes=_ALL, only=WIRE_DTYPES),
    "geo_merge": _Key(type=str, default="remainder", modes=_GEO, only=get_args(GeoMerge)),
    "runtime_split_send_recv": _Key(
        type=bool, default=False, modes=_ALL, only=(False,), remedy="sends are always split"
    ),
    "launch_barrier": _Key(
        type=bool,
        default=True,
        modes=_ALL,
        only=(True,),
        remedy="workers always wait until every pserver serves",
    ),
    "heter_worker_device_guard": _Key(
        type=str,
        default="cpu",
        modes=_ALL,
        only=("cpu",),
        remedy="heter stages don't exist here",
    ),
    "lr_decay_steps": _Key(
        type=int,
        default=10,
        modes=_ALL,
        only=(10,),
        remedy="use torch.optim.lr_scheduler: the learning rate travels with every push",
    ),
    "use_ps_gpu": _Key(
        type=int, default=0, modes=_ALL, only=(0,), remedy="gpubox mode is not available yet"
    ),
    "use_gpu_graph": _Key(
        type=int, default=0, modes=_ALL, only=(0,), remedy="the graph engine doesn't exist here"
    ),
}

_NOT_HERE: dict[str, str] = {
    "adam_d2sum": "use torch.optim.Adam",
    "is_fl_ps_mode": "federated mode doesn't exist here",
    "is_with_coordinator": "the coordinator is always there; federated mode isn't",
    "trainer_desc_configs": "dumping and local/remote sparse lists don't exist here",
    "fs_client_param": "paths are local paths",
    "sparse_table_configs": "tables are described by fleet.nn.Embedding and the optimizer",
    "fleet_desc_configs": "tables are described by fleet.nn.Embedding and the optimizer",
} | dict.fromkeys(
    (
        "adaptive_localsgd", "adaptive_localsgd_configs", "amp", "amp_configs", "dgc",
        "dgc_configs", "find_unused_parameters", "fp16_allreduce", "fuse_grad_size_in_MB",
        "gradient_merge", "gradient_merge_configs", "lamb", "lars", "localsgd",
        "localsgd_configs", "pipeline", "recompute", "sharding", "sync_batch_norm",
        "tensor_parallel",
    ),
    "it belongs to collective mode, which is not available yet",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingMode:
    """A strategy, resolved and checked."""

    name: ModeName
    """``local`` is training in this one process, without servers."""

    k_steps: int = 0
    """GEO: batches between two exchanges; 0 in the other modes."""

    geo_merge: GeoMerge = "remainder"
    """GEO: what happens to the part of a worker's progress that one exchange doesn't send.
    ``remainder`` keeps it and sends it later, so that totals tend to the sum over workers;
    ``average`` drops it."""

    wire_dtype: WireDtype = "float32"
    """How parameters, gradients and differences travel: ``float32``, or ``float16``,
    ``bfloat16`` or ``int8`` (with a scale a row). Gradients are rounded to 16 bits by chance,
    right on average; what is lost of others, and of differences, is sent with later ones. The
    promises of sync hold for ``float32``."""

    max_staleness: int | None = None
    """async: batches a worker may lead the slowest by; None never waits."""

    max_merge_var_num: int = 1
    """async: steps whose gradients are summed into one push, at most."""

    send_queue_size: int = 16
    """async: steps that may wait to be pushed; the next step blocks beyond it."""

    send_wait_times: int = 1
    """async: waits of 10 ms for more gradients before a push with fewer than
    ``max_merge_var_num`` goes out."""

    thread_pool_size: int = 1
    """async: pushes in flight at once."""

    independent_recv_thread: bool = False
    """async: refresh dense parameters beside the pushes instead of after each."""

    min_send_grad_num_before_recv: int = 1
    """async: pushes between two refreshes of the dense parameters."""


class _Configs(MutableMapping[str, Any]):
    """``a_sync_configs``: a dict that knows its keys."""

    def __init__(self) -> None:
        self._set: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        return self._set[key] if key in self._set else self._key(key).default

    def __setitem__(self, key: str, value: Any) -> None:
        known = self._key(key)
        wrong_type = not isinstance(value, known.type) or (
            known.type is int and isinstance(value, bool) and known.only is None
        )
        if wrong_type:
            raise StrategyError.of(key, value, f"must be {known.type.__name__}")
        if known.least is not None and value < known.least:
            raise StrategyError.of(key, value, f"must be at least {known.least}")
        if known.only is not None and value not in known.only:
            choices = " or ".join(repr(choice) for choice in known.only)
            raise StrategyError.of(
                key, value, f"must be {choices}" + (known.remedy and f": {known.remedy}")
            )
        self._set[key] = value

    def __delitem__(self, key: str) -> None:
        del self._set[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._set)

    def __contains__(self, key: object) -> bool:
        return key in self._set

    def __len__(self) -> int:
        return len(self._set)

    def __repr__(self) -> str:
        return repr(self._set)

    @staticmethod
    def _key(key: str) -> _Key:
        if key not in _KEYS:
            shown = f"a_sync_configs[{key!r}]"
            raise StrategyError.unknown(shown, key, list(_KEYS))
        return _KEYS[key]


class DistributedStrategy:
    """Choose the mode: ``a_sync = False`` is sync, ``True`` async, ``k_steps > 0`` GEO.

    ``a_sync_configs`` takes Fleet's keys, plus ``wire_dtype`` (every mode),
    ``max_staleness`` (async) and ``geo_merge`` (GEO). See ``TrainingMode`` for what each means.

    Raises:
        StrategyError: on an unknown name (with the nearest known one), a value
            outside its range, or a key that has no effect in the chosen mode.
    """

    a_sync: bool
    a_sync_configs: MutableMapping[str, Any]

    def __init__(self) -> None:
        self._a_sync = True
        self._configs = _Configs()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in {"_a_sync", "_configs"}:
            object.__setattr__(self, name, value)
        elif name == "a_sync":
            if not isinstance(value, bool):
                raise StrategyError.of(name, value, "must be True or False")
            self._a_sync = value
        elif name == "a_sync_configs":
            if not isinstance(value, Mapping):
                raise StrategyError.of(name, value, "must be a dict")
            fresh = _Configs()
            fresh.update(value)
            self._configs = fresh
        elif name in _NOT_HERE:
            if value:
                raise StrategyError.of(name, value, f"not supported: {_NOT_HERE[name]}")
        else:
            raise StrategyError.unknown(name, name, ["a_sync", "a_sync_configs", *_NOT_HERE])

    def __getattr__(self, name: str) -> Any:
        if name == "a_sync":
            return self._a_sync
        if name == "a_sync_configs":
            return self._configs
        if name in _NOT_HERE:
            return False
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"DistributedStrategy(a_sync={self._a_sync}, a_sync_configs={self._configs})"

    def resolve(self) -> TrainingMode:
        """Return the mode these settings mean together.

        Raises:
            StrategyError: if ``k_steps > 0`` without ``a_sync``, or if a key was
                set that the mode doesn't use, or two contradict each other.
        """
        k_steps = cast("int", self._configs["k_steps"])
        if k_steps > 0 and not self._a_sync:
            rule = "GEO needs a_sync = True; leave k_steps out for sync"
            raise StrategyError(key="k_steps", value=repr(k_steps), rule=rule)
        name: ModeName = "geo" if k_steps > 0 else "async" if self._a_sync else "sync"
        values: dict[str, Any] = {}
        for key, value in self._configs.items():
            known = _KEYS[key]
            if name not in known.modes and value != known.default:
                modes = " or ".join(sorted(known.modes))
                rule = f"has no effect in {name} mode, only in {modes}"
                raise StrategyError(key=key, value=repr(value), rule=rule)
            if key in TrainingMode.__dataclass_fields__ and name in known.modes:
                values[key] = value
        bounded = values.get("max_staleness") is not None
        if bounded and values.get("thread_pool_size", 1) > 1:
            rule = "a bound on staleness needs thread_pool_size = 1: pushes keep their order"
            raise StrategyError(
                key="max_staleness", value=repr(values["max_staleness"]), rule=rule
            )
        return TrainingMode(name=name, **values)
