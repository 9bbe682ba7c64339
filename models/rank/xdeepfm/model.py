"""rank/xdeepfm: clicks, as ``runner.ClickModel`` feeds and judges them."""

import torch
from typing_extensions import override

from paramfleet import runner

from .net import XDeepFm, XDeepFmParameters

__all__ = ["Model"]


class Model(runner.ClickModel[XDeepFmParameters]):
    """A network with Criteo's feeds, cross entropy, and the AUC."""

    @override
    def create_model(self) -> torch.nn.Module:
        return XDeepFm(self.hyper, seed=self.config.runner.seed)
