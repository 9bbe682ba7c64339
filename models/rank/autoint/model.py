"""rank/autoint: clicks, as ``runner.ClickModel`` feeds and judges them."""

from collections.abc import Sequence

import torch
from typing_extensions import override

from paramfleet import runner

from .net import AutoInt, AutoIntParameters

__all__ = ["Model"]


class Model(runner.ClickModel[AutoIntParameters]):
    """A network with Criteo's feeds, cross entropy, and the AUC."""

    @override
    def create_model(self) -> torch.nn.Module:
        return AutoInt(self.hyper, seed=self.config.runner.seed)

    @override
    def create_feeds(self, batch: Sequence[torch.Tensor]) -> runner.Feeds:
        if not self.hyper.num_field:
            return super().create_feeds(batch)
        label, ids, values = batch  # of PaddleRec's reader
        return runner.Feeds((ids, values), label.squeeze(1).float())
