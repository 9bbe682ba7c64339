"""A model folder's configuration: its YAML, what ``-o`` says, and the defaults."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from paramfleet.runner.entries import Entry, nested, read_entries, read_options
from paramfleet.runner.errors import ConfigError, FeatureNotHereError, UnknownKeyError
from paramfleet.runner.filling import fill, require_known
from paramfleet.runner.not_here import NOT_HERE, SYNC_MODES_NOT_HERE
from paramfleet.runner.settings import HyperParameters, RunnerSettings
from paramfleet_shared.texts import shown

__all__ = ["Config", "RawConfig", "read_config"]

P = TypeVar("P", bound=HyperParameters)

SECTIONS = ("runner", "hyper_parameters")

CLASS_KEY = "optimizer.class"
"""PaddleRec's name for ``optimizer.name``, a word that no field can have."""


@dataclass(frozen=True, kw_only=True)
class Config(Generic[P]):
    """What models and readers are given."""

    path: Path
    """The YAML file."""

    folder: Path
    """What its paths are relative to."""

    runner: RunnerSettings
    """How it is trained."""

    hyper_parameters: P
    """What the model's own class of them says."""

    def path_of(self, name: str) -> Path:
        """Return a path of the configuration, made absolute."""
        return (self.folder / Path(name).expanduser()).resolve()

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a dotted key, as ``runner.epochs``; ``default`` without one."""
        value: Any = self
        for part in key.split("."):
            value = getattr(value, "name" if part == "class" else part, None)
        return default if value is None else value


@dataclass(frozen=True, kw_only=True)
class RawConfig:
    """A configuration whose model isn't known yet: its hyper parameters aren't read."""

    path: Path
    folder: Path
    runner: RunnerSettings
    entries: dict[str, Entry]
    """Of ``hyper_parameters``."""

    def path_of(self, name: str) -> Path:
        """Return a path of the configuration, made absolute."""
        return (self.folder / Path(name).expanduser()).resolve()

    def read_as(self, cls: type[P]) -> Config[P]:
        """Return the whole configuration, with hyper parameters of the model's class.

        Raises:
            UnknownKeyError: if the class has no field for a key.
            ConfigError: if a value isn't of its field's type, or breaks its rule.
        """
        parameters = fill(cls, self.entries, prefix="hyper_parameters")
        return Config(
            path=self.path,
            folder=self.folder,
            runner=self.runner,
            hyper_parameters=parameters,
        )


def read_config(path: Path, options: Sequence[str] = ()) -> RawConfig:
    """Read a YAML file, and put the ``key=value`` words of ``-o`` over it.

    Raises:
        ConfigError: if the file can't be read, or a value isn't what its key takes.
        UnknownKeyError: if nothing reads a key; it names the nearest.
        FeatureNotHereError: if a key asks for what isn't here.
    """
    path = path.absolute()
    entries = {**read_entries(path), **read_options(options)}
    for key, entry in entries.items():
        _check_section(key, entry)
    below_runner = nested(entries, "runner")
    mode = below_runner.get("sync_mode")
    if mode is not None and mode.value in SYNC_MODES_NOT_HERE:
        remedy = SYNC_MODES_NOT_HERE[mode.value]
        raise FeatureNotHereError(where=mode.where, key="runner.sync_mode", remedy=remedy)
    return RawConfig(
        path=path,
        folder=_workspace(path, entries.get("workspace")),
        runner=fill(RunnerSettings, below_runner, prefix="runner", not_here=NOT_HERE),
        entries=_with_class(nested(entries, "hyper_parameters")),
    )


def _check_section(key: str, entry: Entry) -> None:
    """Refuse what is in no section.

    Raises:
        UnknownKeyError: for another section, or a key without one.
        FeatureNotHereError: for a section of PaddleRec that isn't here.
        ConfigError: if a section isn't a mapping.
    """
    section, dot, _ = key.partition(".")
    if section == "table_parameters":
        remedy = "tables are described by fleet.nn.Embedding and the optimizer"
        raise FeatureNotHereError(where=entry.where, key=key, remedy=remedy)
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

    PaddleRec's files name their own folder from the repository's: that is the file's too.
    """
    name = Path(str(entry.value)) if entry is not None and entry.value else Path()
    parts = [part for part in name.parts if part != "."]
    if not name.is_absolute() and list(path.parent.parts[-len(parts) :]) == parts:
        return path.parent
    return path.parent / name


def _with_class(entries: dict[str, Entry]) -> dict[str, Entry]:
    return {("optimizer.name" if k == CLASS_KEY else k): e for k, e in entries.items()}
