"""The settings of a dataset: a frozen record, each field with its sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from paramfleet.data.parsing.bad_lines import OnBadLine
from paramfleet.data.parsing.slots import Layout, Slot
from paramfleet_shared.settings.config import SettingError, UnknownSettingError, check_ranges
from paramfleet_shared.values.texts import nearest

__all__ = ["DatasetSettings", "changed"]

_ONLY: Mapping[str, Any] = {
    "input_type": 0,
    "download_cmd": "cat",
    "data_feed_type": "MultiSlotInMemoryDataFeed",
    "merge_size": -1,
    "parse_ins_id": False,
    "parse_content": False,
    "fleet_send_sleep_seconds": 0,
    "fea_eval": True,
    "candidate_size": 10_000,
}
"""Fleet's settings of which only one value means something here."""


_RANGES: dict[str, tuple[float, float]] = {
    "batch_size": (1, 2**31 - 1),
    "thread_num": (1, 1024),
    "queue_num": (-1, 1_000_000),
    "seed": (0, 2**63 - 1),
    "fleet_send_batch_size": (1, 1_000_000),
    "pipe_timeout_s": (0.001, 1e7),
}


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """Settings of both kinds of dataset.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    batch_size: int = 1
    """Examples of a batch; the last batch of an epoch has the rest."""

    thread_num: int = 1
    """Number of files that are read at the same time. With 1 the order of the examples is
    always the same."""

    use_var: Sequence[Slot] = ()
    """The slots, in the order of the text."""

    pipe_command: str = "cat"
    """Command that the shell runs for each file: its input is the file, its output must be
    MultiSlot text. ``cat`` reads the file directly, without a process."""

    fs_name: str = ""
    """File system for paths without one, as ``hdfs://host:port`` or ``s3://bucket``."""

    fs_ugi: str = ""
    """``user`` or ``user,password`` for file systems; for S3 ``key,secret``."""

    on_bad_line: OnBadLine = "raise"
    """For a damaged line: ``raise`` ends the reading with an error, ``skip`` leaves the line
    out, ``quarantine`` also writes it to quarantine_dir."""

    quarantine_dir: str | Path = "quarantine"
    """Folder for files with damaged lines and the reasons."""

    pipe_timeout_s: float = 300.0
    """Seconds that a pipe command may write nothing while a reader waits for it."""

    queue_num: int = -1
    """Largest number of blocks of lines (of about 1 MiB of text) that wait to be used; -1 means
    two for each thread. Readers, and so pipe commands, wait when there are as many."""

    seed: int = 0
    """Seed of all shuffles: the same files, seed and calls give the same order."""

    fleet_send_batch_size: int = 1024
    """Examples in one message of a global shuffle."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        if self.queue_num == 0:
            raise SettingError(name="queue_num", value=self.queue_num, rule="above 0, or -1")
        if self.fs_name and "://" not in self.fs_name:
            rule = "an address, as hdfs://host:port"
            raise SettingError(name="fs_name", value=self.fs_name, rule=rule)
        if self.on_bad_line not in get_args(OnBadLine):
            rule = f"one of {', '.join(get_args(OnBadLine))}"
            raise SettingError(name="on_bad_line", value=self.on_bad_line, rule=rule)
        if not self.pipe_command.strip():
            rule = "a command; cat reads files as they are"
            raise SettingError(name="pipe_command", value=self.pipe_command, rule=rule)
        _ = self.layout  # raises here rather than at the first use

    @cached_property
    def layout(self) -> Layout:
        """What ``use_var`` makes.

        Raises:
            SettingError: if the slots are no layout.
        """
        return Layout(tuple(self.use_var))

    @property
    def num_blocks(self) -> int:
        """Blocks that may wait."""
        return 2 * self.thread_num if self.queue_num == -1 else self.queue_num


def changed(before: DatasetSettings | None, given: Mapping[str, Any]) -> DatasetSettings:
    """Return settings with some values given.

    Args:
        before: The present settings; None for the defaults.
        given: Values by name.

    Raises:
        UnknownSettingError: if there is no setting of a name; it says the nearest.
        SettingError: if a value is outside its range, or one that is not offered.
    """
    known = [each.name for each in fields(DatasetSettings)]
    values = {}
    for name, value in given.items():
        if name in known:
            values[name] = value
        elif name not in _ONLY:
            raise UnknownSettingError(name=name, nearest=nearest(name, [*known, *_ONLY]))
        elif value != _ONLY[name]:
            rule = f"{_ONLY[name]!r}: nothing else is offered"
            raise SettingError(name=name, value=value, rule=rule)
    return DatasetSettings(**values) if before is None else replace(before, **values)
