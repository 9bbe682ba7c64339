"""The runner: a model folder with a YAML file, trained by ``paramfleet train -m``.

What ``model.py`` and readers of a model folder import.
"""

from paramfleet.runner.batches import list_files
from paramfleet.runner.clicks import ClickModel
from paramfleet.runner.config import Config
from paramfleet.runner.layers import tower
from paramfleet.runner.lines import LineError, read_lines
from paramfleet.runner.metrics import (
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
from paramfleet.runner.model import Feeds, Model
from paramfleet.runner.settings import CtrParameters, HyperParameters, OptimizerSettings

__all__ = [
    "Accuracy",
    "Auc",
    "ClickModel",
    "Config",
    "CtrParameters",
    "Feeds",
    "HyperParameters",
    "LineError",
    "Mae",
    "Mean",
    "Metric",
    "Model",
    "Mse",
    "OptimizerSettings",
    "Precision",
    "Recall",
    "Rmse",
    "list_files",
    "read_lines",
    "tower",
]
