"""The runner: a model folder with a YAML file, trained by ``paramfleet train -m``.

What ``model.py`` and readers of a model folder import.
"""

from paramfleet.runner.batches import list_files
from paramfleet.runner.config.configuration import Config
from paramfleet.runner.config.settings import CtrParameters, HyperParameters, OptimizerSettings
from paramfleet.runner.models.clicks import ClickModel
from paramfleet.runner.models.layers import NO_ID, slot_sums, tower
from paramfleet.runner.models.lines import LineError, read_lines
from paramfleet.runner.models.metrics import (
    Accuracy,
    Auc,
    Mae,
    Mean,
    Metric,
    Mse,
    Precision,
    Recall,
    Rmse,
)
from paramfleet.runner.models.model import Feeds, Model
from paramfleet.runner.models.quality import (
    Calibration,
    Gauc,
    LogLoss,
    NdcgAtK,
    NormalizedEntropy,
    RecallAtK,
)

__all__ = [
    "NO_ID",
    "Accuracy",
    "Auc",
    "Calibration",
    "ClickModel",
    "Config",
    "CtrParameters",
    "Feeds",
    "Gauc",
    "HyperParameters",
    "LineError",
    "LogLoss",
    "Mae",
    "Mean",
    "Metric",
    "Model",
    "Mse",
    "NdcgAtK",
    "NormalizedEntropy",
    "OptimizerSettings",
    "Precision",
    "Recall",
    "RecallAtK",
    "Rmse",
    "list_files",
    "read_lines",
    "slot_sums",
    "tower",
]
