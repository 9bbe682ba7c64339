"""How a job trains: one object, read once when the optimizer is made.

The names are Fleet's. Every key either works or raises: none is silently
ignored, and the order of assignment doesn't matter.
"""

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, cast, get_args

from paramfleet.config.eviction import EVICTION_KEYS, EvictionPlan, eviction_plan_of
from paramfleet.config.features import FAMILY, FEATURES, SETTINGS, check_pairs
from paramfleet.config.fleet_tables import TableAccessor, accessors_of
from paramfleet.config.plans.checkpoints import CHECKPOINT_KEYS, CheckpointPlan, plan_of
from paramfleet.config.plans.guards import GUARD_KEYS, GuardPlan, guard_plan_of
from paramfleet.config.strategy_keys import MAX_STEPS, NOT_HERE, Configs, Key, StrategyError
from paramfleet_shared.tables.encoding import WIRE_DTYPES, WireDtype
from paramfleet_shared.values.texts import shown

__all__ = [
    "AsyncRate",
    "CollectiveMode",
    "DistributedStrategy",
    "GeoMerge",
    "LossReduction",
    "ModeName",
    "OnWorkerLoss",
    "StrategyError",
    "TrainingMode",
]

ModeName = Literal["local", "sync", "async", "geo", "gpubox", "localsgd", "collective"]
OnWorkerLoss = Literal["wait", "shrink"]
LossReduction = Literal["mean", "sum"]
GeoMerge = Literal["paced", "damped", "mean", "remainder", "average"]
AsyncRate = Literal["guarded", "full"]


_ASYNC = frozenset({"async"})
_GEO = frozenset({"geo"})
_GPUBOX = frozenset({"gpubox"})
_ALL = frozenset({"sync", "async", "geo"})
_KEYS: dict[str, Key] = {
    "k_steps": Key(kind=int, default=0, minimum=0, maximum=MAX_STEPS, modes=_ALL),
    "max_merge_var_num": Key(kind=int, default=1, minimum=1, maximum=10_000, modes=_ASYNC),
    "send_queue_size": Key(kind=int, default=None, minimum=1, maximum=10_000, modes=_ASYNC),
    "independent_recv_thread": Key(kind=bool, default=False, modes=_ASYNC),
    "min_send_grad_num_before_recv": Key(
        kind=int, default=1, minimum=1, maximum=1_000_000, modes=_ASYNC
    ),
    "thread_pool_size": Key(kind=int, default=None, minimum=1, maximum=256, modes=_ASYNC),
    "send_wait_times": Key(kind=int, default=1, minimum=0, maximum=360_000, modes=_ASYNC),
    "max_staleness": Key(kind=int, default=None, minimum=0, maximum=MAX_STEPS, modes=_ASYNC),
    "async_rate": Key(kind=str, default="guarded", modes=_ASYNC, choices=get_args(AsyncRate)),
    "wire_dtype": Key(kind=str, default="float32", modes=_ALL, choices=WIRE_DTYPES),
    "geo_merge": Key(kind=str, default="paced", modes=_GEO, choices=get_args(GeoMerge)),
    "geo_growth": Key(kind=int, default=40, minimum=0, maximum=MAX_STEPS, modes=_GEO),
    "fresh_steps": Key(
        kind=int, default=200, minimum=0, maximum=MAX_STEPS, modes=_ASYNC | _GEO
    ),
    "runtime_split_send_recv": Key(
        kind=bool, default=False, modes=_ALL, choices=(False,), remedy="sends are always split"
    ),
    "launch_barrier": Key(
        kind=bool,
        default=True,
        modes=_ALL,
        choices=(True,),
        remedy="workers always wait until every pserver serves",
    ),
    "heter_worker_device_guard": Key(
        kind=str,
        default="cpu",
        modes=_ALL,
        choices=("cpu",),
        remedy="heter stages don't exist here",
    ),
    "lr_decay_steps": Key(
        kind=int,
        default=10,
        modes=_ALL,
        choices=(10,),
        remedy="use torch.optim.lr_scheduler: the learning rate travels with every push",
    ),
    "use_ps_gpu": Key(kind=int, default=0, modes=_GPUBOX, choices=(0, 1)),
    "use_gpu_graph": Key(
        kind=int,
        default=0,
        modes=_ALL,
        choices=(0,),
        remedy="the graph engine doesn't exist here",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingMode:
    """A strategy, resolved and checked."""

    name: ModeName
    """``local`` is training in this one process, ``collective`` among workers, both without
    servers."""

    chosen_by: str = field(default="", compare=False)
    """The strategy's keys that choose it, in words."""

    k_steps: int = 0
    """GEO: number of batches between two exchanges, once the period has grown; 0 in the other
    modes. GEO has no default; accuracy was measured with 20."""

    geo_merge: GeoMerge = "paced"
    """GEO: how the changes of several workers are added. With all of these but ``remainder``
    and ``average``, a change that only one worker makes to a row is added completely.
    ``damped`` divides a change by the square root of the number of workers that changed the
    same row at the same time, and for a dense parameter by that of all workers. ``mean``
    divides by this number itself. ``paced`` divides by a power of this number that depends on
    the optimizer: with SGD by the number itself at first and not at all after 12 steps, unless
    differences grow much larger than usual; with Adam not at all at first, and dense parameters
    by the square root after ``fresh_steps`` and 800 steps of all workers together; with other
    optimizers by the square root. ``remainder`` and ``average`` divide everything by the number
    of workers; ``remainder`` sends the rest later, so that the total approaches the sum over
    workers, and ``average`` drops it."""

    geo_growth: int = 40
    """GEO: number of steps after which the period between two exchanges grows by one batch,
    until it is ``k_steps``. With 0 it is ``k_steps`` from the beginning."""

    fresh_steps: int = 200
    """async, GEO: number of first steps of each worker that wait for the servers. In async such
    a step waits until its gradients are applied, and the next step starts with dense parameters
    and rows that include them. In GEO the worker waits for the exchange at the end of the step.
    Steps before a checkpoint count. 0 never waits, as in Fleet."""

    wire_dtype: WireDtype = "float32"
    """Number format of parameters, gradients and differences on the network: ``float32``,
    ``float16``, ``bfloat16``, or ``int8`` or ``float8_e4m3`` with a scale for each row.
    Gradients are rounded to 16 bits randomly, so that the mean is correct; the rounding error
    of other formats, and of differences, is sent with later values. The guarantees of sync
    apply to ``float32``."""

    max_staleness: int | None = None
    """async: largest number of batches that a worker may be ahead of the slowest one; None
    means no limit."""

    async_rate: AsyncRate = "guarded"
    """async: the learning rate of each worker's gradients. ``guarded`` starts with the rate
    divided by the number of workers N, and reaches the full rate after 12 updates of each
    worker; Adam has the full rate from the start. With SGD it also limits gradients, and
    divides the rate by up to N again, while gradients are much larger than usual. ``full``
    always uses the full rate."""

    max_merge_var_num: int = 1
    """async: largest number of steps whose gradients are added up in one push."""

    send_queue_size: int | None = None
    """async: largest number of steps that may wait to be pushed, or for the answer to a push
    after the oldest one; then the next step waits. None means as many as the measured round
    trip to the pservers needs, at most 16: gradients that wait longer are stale, which reduces
    accuracy. Fleet's value is 16."""

    send_wait_times: int = 1
    """async: how many times 10 ms a push with fewer than ``max_merge_var_num`` steps waits for
    more gradients."""

    thread_pool_size: int | None = None
    """async: largest number of pushes at the same time. None means as many as
    ``send_queue_size`` allows, at most 64 and 32 MiB. With ``max_staleness`` never more than
    ``max_staleness`` + 1."""

    independent_recv_thread: bool = False
    """async: refresh dense parameters at the same time as the pushes, instead of after each
    push."""

    sync_batch_norm: bool = False
    """sync: whether batch norm is over the batches of all workers."""

    loss_reduction: LossReduction = "mean"
    """sync: whether the loss is a mean or a sum over the batch. The gradient of a step is the
    mean of the workers' gradients by their examples, or their sum."""

    on_worker_loss: OnWorkerLoss = "wait"
    """sync: whether a job ends (``wait``) or goes on without a worker (``shrink``) that died
    and whose place nobody takes in time. Where it may go on, a step costs one more round
    trip."""

    checkpoints: CheckpointPlan | None = None
    """When checkpoints are written while it trains, and where."""

    eviction: EvictionPlan = field(default_factory=EvictionPlan)
    """sync, async: which rows go, and how many a table may have."""

    accessors: Mapping[str, TableAccessor] = field(default_factory=lambda: MappingProxyType({}))
    """sync, async: accessors of tables by their names, of Fleet's keys."""

    guard: GuardPlan | None = None
    """Which losses and gradients are out of range, and what is done then."""

    apart: tuple[str, Mapping[str, Any]] | None = None
    """LocalSGD: ``localsgd``, ``adaptive_localsgd`` or ``diloco``, and all of its keys."""

    min_send_grad_num_before_recv: int = 1
    """async: number of pushes between two refreshes of the dense parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveMode:
    """A strategy of collective mode, resolved and checked."""

    features: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """The values of every key of each feature that is on."""

    fuse_grad_size_in_MB: int = 32
    """Size of the buckets that are all-reduced."""

    find_unused_parameters: bool = False
    """Whether a batch may leave parameters unused."""

    sync_batch_norm: bool = False
    """Whether batch norm is over the batches of all workers."""

    loss_reduction: LossReduction = "mean"
    """Whether a step's gradient is the mean of the workers' gradients, or their sum."""

    guard: GuardPlan | None = None
    """Which losses and gradients are out of range, and what all workers do then."""

    @property
    def apart(self) -> str | None:
        """The one of the LocalSGD family that is on."""
        return next((name for name in FAMILY if name in self.features), None)


class DistributedStrategy:
    """Choose the mode: ``a_sync = False`` is sync, ``True`` async, ``k_steps > 0`` GEO.

    ``a_sync_configs["use_ps_gpu"] = 1`` with ``a_sync = True`` is gpubox: passes over data
    with rows on a device.

    ``a_sync`` is True by default, as Fleet's: a strategy of which nothing is set, and a
    ``distributed_optimizer`` without one, train async. Set it to False for sync.
    ``a_sync_configs`` takes Fleet's keys, plus ``wire_dtype`` (every mode),
    ``fresh_steps`` (async and GEO), ``max_staleness`` and ``async_rate`` (async), ``geo_merge``
    and ``geo_growth`` (GEO). See ``TrainingMode`` for what each means.
    ``checkpoint_configs`` has checkpoints written by time: ``{"every_s": 600, "keep": 3,
    "dirname": "checkpoints"}``.
    ``eviction_configs`` has rows removed that are worth little, in sync, async and GEO:
    ``{"max_rows": 10_000_000, "unseen_steps": 50_000}``.
    ``guard_configs`` has steps warned of, skipped, or end the training whose loss or gradient
    is out of range: ``{"action": "skip", "grad_norm_times": 20.0}``. ``fleet_desc_configs`` and
    ``sparse_table_configs`` give tables accessors, by Fleet's keys.
    In collective mode there are features instead: ``strategy.amp = True`` switches one on, and
    ``strategy.amp_configs`` has its keys; see ``FEATURES`` and ``SETTINGS``.

    Raises:
        StrategyError: on an unknown name (with the nearest known one), a value
            outside its range, or a key that has no effect in the chosen mode.
    """

    a_sync: bool
    a_sync_configs: MutableMapping[str, Any]
    checkpoint_configs: MutableMapping[str, Any]
    eviction_configs: MutableMapping[str, Any]
    guard_configs: MutableMapping[str, Any]
    fleet_desc_configs: Mapping[str, Any]
    sparse_table_configs: Mapping[str, Any]

    def __init__(self) -> None:
        self._on: dict[str, bool] = {}
        self._keys = {flag: _configs_of(flag) for flag in _CONFIGS.values()}
        self._settings: dict[str, Any] = {}
        self._tables: dict[str, Mapping[str, Any]] = {name: {} for name in _TABLES}

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        elif name in _CONFIGS:
            self._set_configs(name, value)
        elif name in _TABLES:
            self._set_tables(name, value)
        elif name == "a_sync" or name in FEATURES:
            if not isinstance(value, bool):
                raise StrategyError.of(name, value, "must be True or False")
            if value and name in FAMILY:
                check_pairs({name, *self._on_in(FAMILY)}, dict.fromkeys(FAMILY, True))
            self._on[name] = value
        elif name in SETTINGS:
            self._settings[name] = SETTINGS[name].take(name, value)
        elif name in NOT_HERE:
            if value:
                raise StrategyError.of(name, value, f"not supported: {NOT_HERE[name]}")
        else:
            known = ["a_sync", *FEATURES, *_CONFIGS, *_TABLES, *SETTINGS, *NOT_HERE]
            raise StrategyError.unknown(name, name, known)

    def __getattr__(self, name: str) -> Any:
        if name == "a_sync" or name in FEATURES:
            return self._on.get(name, name == "a_sync")
        if name in _CONFIGS:
            return self._keys[_CONFIGS[name]]
        if name in _TABLES:
            return self._tables[name]
        if name in SETTINGS:
            return self._settings.get(name, SETTINGS[name].default)
        if name in NOT_HERE:
            return False
        raise AttributeError(name)

    def __repr__(self) -> str:
        more = "".join(f", {name}={value!r}" for name, value in self._changed().items())
        configs = self.a_sync_configs
        return f"DistributedStrategy(a_sync={self.a_sync}, a_sync_configs={configs}{more})"

    def resolve(self) -> TrainingMode:
        """Return the parameter-server mode these settings mean together.

        Raises:
            StrategyError: if ``k_steps > 0`` without ``a_sync``, or if a key was
                set that the mode doesn't use, or two contradict each other.
        """
        k_steps = cast("int", self.a_sync_configs["k_steps"])
        if k_steps > 0 and not self.a_sync:
            rule = "GEO needs a_sync = True; leave k_steps out for sync"
            raise StrategyError(key="k_steps", value=shown(k_steps), rule=rule)
        name: ModeName = "geo" if k_steps > 0 else "async" if self.a_sync else "sync"
        if self.a_sync_configs["use_ps_gpu"]:
            if name != "async":
                rule = "is gpubox mode, which needs a_sync = True, and no k_steps"
                raise StrategyError(key="use_ps_gpu", value="1", rule=rule)
            name = "gpubox"
        values: dict[str, Any] = {}
        apart = self._resolve_apart()
        if apart is not None:
            if name == "gpubox":
                raise StrategyError(
                    key=apart[0], value="True", rule="doesn't go with gpubox mode"
                )
            name, values = "localsgd", {"apart": apart}
        for key, value in self.a_sync_configs.items():
            known = _KEYS[key]
            if name not in known.modes and value != known.default:
                modes = " or ".join(sorted(known.modes))
                rule = f"has no effect in {name} mode, only in {modes}"
                raise StrategyError(key=key, value=shown(value), rule=rule)
            if key in TrainingMode.__dataclass_fields__ and name in known.modes:
                values[key] = value
        checkpoints = plan_of(self.checkpoint_configs)
        values["eviction"] = self._resolve_eviction(name)
        values["guard"] = guard_plan_of(self.guard_configs)
        values["accessors"] = self._resolve_accessors(name)
        values["sync_batch_norm"] = self._resolve_batch_norm(name)
        values["on_worker_loss"] = self._resolve_loss(name)
        values["loss_reduction"] = self._resolve_reduction(name)
        values["chosen_by"] = self._chooses(k_steps, "" if apart is None else apart[0])
        return TrainingMode(name=name, checkpoints=checkpoints, **values)

    def _chooses(self, k_steps: int, apart: str) -> str:
        """Return the keys that choose a mode, and what they are."""
        by_default = "" if "a_sync" in self._on else ", the default"
        more = f", k_steps = {k_steps}" if k_steps else ""
        more += ", use_ps_gpu = 1" if self.a_sync_configs["use_ps_gpu"] else ""
        more += f", {apart} = True" if apart else ""
        return f"a_sync = {self.a_sync}{by_default}{more}"

    def _resolve_batch_norm(self, mode: ModeName) -> bool:
        """Return whether batch norm is over the batches of all workers.

        Raises:
            StrategyError: in a mode whose workers aren't in the same step.
        """
        is_on: bool = self.sync_batch_norm
        if is_on and mode != "sync":
            rule = (
                f"doesn't go with {mode} mode, whose workers don't take the same step at the "
                "same time: set a_sync = False"
            )
            raise StrategyError(key="sync_batch_norm", value="True", rule=rule)
        return is_on

    def _resolve_loss(self, mode: ModeName) -> OnWorkerLoss:
        """Return what becomes of a job without one of its workers.

        Raises:
            StrategyError: in a mode whose workers don't wait for each other.
        """
        said: OnWorkerLoss = self.on_worker_loss
        if said == "shrink" and mode != "sync":
            rule = (
                f"doesn't go with {mode} mode, whose workers don't wait for each other: start "
                "the coordinator with elastic = True instead"
            )
            raise StrategyError(key="on_worker_loss", value=said, rule=rule)
        return said

    def _resolve_reduction(self, mode: ModeName) -> LossReduction:
        """Return what the losses are over their batches.

        Raises:
            StrategyError: in a mode that takes each worker's gradient as it is.
        """
        said: LossReduction = self.loss_reduction
        if said == "sum" and mode not in {"sync", "gpubox"}:
            rule = (
                f"has no effect in {mode} mode, which takes each worker's gradients as they "
                "are: leave it out"
            )
            raise StrategyError(key="loss_reduction", value=said, rule=rule)
        return said

    def _resolve_eviction(self, mode: ModeName) -> EvictionPlan:
        """Return which rows go.

        Raises:
            StrategyError: if keys contradict each other, or in a mode that removes none.
        """
        plan = eviction_plan_of(self.eviction_configs)
        if self.eviction_configs and mode not in {"sync", "async", "geo", "gpubox"}:
            rule = f"has no effect in {mode} mode, only in async, geo, gpubox or sync"
            value = shown(dict(self.eviction_configs))
            raise StrategyError(key="eviction_configs", value=value, rule=rule)
        return plan

    def _resolve_accessors(self, mode: ModeName) -> Mapping[str, TableAccessor]:
        """Return the accessors that Fleet's keys ask for.

        Raises:
            StrategyError: if a key is wrong, or in a mode that has none.
        """
        found = accessors_of(*(self._tables[name] for name in _TABLES))
        if found and mode not in {"sync", "async", "geo", "gpubox"}:
            rule = f"has no effect in {mode} mode, only in async, geo, gpubox or sync"
            raise StrategyError(key=next(iter(found.values())).where, value="", rule=rule)
        return MappingProxyType(found)

    def _resolve_apart(self) -> tuple[str, Mapping[str, Any]] | None:
        """Return which of the LocalSGD family is on, and its keys; None for none.

        Raises:
            StrategyError: if another feature is on, or sync or GEO beside one of the family.
        """
        for key, value in self._changed().items():
            if _CONFIGS.get(key, key) not in {*FAMILY, *_OF_SYNC}:
                rule = "has no effect with is_collective = False: it belongs to collective mode"
                raise StrategyError(key=key, value=shown(value), rule=rule)
        for apart, keys in self._features().items():
            if not self.a_sync:
                rule = "doesn't go with a_sync = False: LocalSGD's workers don't wait"
                raise StrategyError(key=apart, value="True", rule=rule)
            k_steps = self.a_sync_configs["k_steps"]
            if k_steps > 0:
                rule = f"doesn't go with a_sync_configs['k_steps'] = {k_steps}, which is GEO"
                raise StrategyError(key=apart, value="True", rule=rule)
            return apart, keys
        return None

    def resolve_collective(self) -> CollectiveMode:
        """Return what these settings mean together in collective mode.

        Raises:
            StrategyError: if a parameter-server key was set, a feature's keys without the
                feature, or two features that don't go together.
        """
        rule = "has no effect with is_collective = True: it belongs to parameter servers"
        if self._on.get("a_sync"):
            raise StrategyError(key="a_sync", value="True", rule=rule)
        for name, known in (
            ("a_sync_configs", _KEYS),
            ("checkpoint_configs", CHECKPOINT_KEYS),
            ("eviction_configs", EVICTION_KEYS),
        ):
            for key, value in getattr(self, name).items():
                if value != known[key].default:
                    raise StrategyError(key=key, value=shown(value), rule=rule)
        for name in _TABLES:
            if self._tables[name]:
                raise StrategyError(key=name, value=shown(self._tables[name]), rule=rule)
        settings = dict(self._settings)
        loss = settings.pop("on_worker_loss", "wait")
        if loss != "wait":
            raise StrategyError(key="on_worker_loss", value=loss, rule=rule)
        guard = guard_plan_of(self.guard_configs)
        return CollectiveMode(features=self._guarded(guard), guard=guard, **settings)

    def _guarded(self, guard: GuardPlan | None) -> Mapping[str, Mapping[str, Any]]:
        """Return every key of each feature that is on.

        Raises:
            StrategyError: as ``_features``, or if one doesn't go with a guard.
        """
        features = self._features()
        if guard is not None:
            key, rule = "guard_configs", ""
            if features.get("amp", {}).get("dtype") == "float16":
                rule = "doesn't go with amp in float16, which leaves out steps itself"
            elif "dgc" in features:
                rule = "doesn't go with dgc, which keeps what it doesn't send of a gradient"
            if rule:
                raise StrategyError(key=key, value=shown(dict(self.guard_configs)), rule=rule)
        return features

    def _features(self) -> Mapping[str, Mapping[str, Any]]:
        """Return every key of each feature that is on.

        Raises:
            StrategyError: if a feature's keys are set without it, or two don't go together.
        """
        changed = self._changed()
        for name, value in changed.items():
            flag = _CONFIGS.get(name)
            if flag is not None and not self._on.get(flag):
                rule = f"has no effect with {flag} = False"
                raise StrategyError(key=name, value=shown(value), rule=rule)
        check_pairs(changed.keys(), changed)
        return MappingProxyType(
            {
                flag: MappingProxyType(self._keys[flag].full())
                for flag in FEATURES
                if self._on.get(flag)
            }
        )

    def _on_in(self, family: Iterable[str]) -> list[str]:
        return [name for name in family if self._on.get(name)]

    def _set_configs(self, name: str, value: object) -> None:
        if not isinstance(value, Mapping):
            raise StrategyError(key=name, value=shown(value), rule="must be a dict")
        fresh = _configs_of(_CONFIGS[name])
        fresh.update(value)
        self._keys[_CONFIGS[name]] = fresh

    def _set_tables(self, name: str, value: object) -> None:
        """Take Fleet's keys of tables.

        Raises:
            StrategyError: if one is wrong.
        """
        if not isinstance(value, Mapping):
            rule = "must be a dict, of dicts by a table's name"
            raise StrategyError(key=name, value=shown(value), rule=rule)
        wanted = {**self._tables, name: MappingProxyType(dict(value))}
        accessors_of(*(wanted[each] for each in _TABLES))
        self._tables = wanted

    def _changed(self) -> dict[str, Any]:
        """Return the features, their keys and the settings that aren't as they come."""
        values: dict[str, Any] = {flag: True for flag in FEATURES if self._on.get(flag)}
        values |= {f"{flag}_configs": self._keys[flag] for flag in FEATURES if self._keys[flag]}
        for name, value in self._settings.items():
            if value != SETTINGS[name].default:
                values[name] = value
        return values


_TABLES = ("fleet_desc_configs", "sparse_table_configs")
"""Fleet's keys of tables."""

_OF_SYNC = ("sync_batch_norm", "on_worker_loss", "loss_reduction")
"""Settings that sync has, too."""

_PLAIN = ("a_sync", "checkpoint", "eviction", "guard")
"""What has keys without a switch."""

_CONFIGS = {f"{flag}_configs": flag for flag in (*_PLAIN, *FEATURES)}


def _configs_of(flag: str) -> Configs:
    name = f"{flag}_configs"
    if flag == "a_sync":
        return Configs(name, _KEYS)
    if flag == "checkpoint":
        return Configs(name, CHECKPOINT_KEYS, prefix=f"{name}.")
    if flag == "eviction":
        return Configs(name, EVICTION_KEYS, prefix=f"{name}.")
    if flag == "guard":
        return Configs(name, GUARD_KEYS, prefix=f"{name}.")
    return Configs(name, FEATURES[flag], prefix=f"{name}.")
