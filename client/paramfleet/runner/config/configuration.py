"""A model folder's configuration: its YAML, what ``-o`` says, and the defaults."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from paramfleet.runner.config.entries import (
    Entry,
    free_value,
    nested,
    read_entries,
    read_options,
    with_days,
)
from paramfleet.runner.config.errors import ConfigError, FeatureNotHereError, UnknownKeyError
from paramfleet.runner.config.filling import fill, require_known, without_field
from paramfleet.runner.config.not_here import NOT_HERE, SYNC_MODES_NOT_HERE
from paramfleet.runner.config.own_keys import keys_of_folders
from paramfleet.runner.config.settings import HyperParameters, RunnerSettings
from paramfleet.runner.config.table_parameters import SECTION as TABLES
from paramfleet.runner.config.table_parameters import table_parameters_of
from paramfleet_shared.values.texts import shown

__all__ = ["Config", "RawConfig", "read_config"]

P = TypeVar("P", bound=HyperParameters)

SECTIONS = ("runner", "hyper_parameters", TABLES)

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
    folders: Collection[Path]
    """Where modules may lie that read keys."""
    tables: Mapping[str, Mapping[str, Any]]
    """As of ``Config``."""

    def path_of(self, name: str) -> Path:
        """Return a path of the configuration, made absolute."""
        return (self.folder / Path(name).expanduser()).resolve()

    def read_as(self, cls: type[P]) -> Config[P]:
        """Return the whole configuration, with hyper parameters of the model's class.

        A key that the class has no field for is the model's own, if a module of its folder
        reads it.

        Raises:
            UnknownKeyError: if the class has no field for a key, and no module reads it.
            ConfigError: if a value isn't of its field's type, or breaks its rule.
        """
        prefix = "hyper_parameters"
        entries, own, also_known = _split(cls, self.entries, prefix, self.folders)
        return Config(
            path=self.path,
            folder=self.folder,
            modules=self.modules,
            runner=self.runner,
            hyper_parameters=fill(cls, entries, prefix=prefix, also_known=also_known),
            own={**self.own, **own},
            given=self.given,
            tables=self.tables,
        )


def read_config(path: Path, options: Sequence[str] = ()) -> RawConfig:
    """Read a YAML file, and put the ``key=value`` words of ``-o`` over it.

    Raises:
        ConfigError: if the file can't be read, or a value isn't what its key takes.
        UnknownKeyError: if nothing reads a key; it names the nearest.
        FeatureNotHereError: if a key asks for what isn't here.
    """
    path = path.absolute()
    entries = {**with_days(read_entries(path)), **with_days(read_options(options))}
    for key, entry in entries.items():
        _check_section(key, entry)
    below_runner = nested(entries, "runner")
    mode = below_runner.get("sync_mode")
    if mode is not None and mode.value in SYNC_MODES_NOT_HERE:
        remedy = SYNC_MODES_NOT_HERE[mode.value]
        raise FeatureNotHereError(where=mode.where, key="runner.sync_mode", remedy=remedy)
    workspace = entries.get("workspace")
    folder = _workspace(path, workspace)
    modules = _modules(path, folder, below_runner.get("model_path"))
    folders = _folders(path, modules, below_runner)
    fields, own, also_known = _split(
        RunnerSettings, below_runner, "runner", folders, not_here=NOT_HERE
    )
    return RawConfig(
        path=path,
        folder=folder,
        modules=modules,
        runner=fill(
            RunnerSettings, fields, prefix="runner", not_here=NOT_HERE, also_known=also_known
        ),
        entries=_with_class(nested(entries, "hyper_parameters")),
        own=own | ({"workspace": workspace.value} if workspace else {}),
        given={_named(key) for key in entries},
        folders=folders,
        tables=table_parameters_of(nested(entries, TABLES)),
    )


def _split(
    cls: type[Any],
    entries: Mapping[str, Entry],
    prefix: str,
    folders: Collection[Path],
    *,
    not_here: Collection[str] = (),
) -> tuple[dict[str, Entry], dict[str, Any], Collection[str]]:
    """Part what the fields of a class take from what modules read by themselves.

    Args:
        cls: The settings class.
        entries: By key, without the prefix.
        prefix: The section.
        folders: Whose modules may read keys; looked into only where a key has no field.
        not_here: Keys that have no field, and that ``fill`` refuses by name where they ask
            for something.

    Returns:
        The entries for ``fill``; the values that only modules read, by full key; the full
        keys that they read.

    Raises:
        ConfigError: if a value of ``-o`` isn't YAML.
    """
    left = without_field(cls, entries)
    refused = {key for key in left if key in not_here or key.partition(".")[0] in not_here}
    read = keys_of_folders(folders) if left.keys() - refused else frozenset()
    own = {key: each for key, each in left.items() if f"{prefix}.{key}" in read}
    fields = {key: each for key, each in entries.items() if key in refused or key not in own}
    own |= {key: left[key] for key in refused}  # fill leaves those that ask for nothing
    values = {f"{prefix}.{k}": free_value(each, f"{prefix}.{k}") for k, each in own.items()}
    return fields, values, read


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


def _folders(path: Path, modules: Path, runner: Mapping[str, Entry]) -> list[Path]:
    """Return the folders of the modules of a configuration, each once."""
    keys = ("model_path", "train_reader_path", "infer_reader_path")
    named = [modules / str(runner[key].value) for key in keys if key in runner]
    return list(dict.fromkeys([path.parent, modules, *(each.parent for each in named)]))


def _with_class(entries: dict[str, Entry]) -> dict[str, Entry]:
    return {("optimizer.name" if k == CLASS_KEY else k): e for k, e in entries.items()}


def _named(key: str) -> str:
    """Return a dotted key with the field's name for ``optimizer.class``."""
    full = f"hyper_parameters.{CLASS_KEY}"
    return "hyper_parameters.optimizer.name" if key == full else key
