"""Fleet's keys of tables, ``fleet_desc_configs`` and ``sparse_table_configs``, as accessors.

Both say the same of a table, by its name: the first in one level, with names like
``sparse_embedx_threshold``; the second as Fleet's messages are nested. A key that isn't given
has the default of ``CtrAccessor``. Keys of what isn't here are taken with Fleet's default
alone.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from paramfleet.config.accessor import FLEETS, AccessorOptionError, CtrAccessor, SparseRule
from paramfleet.config.strategy_keys import StrategyError
from paramfleet_shared.tables.rules.ctr.accessor import NUM_SHORT
from paramfleet_shared.values.texts import nearest, shown

__all__ = ["TableAccessor", "accessors_of"]

_OF_RULE = (
    "learning_rate",
    "initial_g2sum",
    "initial_range",
    "weight_bounds",
    "beta1_decay_rate",
    "beta2_decay_rate",
    "ada_epsilon",
)
_PARTS = ("embed", "embedx")

_CLASSES: dict[str, dict[str, Any]] = {
    "DownpourCtrAccessor": {},
    "CtrCommonAccessor": {},
    "DownpourUnitAccessor": {"show_scale": False},
    "SparseAccessor": {"cvm": False},
    "DownpourSparseValueAccessor": {"cvm": False},
}
"""Of Fleet's classes: what each means beside the keys."""

_NAMES = {
    "naive": "SparseNaiveSGDRule",
    "adagrad": "SparseAdaGradSGDRule",
    "adagrad_v2": "SparseAdaGradV2SGDRule",
    "std_adagrad": "StdAdaGradSGDRule",
    "adam": "SparseAdamSGDRule",
    "shared_adam": "SparseSharedAdamSGDRule",
}
"""Of rules in ``fleet_desc_configs``, ``sparse_optimizer``."""

_NO_MATTER = (
    "shard_num",
    "compress_in_save",
    "enable_cache",
    "enable_sparse_table_cache",
    "cache_rate",
    "sparse_table_cache_rate",
    "cache_file_num",
    "sparse_table_cache_file_num",
    "shard_merge_rate",
    "converter",
    "deconverter",
    "table_accessor_save_param",
    "type",
)
"""About Fleet's own servers and files: taken, and of no meaning here."""

_AS_FLEET: dict[str, tuple[Any, str]] = {
    "ssd_unseenday_threshold": (1, "rows are in memory: leave it out"),
    "enable_revert": (False, "load a checkpoint instead"),
    "load_filter_slots": ([], "slots of rows aren't kept: leave it out"),
    "save_filter_slots": ([], "slots of rows aren't kept: leave it out"),
}
"""What has only Fleet's default here, and why."""

_TABLE_CLASSES = ("DownpourSparseTable", "MemorySparseTable")
_USES_CVM = True
"""Fleet's networks see show and click, but for those of some classes."""


class TableAccessor(NamedTuple):
    """What is asked for one table."""

    accessor: CtrAccessor
    embedx_dim: int | None
    """Weights of a row behind the first one, if that was said."""
    where: str
    """The key."""


_Found = dict[str, tuple[str, Any]]
"""What is asked for: by the name it has here, the key and the value."""


def accessors_of(
    desc: Mapping[str, Any], nested: Mapping[str, Any]
) -> dict[str, TableAccessor]:
    """Return the accessors of tables by their names.

    Args:
        desc: ``fleet_desc_configs``.
        nested: ``sparse_table_configs``.

    Raises:
        StrategyError: if a key is unknown, with the nearest known one, or a value can't be.
    """
    made: dict[str, TableAccessor] = {}
    for name, configs, flatten in (
        ("fleet_desc_configs", desc, _flat_desc),
        ("sparse_table_configs", nested, _flat_nested),
    ):
        for table, keys in configs.items():
            where = f"{name}[{shown(table)}]"
            if not isinstance(keys, Mapping) or not isinstance(table, str):
                rule = "must be a dict of a table's keys, by its name"
                raise StrategyError(key=where, value=shown(keys), rule=rule)
            if table in made:
                rule = "is in fleet_desc_configs, too: say it once"
                raise StrategyError(key=where, value="", rule=rule)
            found = flatten(where, keys)
            embedx_dim = _of(found, "embedx_dim", None)
            made[table] = TableAccessor(_made(where, found), embedx_dim, where)
    return made


def _flat_desc(where: str, keys: Mapping[str, Any]) -> _Found:
    """Return the keys of ``fleet_desc_configs`` by the names they have here.

    Raises:
        StrategyError: if one is unknown.
    """
    known = {"use_cvm": "use_cvm"}
    plain = ("accessor_class", "table_class", "fea_dim", "embedx_dim", "optimizer")
    for name in (*plain, *FLEETS, *_OF_RULE, *_NO_MATTER, *_AS_FLEET):
        known[f"sparse_{name}"] = name
    for part in _PARTS:
        for name in ("optimizer", *_OF_RULE):
            known[f"{part}_sparse_{name}"] = f"{part}.{name}"
    found: _Found = {}
    for key, value in keys.items():
        _require_known(where, key, known)
        found[known[key]] = (f"{where}[{key!r}]", value)
    return found


def _flat_nested(where: str, keys: Mapping[str, Any]) -> _Found:
    """Return the keys of ``sparse_table_configs`` by the names they have here.

    Raises:
        StrategyError: if one is unknown.
    """
    known = {each: each for each in ("table_class", "table_id", *_NO_MATTER, "enable_revert")}
    for each in ("accessor_class", "fea_dim", "embedx_dim", "embedx_threshold"):
        known[f"accessor.{each}"] = each
    known["accessor.table_accessor_save_param"] = "type"
    for each in (*FLEETS, *_AS_FLEET):
        known[f"accessor.ctr_accessor_param.{each}"] = each
    for part in _PARTS:
        prefix = f"accessor.{part}_sgd_param"
        known[f"{prefix}.name"] = f"{part}.name"
        for kind in ("naive", "adagrad", "adam"):
            known |= {f"{prefix}.{kind}.{each}": f"{part}.{each}" for each in _OF_RULE}
    found: _Found = {}
    for key, value in _leaves(keys):
        _require_known(where, key, known)
        found[known[key]] = (f"{where}[{key!r}]", value)
    return found


def _leaves(keys: Mapping[Any, Any], prefix: str = "") -> list[tuple[Any, Any]]:
    """Return what isn't a mapping below nested ones, with dotted keys."""
    found: list[tuple[Any, Any]] = []
    for key, value in keys.items():
        full = f"{prefix}{key}"
        if isinstance(value, Mapping) and full != "accessor.table_accessor_save_param":
            found += _leaves(value, f"{full}.")
        else:
            found.append((full, value))
    return found


def _made(where: str, found: _Found) -> CtrAccessor:
    """Return the accessor that is asked for.

    Raises:
        StrategyError: if a value can't be, or asks for what isn't here.
    """
    _require_here(found)
    kind = _of(found, "accessor_class", "DownpourCtrAccessor")
    if kind not in list(_CLASSES):  # which may be no text
        near = nearest(str(kind), _CLASSES)
        hint = f"; did you mean {near}?" if near else ""
        rule = f"must be one of {', '.join(_CLASSES)}{hint}"
        raise StrategyError(key=found["accessor_class"][0], value=shown(kind), rule=rule)
    options = {name: found[name][1] for name in FLEETS if name in found}
    options = {"cvm": _of(found, "use_cvm", _USES_CVM), **_CLASSES[kind], **options}
    try:
        for part in _PARTS:
            options[part] = _rule_of(found, part)
        return CtrAccessor(**options)
    except (AccessorOptionError, TypeError) as error:
        rule = getattr(error, "rule", "") or str(error)
        option = getattr(error, "option", "")
        ends = {"rule": ("optimizer", "name"), "": ()}.get(option, (option,))
        key = next((said for name, (said, _) in found.items() if name.endswith(ends)), where)
        value = str(getattr(error, "value", ""))
        raise StrategyError(key=key, value=value, rule=rule) from error


def _rule_of(found: _Found, part: str) -> SparseRule:
    """Return how a part of a row is trained: by its own keys, else by those of both.

    Raises:
        AccessorOptionError: if a value can't be.
    """

    def of(name: str, default: Any = None) -> Any:
        return _of(found, f"{part}.{name}", _of(found, name, default))

    short = of("optimizer", "adagrad")
    name = of("name", _NAMES.get(short, short) if isinstance(short, str) else short)
    options = {each: of(each) for each in _OF_RULE}
    given = {key: value for key, value in options.items() if value is not None}
    return SparseRule(name, **given)


def _require_here(found: _Found) -> None:
    """Pass if nothing is asked for that isn't here.

    Raises:
        StrategyError: naming it.
    """
    for name, (default, rule) in _AS_FLEET.items():
        key, value = found.get(name, ("", default))
        if (list(value) if isinstance(value, tuple) else value) != default:
            raise StrategyError(key=key, value=shown(value), rule=rule)
    key, value = found.get("table_class", ("", _TABLE_CLASSES[0]))
    if value not in _TABLE_CLASSES:
        rule = f"must be one of {', '.join(_TABLE_CLASSES)}: rows are in memory"
        raise StrategyError(key=key, value=shown(value), rule=rule)
    for name in ("fea_dim", "embedx_dim"):
        key, value = found.get(name, ("", 0))
        if type(value) is not int or value < 0:
            raise StrategyError(key=key, value=shown(value), rule="must be a whole number")
    width, embedx = found.get("fea_dim"), found.get("embedx_dim")
    if width is not None and embedx is not None and width[1] != embedx[1] + NUM_SHORT:
        rule = f"must be embedx_dim + {NUM_SHORT}"
        raise StrategyError(key=width[0], value=shown(width[1]), rule=rule)


def _of(found: _Found, name: str, default: Any) -> Any:
    return found[name][1] if name in found else default


def _require_known(where: str, key: Any, known: Mapping[str, str]) -> None:
    """Pass if a key is known.

    Raises:
        StrategyError: naming the nearest that is.
    """
    if key not in known:
        error = StrategyError.unknown(f"{where}[{shown(key)}]", key, list(known))
        raise error
