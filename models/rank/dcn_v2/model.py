"""rank/dcn_v2: clicks, as ``runner.ClickModel`` feeds and judges them."""

import torch
from typing_extensions import override

from paramfleet import runner

from .net import DcnParameters, DcnV2

__all__ = ["Model"]


class Model(runner.ClickModel[DcnParameters]):
    """A network with Criteo's feeds, cross entropy, and the AUC."""

    @override
    def create_model(self) -> torch.nn.Module:
        return DcnV2(self.hyper, seed=self.config.runner.seed)
