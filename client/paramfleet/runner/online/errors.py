"""What can be wrong with the data of a training by days, or with what it goes on from."""

from paramfleet_shared.errors import ContractError, HeldError, UnavailableError

__all__ = [
    "DataMissingError",
    "DataNotComeError",
    "ModelFolderInUseError",
    "NotTogetherError",
    "OtherPassesError",
]


class DataMissingError(ContractError):
    """A folder of a pass isn't there, and nothing says that it is to be waited for."""

    code = "contract.data_missing"
    part: str
    folder: str
    sentence = (
        "{part}: there is no folder {folder}: put its data there, leave its day out of "
        "runner.days, or set runner.data_donefile to the file that shows that a folder is "
        "complete: then the training waits for it"
    )


class DataNotComeError(UnavailableError):
    """The data of a pass didn't come in time."""

    code = "unavailable.data_not_come"
    part: str
    waits_for: str
    seconds: float
    sentence = (
        "{part}: {waits_for} did not appear within {seconds:g} s (runner.data_wait_s): when it "
        "is there, start the training again; it continues from its newest checkpoint"
    )


class ModelFolderInUseError(HeldError):
    """Another training, whose worker 0 is the holder, saves into the same folder."""

    code = "unavailable.model_folder_in_use"
    sentence = (
        "{path} (runner.model_save_path) is in use by {holder}, worker 0 of another training "
        "by days: wait for its end, or end it with paramfleet end, or name another folder"
    )


class OtherPassesError(ContractError):
    """A checkpoint isn't one that these days and passes go on from."""

    code = "contract.other_passes"
    path: str
    rule: str
    sentence = "the checkpoint {path} {rule}"


class NotTogetherError(ContractError):
    """Workers that come and go can't train passes, whose samples are shared among all."""

    code = "contract.not_together"
    what: str
    sentence = (
        "{what} can't train by days, because all workers begin each pass together: launch the "
        "job again, without --max_restarts and elastic workers; it continues from its newest "
        "checkpoint"
    )
