"""What both kinds of dataset share: settings, files, bad lines."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from paramfleet.data.batch import Batch
from paramfleet.data.parsing.bad_lines import BadLines
from paramfleet.data.reading.files import require_files
from paramfleet.data.settings import DatasetSettings, changed
from paramfleet_shared.errors import ContractError

__all__ = ["DatasetBase", "NotInitializedError"]


class NotInitializedError(ContractError):
    """A dataset was used before ``init``."""

    code = "contract.dataset_not_initialized"
    sentence = "call init(use_var=[...]) on the dataset first"


class DatasetBase(torch.utils.data.IterableDataset[Batch]):
    """Files of MultiSlot text as batches; give it to a ``DataLoader(batch_size=None)``."""

    def __init__(self) -> None:
        super().__init__()
        self._settings: DatasetSettings | None = None
        self._files: list[str] = []
        self._bad_counts: Counter[str] = Counter()

    @property
    def settings(self) -> DatasetSettings:
        """The settings as they are now.

        Raises:
            NotInitializedError: before ``init``.
        """
        if self._settings is None:
            raise NotInitializedError
        return self._settings

    def init(self, **settings: Any) -> None:
        """Set the dataset up; see ``DatasetSettings`` for the names.

        Raises:
            UnknownSettingError: if there is no setting of a name; it says the nearest.
            SettingError: if a value is outside its range.
        """
        self._settings = changed(None, settings)
        self._bad_counts = Counter()

    def update_settings(self, **settings: Any) -> None:
        """Change some settings; they hold from the next epoch, or load, on.

        Raises:
            NotInitializedError: before ``init``.
            UnknownSettingError: if there is no setting of a name; it says the nearest.
            SettingError: if a value is outside its range.
        """
        self._settings = changed(self.settings, settings)

    def set_filelist(self, files: Sequence[str]) -> None:
        """Take these files: local paths, or addresses that fsspec knows.

        Raises:
            TypeError: if it is one string.
            EmptyFileListError: if there are none.
            CannotReadFileError: if a local one isn't a file.
        """
        if isinstance(files, str):
            message = "set_filelist takes a list of files"
            raise TypeError(message)
        named = [str(file) for file in files]
        require_files(named, self.settings)
        self._files = named

    def get_filelist(self) -> list[str]:
        """Return the files."""
        return list(self._files)

    @property
    def bad_lines(self) -> Mapping[str, int]:
        """Lines that were no samples, by file, since ``init``; of this process."""
        return dict(self._bad_counts)

    def quarantine_file(self, file: str) -> Path:
        """Return where the bad lines of a file are kept, if it has any."""
        return self._new_bad_lines().path_of(file)

    def _new_bad_lines(self) -> BadLines:
        return BadLines(
            self.settings.on_bad_line, Path(self.settings.quarantine_dir), self._bad_counts
        )


def share_of_process(numbers: range) -> range:
    """Return what of these numbers this process reads: its own in a ``DataLoader``'s."""
    info = torch.utils.data.get_worker_info()
    return numbers if info is None else numbers[info.id :: info.num_workers]
