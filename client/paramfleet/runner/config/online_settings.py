"""The keys of a training by days and passes: PaddleRec's, below ``runner``.

Fields are keys; the sentence under each is what ``docs/configuration.md`` says of it.
"""

from dataclasses import dataclass, fields

from paramfleet.runner.config.days import days_of
from paramfleet_shared.settings.config import SettingError, check_ranges

__all__ = ["OnlineSettings"]

_MINUTES, _THREADS = 24 * 60, 1024

_RANGES: dict[str, tuple[float, float]] = {
    "split_interval": (1, _MINUTES),
    "split_per_pass": (1, _MINUTES),
    "pass_per_day": (0, _MINUTES),
    "checkpoint_per_pass": (0, _MINUTES),
    "save_delta_frequency": (0, _MINUTES),
    "data_sleep_second": (0.001, 86_400),
    "data_wait_s": (0.001, 1e9),
    "train_thread_num": (0, _THREADS),
    "shuffle_thread_num": (1, _THREADS),
    "preload_thread_num": (0, _THREADS),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OnlineSettings:
    """When what is trained and saved, in a training by days.

    Raises:
        SettingError: if a value is outside its documented range, has no effect, or contradicts
            another one.
    """

    days: tuple[str, ...] = ()
    """The days to train, as {20260101..20260131}, or a list of days and ranges. With it
    train_data_dir has a folder for each day, <YYYYMMDD>, and in that one for each
    split_interval minutes, <HHMM>."""

    start_day: str = ""
    """With end_day another way to say days: the first one."""

    end_day: str = ""
    """The last one."""

    split_interval: int = 5
    """Minutes of data in a folder of a day."""

    split_per_pass: int = 1
    """Folders of a pass, in turn. Those that are left at the day's end are not read."""

    pass_per_day: int = 0
    """Passes of a day; 0 is as many as there are. Folders behind them are not read."""

    checkpoint_per_pass: int = 6
    """Passes from one checkpoint to the next, <model_save_path>/<day>/<pass>; 0 saves at the
    day's end alone."""

    save_delta_frequency: int = 6
    """Passes from one delta to the next, <model_save_path>/<day>/delta-<pass>; 0 saves
    none."""

    save_first_base: bool = False
    """Save a base before the first pass, <model_save_path>/<day>/base. Without one there are no
    deltas before the end of the first day."""

    data_donefile: str = ""
    """Name of a file in each folder of data that says that the folder is complete: it is
    waited for. Empty reads what is there."""

    data_sleep_second: float = 10.0
    """Seconds between two looks for data_donefile."""

    data_wait_s: float = 86_400.0
    """Seconds after which the wait for the data of one pass ends the training."""

    prefetch: bool = False
    """Read the next pass while this one is trained, if its data is there: both are in
    memory."""

    train_thread_num: int = 0
    """Files read at a time; 0 is thread_num."""

    shuffle_thread_num: int = 12
    """Messages of the global shuffle that may be on their way at a time."""

    preload_thread_num: int = 0
    """Files of the next pass read at a time, with prefetch; 0 is train_thread_num."""

    infer_data_dir: str = ""
    """Accepted and not read: each pass is scored before it is trained."""

    train_dump_fields_dir: str = ""
    """Accepted and not read: need_train_dump isn't here."""

    infer_dump_fields_dir: str = ""
    """Accepted and not read: need_infer_dump isn't here."""

    @property
    def is_online(self) -> bool:
        """Whether it is trained by days."""
        return bool(self.days or self.start_day or self.end_day)

    @property
    def training_days(self) -> tuple[str, ...]:
        """The days as texts like 20260131, in the order of the calendar.

        Raises:
            ValueError: if they are none.
        """
        if self.days:
            return days_of(self.days)
        return days_of([f"{self.start_day}..{self.end_day}"])

    @property
    def passes_that_fit(self) -> int:
        """How many passes a day has folders for."""
        return _MINUTES // self.split_interval // self.split_per_pass

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        if not self.is_online:
            self._check_without_days()
            return
        self._check_days()
        most = _MINUTES // self.split_interval
        if not self.passes_that_fit:
            rule = f"at most {most}: a day has {most} folders of {self.split_interval} minutes"
            raise SettingError(name="split_per_pass", value=self.split_per_pass, rule=rule)
        if self.pass_per_day > self.passes_that_fit:
            rule = f"at most {self.passes_that_fit}: a day has folders for so many passes"
            raise SettingError(name="pass_per_day", value=self.pass_per_day, rule=rule)
        if "/" in self.data_donefile or self.data_donefile in {".", ".."}:
            rule = "the name of a file in each folder of data, without a path"
            raise SettingError(name="data_donefile", value=self.data_donefile, rule=rule)

    def _check_days(self) -> None:
        name, value = "days", ", ".join(self.days)
        if not self.days:
            name, value = ("start_day", self.start_day) if self.end_day else ("end_day", "")
        if self.days and (self.start_day or self.end_day):
            name, value = ("start_day", self.start_day or self.end_day)
            rule = "left out where days is given, and end_day too"
            raise SettingError(name=name, value=value, rule=rule)
        if not self.days and not (self.start_day and self.end_day):
            raise SettingError(name=name, value=value, rule="given, with start_day and end_day")
        try:
            days = self.training_days
        except ValueError as error:
            raise SettingError(name=name, value=value, rule=str(error)) from error
        if not days:
            raise SettingError(name=name, value=value, rule="at least one day")

    def _check_without_days(self) -> None:
        for field in fields(OnlineSettings):
            value = getattr(self, field.name)
            if value != field.default and field.name not in _NOT_READ:
                rule = f"left out, or {field.default!r}, where there is no days: {_NO_DAYS}"
                raise SettingError(name=field.name, value=value, rule=rule)


_NOT_READ = frozenset({"infer_data_dir", "train_dump_fields_dir", "infer_dump_fields_dir"})
_NO_DAYS = "it says how a training by days goes"
