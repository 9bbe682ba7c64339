"""Write ``docs/configuration.md`` from the settings classes: ``make docs``.

What stands there is what the classes say: names, defaults and the sentence under each
field. A test compares the page with them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from paramfleet.config.eviction import EVICTION_KEYS
from paramfleet.config.features import CLASHES, FAMILY, FEATURES, SETTINGS
from paramfleet.config.plans.checkpoints import CHECKPOINT_KEYS
from paramfleet.config.plans.guards import GUARD_KEYS
from paramfleet.config.settings import WorkerSettings
from paramfleet.config.strategy import DistributedStrategy, TrainingMode
from paramfleet.data.settings import DatasetSettings
from paramfleet.runner.config.not_here import NOT_HERE, SYNC_MODES_NOT_HERE
from paramfleet.runner.config.online_settings import OnlineSettings
from paramfleet.runner.config.settings import (
    CtrParameters,
    HyperParameters,
    OptimizerSettings,
    RunnerSettings,
)
from paramfleet_coordinator.config import CoordinatorSettings
from paramfleet_pserver.config import PServerSettings
from paramfleet_serving.config import ServingSettings
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.settings.config import JobSettings, Option, options_of
from paramfleet_worker.config import LaunchSettings

__all__ = ["PAGE", "render"]

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"

HEAD = """\
# Configuration

Written by `make docs` from the settings classes; change the text there.

A setting is taken from the first of these that names it:

1. the command line of a `paramfleet` command, as `--lease_ttl_s 6` (`--lease-ttl-s 6` is the
   same);
2. the environment, as `PARAMFLEET_LEASE_TTL_S=6`; a secret has a second variable with `_FILE`
   behind its name, which takes the path of a file that holds it;
3. a TOML file, which `paramfleet coordinator`, `pserver`, `worker` and `serve` read
   (`--config FILE` or `PARAMFLEET_CONFIG=FILE`): shared settings on the top level, a service's
   own in a table of its name (`[coordinator]`, `[pserver]`, `[worker]`, `[serving]`);
4. the default.

A name that nothing reads is an error that says the nearest one. Coordinator and pservers
serve their settings, with the origin of each, at `/config` of their admin address;
passwords in addresses are stars there.
"""

SHARED = """\
Read by the coordinator, the pservers, the workers and servers of streams. `paramfleet launch`
sets `job`, `redis` and `host` for what it starts, and hands the rest of the environment on.
"""

STRATEGY = """\
Set in the training script; all workers must set the same.

```python
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
strategy.a_sync_configs = {"k_steps": 20}  # GEO, as docs/accuracy.md measured it
```

`a_sync = False` is sync; `a_sync = True` is async, and with `k_steps` above 0 geo, with
`use_ps_gpu` = 1 [gpubox](gpubox.md). `a_sync`
is True by default, as Fleet's: a strategy of which nothing is set trains async. Each worker
logs at its start (`worker.trains`) which mode it is, by which keys, and with how many servers
and workers. A key that is unknown, out of range, or without effect in the mode raises
`StrategyError`.

With `a_sync = True` one of `localsgd`, `adaptive_localsgd` and `diloco` is
[LocalSGD over the servers](localsgd.md#over-parameter-servers); its keys are below, and those
of `a_sync_configs` then have no effect.
"""

CHECKPOINTS = """\
Checkpoints while the job trains, in every mode and in one process alone:

```python
strategy.checkpoint_configs = {"every_s": 600, "keep": 3, "dirname": "checkpoints"}
```
"""

EVICTIONS = """\
Rows that go, in every mode but LocalSGD, and in one process ([the life of a row](tables.md)):

```python
strategy.eviction_configs = {"max_rows": 10_000_000, "tables": {"users": {"unseen_hours": 720}}}
```
"""

GUARDS = """\
Steps whose loss or gradient is out of range, in every mode, collective mode too, and in one
process alone ([guards](quality.md#guards)). Without a key nothing is looked at:

```python
strategy.guard_configs = {"action": "skip", "loss_max": 20.0, "grad_norm_times": 50.0}
```
"""

FEATURES_HEAD = """\
Of `fleet.init(is_collective=True)`; the LocalSGD family also of `a_sync = True`. A feature is
switched on by its name, and has its keys in `<name>_configs`; what goes together is in
[collective mode](collective.md).

```python
strategy.amp = True
strategy.amp_configs = {"dtype": "bfloat16"}
strategy.fuse_grad_size_in_MB = 16
```
"""

PAIRS = """\
Two that aren't in this table train together; a pair that is raises an error that names both.
"""

DATASETS = """\
Arguments of a dataset's `init` and `update_settings`.
"""

RUNNER = """\
Keys of a model folder's YAML file, which `paramfleet train -m`, `launch -m` and `infer -m`
read. `-o runner.epochs=3 runner.sync_mode=geo` overrules them; a value is read as its key's
type. `-o 'runner.a_sync_configs={max_staleness: 2, wire_dtype: float16}'` overrules the keys
below one and leaves the others. Paths are relative to the YAML's folder, or to `workspace`
where that names another one, from the YAML's folder or the working folder. The model's modules
are looked for in the workspace, and beside the YAML if the one of `model_path` isn't there.

A model may have more keys: fields of the frozen dataclass `M` of its
`class Model(runner.Model[M])`, which is derived from `runner.HyperParameters` and gives each
field a type and a default
([an example](migrating-from-paddle.md#a-model-folder)), and keys of `runner` and
`hyper_parameters` that a module of its folder reads as
`config.get("hyper_parameters.max_len", 3)`, which are what YAML makes of them. `config.get`
returns the caller's default for a key that neither the YAML nor `-o` has, and without one the
default of these tables. A key that nothing reads is an error that names its file, line and the
nearest key.
"""

PARAMETERS = """\
A model has the keys of the dataclass that its `Model` names; the first table is of every
model, the second of models of clicks (`CtrParameters`).
"""

ONLINE = """\
Keys of `runner`, too: passes over new data, day by day ([training by days](online.md)). They
are refused where there is no `days`.
"""

LATER = """\
PaddleRec's keys of what isn't here raise by name, unless they are false, 0 or empty.
"""

FLEET = """\
These are read too, because training scripts know them. `paramfleet launch` sets them;
without `TRAINING_ROLE` a script trains in its one process.

| variable | meaning |
|---|---|
| `TRAINING_ROLE` | `TRAINER` or `PSERVER` |
| `PADDLE_TRAINER_ID` | the worker's rank; without it the coordinator assigns one |
| `PADDLE_TRAINERS_NUM` | workers of the job |
| `PADDLE_PSERVERS_IP_PORT_LIST` | `ip:port` of every pserver, with commas between |
| `PADDLE_TRAINER_ENDPOINTS` | `ip:port` of every worker, with commas between |
| `POD_IP`, `PADDLE_PORT` | this process's own address; a pserver listens there |
"""

LIMITS = """\
What one side of a connection accepts from the other. Fields of `Limits` in
`paramfleet_shared.net.wire.limits`; no setting changes them.
"""


def render() -> str:
    """Return the page."""
    shared = [field.name for field in fields(JobSettings)]
    sections = [
        HEAD,
        "## Every process of a job\n",
        SHARED,
        _settings(options_of(JobSettings), "", shared),
        "## Coordinator\n",
        _settings(_own(CoordinatorSettings, shared), "coordinator", shared),
        "## Pserver\n",
        _settings(_own(PServerSettings, shared), "pserver", shared),
        "## Worker\n",
        _settings(_own(WorkerSettings, shared), "worker", shared),
        "## Server of a stream\n",
        "Read by `paramfleet serve` ([serving](serving.md#serving-a-stream)).\n",
        _settings(_own(ServingSettings, shared), "serving", shared),
        "## Launcher\n",
        "Options of `paramfleet launch`; they come before the script.\n",
        _settings(options_of(LaunchSettings), "launch", shared),
        "## Strategy\n",
        STRATEGY,
        _strategy(),
        "### Collective mode\n",
        FEATURES_HEAD,
        _features(),
        PAIRS,
        _pairs(),
        "## Datasets\n",
        DATASETS,
        _table(
            ("setting", "default", "meaning"),
            ((f"`{o.name}`", f"`{o.default!r}`", o.help) for o in options_of(DatasetSettings)),
        ),
        "## Runner\n",
        RUNNER,
        _keys(RunnerSettings, "runner", base=OnlineSettings),
        "### Training by days\n",
        ONLINE,
        _keys(OnlineSettings, "runner"),
        "## Hyper parameters\n",
        PARAMETERS,
        _keys(OptimizerSettings, "hyper_parameters.optimizer"),
        _keys(CtrParameters, "hyper_parameters", base=HyperParameters),
        LATER,
        _later(),
        "## Fleet's variables\n",
        FLEET,
        "## Limits\n",
        LIMITS,
        _table(
            ("limit", "value", "meaning"),
            ((f"`{o.name}`", f"{o.default:,}", o.help) for o in options_of(Limits)),
        ),
    ]
    return "\n".join(sections)


def _own(cls: type, shared: Sequence[str]) -> list[Option]:
    return [option for option in options_of(cls) if option.name not in shared]


def _settings(options: Iterable[Option], section: str, shared: Sequence[str]) -> str:
    rows = []
    for option in options:
        own = "" if option.name in shared else f"{section}__"
        variable = f"PARAMFLEET_{own}{option.name}".upper()
        names = [variable, f"{variable}_FILE"] if option.secret else [variable]
        environment = " or ".join(f"`{name}`" for name in names)
        rows.append((f"`{option.name}`", environment, _shown(option.default), option.help))
    return _table(("setting", "environment", "default", "meaning"), rows)


_NO_KEYS = {
    "name", "chosen_by", "apart", "checkpoints", "sync_batch_norm", "on_worker_loss",
    "loss_reduction", "eviction", "accessors", "guard",
}  # fmt: skip
"""What a mode has that is no key of ``a_sync_configs``."""


def _strategy() -> str:
    configs = DistributedStrategy().a_sync_configs
    rows = [
        (f"`{option.name}`", _shown(configs[option.name]), option.help)
        for option in options_of(TrainingMode)
        if option.name not in _NO_KEYS
    ]
    periodic = [
        (f"`{name}`", _shown(key.default), key.meaning) for name, key in CHECKPOINT_KEYS.items()
    ]
    evicting = [
        (f"`{name}`", _shown(key.default), key.meaning) for name, key in EVICTION_KEYS.items()
    ]
    guarding = [
        (f"`{name}`", _shown(key.default), key.meaning) for name, key in GUARD_KEYS.items()
    ]
    return "\n".join(
        [
            _table(("key of `a_sync_configs`", "default", "meaning"), rows),
            CHECKPOINTS,
            _table(("key of `checkpoint_configs`", "default", "meaning"), periodic),
            EVICTIONS,
            _table(("key of `eviction_configs`", "default", "meaning"), evicting),
            GUARDS,
            _table(("key of `guard_configs`", "default", "meaning"), guarding),
        ]
    )


def _features() -> str:
    rows = [(f"`{name}`", _shown(key.default), key.meaning) for name, key in SETTINGS.items()]
    rows += [
        (f"`{flag}_configs[{name!r}]`", _shown(key.default), key.meaning)
        for flag, keys in FEATURES.items()
        for name, key in keys.items()
    ]
    return _table(("setting", "default", "meaning"), rows)


def _pairs() -> str:
    without: dict[tuple[str, str], list[str]] = {}
    for pair, reason in CLASHES.items():
        first, second = sorted(pair, key=_rank)
        without.setdefault((first, reason), []).append(f"`{second}`")
    rows = [
        (f"`{name}`", ", ".join(others), reason)
        for (name, reason), others in sorted(
            without.items(), key=lambda each: _rank(each[0][0])
        )
    ]
    return _table(("setting", "doesn't go with", "because"), rows)


def _rank(name: str) -> int:
    return [*reversed(FAMILY), *FEATURES, *SETTINGS].index(name)


def _keys(cls: type, section: str, base: type | None = None) -> str:
    inherited = {field.name for field in fields(base)} if base is not None else set()
    rows = [
        (f"`{section}.{_key(option.name, section)}`", _shown(option.default), option.help)
        for option in options_of(cls)
        if option.name not in inherited
    ]
    return _table(("key", "default", "meaning"), rows)


def _key(name: str, section: str) -> str:
    return "class" if (section, name) == ("hyper_parameters.optimizer", "name") else name


def _later() -> str:
    rows = [(f"`runner.{key}`", sentence) for key, sentence in sorted(NOT_HERE.items())]
    rows += [
        (f"`runner.sync_mode: {key}`", sentence)
        for key, sentence in sorted(SYNC_MODES_NOT_HERE.items())
    ]
    return _table(("key", "instead"), rows)


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        return f"`{list(default)}`"
    if isinstance(default, Mapping):
        return f"`{dict(default)}`"
    if default is None or not str(default):
        return "none"
    return f"`{default}`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
