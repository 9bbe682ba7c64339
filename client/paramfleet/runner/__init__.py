"""The runner: a model folder with a YAML file, trained by ``paramfleet train -m``.

What ``model.py`` and readers of a model folder import.
"""

from paramfleet.runner.batches import list_files
from paramfleet.runner.config.configuration import Config
from paramfleet.runner.config.settings import CtrParameters, HyperParameters, OptimizerSettings
from paramfleet.runner.models.clicks import ClickModel
from paramfleet.runner.models.layers import tower
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
