"""A model folder's configuration: its YAML, what ``-o`` says, and the defaults."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from paramfleet.runner.config.entries import (
    Entry,
    free_value,
    nested,
    read_entries,
    read_options,
    with_days,
)
from paramfleet.runner.config.errors import (
    ConfigError,
    FeatureNotHereError,
    Problems,
    UnknownKeyError,
    collecting,
    raise_all,
)
from paramfleet.runner.config.filling import fill, require_known, without_field
from paramfleet.runner.config.not_here import NOT_HERE, NOT_READ, SYNC_MODES_NOT_HERE
from paramfleet.runner.config.own_keys import Modules, keys_of
from paramfleet.runner.config.settings import HyperParameters, RunnerSettings
from paramfleet.runner.config.table_parameters import SECTION as TABLES
from paramfleet.runner.config.table_parameters import table_parameters_of
from paramfleet_shared.values.texts import shown

__all__ = ["Config", "RawConfig", "read_config"]

P = TypeVar("P", bound=HyperParameters)

SECTIONS = ("runner", "hyper_parameters", TABLES)

_FEW = 3
"""Keys outside of the sections that may be mistakes."""

CLASS_KEY = "optimizer.class"
"""PaddleRec's name for ``optimizer.name``, a word that no field can have."""


_OURS = object()
"""The default of ``Config.get`` of a caller that names none."""


@dataclass(frozen=True, kw_only=True)
class Config(Generic[P]):
    """What models and readers are given."""

    path: Path
    """The YAML file."""

    folder: Path
    """What its paths are relative to."""

    modules: Path
    """What the paths of the model's and the reader's modules are relative to."""

    runner: RunnerSettings
    """How it is trained."""

    hyper_parameters: P
    """What the model's own class of them says."""

    own: Mapping[str, Any]
    """Values of keys that no field has, by dotted key."""

    given: Collection[str]
    """Dotted keys that the YAML or ``-o`` has."""

    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of ``table_parameters``: the keys of tables that have an accessor, by their names."""

    left_out: Sequence[str] = ()
    """Keys of PaddleRec's that nothing here reads, each with its place."""

    def path_of(self, name: str) -> Path:
        """Return a path of the configuration, made absolute."""
        return (self.folder / Path(name).expanduser()).resolve()

    def get(self, key: str, default: Any = _OURS) -> Any:
        """Return the value of a dotted key, as ``runner.epochs``; lists as lists.

        Args:
            key: It. ``config_abs_dir`` is PaddleRec's for the folder of the files.
            default: What to return if neither the YAML nor ``-o`` has the key, or it has no
                value; without one, our own default, and None where there is none.
        """
        if key == "config_abs_dir":
            return str(self.folder)
        if key in self.own:
            return self.own[key]
        if default is not _OURS and not self._is_given(key):
            return default
        value: Any = self
        for part in _named(key).split("."):
            value = (
                value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
            )
        if value is None:
            return None if default is _OURS else default
        return list(value) if isinstance(value, tuple) else value

    def _is_given(self, key: str) -> bool:
        name = _named(key)
        return name in self.given or any(each.startswith(f"{name}.") for each in self.given)


@dataclass(frozen=True, kw_only=True)
class RawConfig:
    """A configuration whose model isn't known yet: its hyper parameters aren't read."""

    path: Path
    folder: Path
    modules: Path
    runner: RunnerSettings
    entries: dict[str, Entry]
    """Of ``hyper_parameters``."""
    own: Mapping[str, Any]
    """Of ``runner``: what only the model's modules read, by dotted key."""
    given: Collection[str]
    """Dotted keys that the YAML or ``-o`` has."""
    sources: Modules
    """Where modules may lie that read keys."""
    tables: Mapping[str, Mapping[str, Any]]
    """As of ``Config``."""
    left_out: Sequence[str] = ()
    """Those of ``runner``."""

    def path_of(self, name: str) -> Path:
        """Return a path of the configuration, made absolute."""
        return (self.folder / Path(name).expanduser()).resolve()

    def read_as(self, cls: type[P], problems: Problems | None = None) -> Config[P]:
        """Return the whole configuration, with hyper parameters of the model's class.

        A key that the class has no field for is the model's own, if a module of its folder
        reads it.

        Args:
            cls: The class.
            problems: Gets what is wrong, instead of the first error.

        Raises:
            UnknownKeyError: if the class has no field for a key, and no module reads it.
            ConfigError: if a value isn't of its field's type, or breaks its rule.
        """
        prefix = "hyper_parameters"
        parts = _split(cls, self.entries, prefix, self.sources)
        return Config(
            path=self.path,
            folder=self.folder,
            modules=self.modules,
            runner=self.runner,
            hyper_parameters=fill(
                cls, parts.fields, prefix=prefix, also_known=parts.read, problems=problems
            ),
            own={**self.own, **parts.own},
            given=self.given,
            tables=self.tables,
            left_out=(*self.left_out, *parts.left_out),
        )


def read_config(
    path: Path, options: Sequence[str] = (), problems: Problems | None = None
) -> RawConfig:
    """Read a YAML file, and put the ``key=value`` words of ``-o`` over it.

    Args:
        path: The file.
        options: The words.
        problems: Gets what is wrong with keys, instead of an error; what is returned then has
            defaults in their place.

    Raises:
        ConfigError: if the file can't be read, or a value isn't what its key takes.
        UnknownKeyError: if nothing reads a key; it names the nearest.
        FeatureNotHereError: if a key asks for what isn't here.
        RefusedConfigError: if there are several of these: it has all.
    """
    found: Problems = []
    raw = _read(path.absolute(), options, found)
    if problems is None:
        raise_all(str(raw.path), found)
    else:
        problems += found
    return raw


def _read(path: Path, options: Sequence[str], problems: Problems) -> RawConfig:
    """Return a configuration; what is wrong with its keys is in ``problems``.

    Raises:
        ConfigError: if the file can't be read.
    """
    entries = {**with_days(read_entries(path)), **with_days(read_options(options))}
    outside = [key for key in entries if key.partition(".")[0] not in {*SECTIONS, "workspace"}]
    if len(outside) > _FEW:
        named = ", ".join(outside[:_FEW])
        rule = (
            f"{len(outside)} keys are in no section ({named}, ...): it is for another program"
        )
        problems.append(ConfigError(where=str(path), key="the file", value="", rule=rule))
        entries = {key: each for key, each in entries.items() if key not in outside}
    for key, entry in entries.items():
        with collecting(problems):
            _check_section(key, entry)
    below_runner = nested(entries, "runner")
    mode = below_runner.get("sync_mode")
    if mode is not None and mode.value in SYNC_MODES_NOT_HERE:
        remedy = SYNC_MODES_NOT_HERE[mode.value]
        problems.append(
            FeatureNotHereError(where=mode.where, key="runner.sync_mode", remedy=remedy)
        )
        del below_runner["sync_mode"]
    workspace = entries.get("workspace")
    folder = _workspace(path, workspace)
    modules = _modules(path, folder, below_runner.get("model_path"))
    sources = _sources(path, modules, below_runner)
    parts = _split(RunnerSettings, below_runner, "runner", sources, not_here=NOT_HERE)
    tables: Mapping[str, Mapping[str, Any]] = {}
    with collecting(problems):
        tables = table_parameters_of(nested(entries, TABLES))
    return RawConfig(
        path=path,
        folder=folder,
        modules=modules,
        runner=fill(
            RunnerSettings,
            parts.fields,
            prefix="runner",
            not_here=NOT_HERE,
            also_known=parts.read,
            problems=problems,
        ),
        entries=_with_class(nested(entries, "hyper_parameters")),
        own={**parts.own, **({"workspace": workspace.value} if workspace else {})},
        given={_named(key) for key in entries},
        sources=sources,
        tables=tables,
        left_out=parts.left_out,
    )


class _Parts(NamedTuple):
    """The entries of a section, by who reads them."""

    fields: dict[str, Entry]
    """For ``fill``."""
    own: dict[str, Any]
    """Values that only modules read, or nobody, by full key."""
    read: Collection[str]
    """Full keys that modules read."""
    left_out: Sequence[str]
    """Keys of PaddleRec's that nothing here reads, each with its place."""


def _split(
    cls: type[Any],
    entries: Mapping[str, Entry],
    prefix: str,
    sources: Modules,
    *,
    not_here: Collection[str] = (),
) -> _Parts:
    """Part what the fields of a class take from what modules read by themselves.

    Args:
        cls: The settings class.
        entries: By key, without the prefix.
        prefix: The section.
        sources: Where modules are that read keys; looked into only where a key has no field.
        not_here: Keys that have no field, and that ``fill`` refuses by name where they ask
            for something.

    Raises:
        ConfigError: if a value of ``-o`` isn't YAML.
    """
    left = without_field(cls, entries)
    refused = {key for key in left if key in not_here or key.partition(".")[0] in not_here}
    read, unused = frozenset[str](), frozenset[str]()
    if left.keys() - refused:
        read, unused = keys_of(sources)
    names = {key: f"{prefix}.{key}" for key in left}
    own = {key for key, name in names.items() if name in read}
    idle = {key for key, name in names.items() if name in NOT_READ | unused} - own
    fields = {
        key: each for key, each in entries.items() if key in refused or key not in own | idle
    }
    own |= refused | idle  # fill leaves those refused that ask for nothing
    values = {names[key]: free_value(left[key], names[key]) for key in left if key in own}
    left_out = [f"{names[key]} ({left[key].where})" for key in left if key in idle]
    return _Parts(fields, values, read, left_out)


def _check_section(key: str, entry: Entry) -> None:
    """Refuse what is in no section.

    Raises:
        UnknownKeyError: for another section, or a key without one.
        ConfigError: if a section isn't a mapping.
    """
    section, dot, _ = key.partition(".")
    if key == "workspace":
        return
    require_known(section, [*SECTIONS, "workspace"], entry.where)
    if section == "workspace":
        raise UnknownKeyError(where=entry.where, key=key, nearest="workspace")
    if not dot and entry.value is not None:
        rule = "must be a mapping"
        raise ConfigError(where=entry.where, key=key, value=shown(entry.value), rule=rule)


def _workspace(path: Path, entry: Entry | None) -> Path:
    """Return what paths are relative to: the file's folder, unless ``workspace`` is another.

    PaddleRec's files name their own folder from the repository's: that is the file's too. A
    file that lies elsewhere names it from its own folder, or from the working folder.
    """
    name = Path(str(entry.value)) if entry is not None and entry.value else Path()
    parts = [part for part in name.parts if part != "."]
    if not name.is_absolute() and list(path.parent.parts[-len(parts) :]) == parts:
        return path.parent
    beside, working = path.parent / name, Path.cwd() / name
    return working if working.is_dir() and not beside.is_dir() else beside


def _modules(path: Path, workspace: Path, entry: Entry | None) -> Path:
    """Return the folder that has the model's module: the workspace, else the file's own."""
    name = str(RunnerSettings().model_path if entry is None else entry.value)
    file = workspace / (name if name.endswith(".py") else f"{name}.py")
    return workspace if file.is_file() else path.parent


def _sources(path: Path, modules: Path, runner: Mapping[str, Entry]) -> Modules:
    """Return where the modules of a configuration are; folders are there once."""
    defaults = RunnerSettings()
    names = {
        key: str(runner[key].value if key in runner else default)
        for key, default in (
            ("model_path", defaults.model_path),
            ("train_reader_path", defaults.train_reader_path),
            ("infer_reader_path", defaults.train_reader_path),
            ("pipe_command", defaults.pipe_command),
        )
    }
    command = names.pop("pipe_command")
    if "infer_reader_path" not in runner:
        names["infer_reader_path"] = names["train_reader_path"]
    places = {key: (modules / name).parent.resolve() for key, name in names.items()}
    used = {*places.values(), *([modules.resolve()] if ".py" in command else [])}
    own = path.parent.resolve()
    folders = list(dict.fromkeys([own, modules.resolve(), *places.values()]))
    return Modules(folders, used, places["model_path"])


def _with_class(entries: dict[str, Entry]) -> dict[str, Entry]:
    return {("optimizer.name" if k == CLASS_KEY else k): e for k, e in entries.items()}


def _named(key: str) -> str:
    """Return a dotted key with the field's name for ``optimizer.class``."""
    full = f"hyper_parameters.{CLASS_KEY}"
    return "hyper_parameters.optimizer.name" if key == full else key
