"""recall/mind: what a user takes next."""

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import cross_entropy
from typing_extensions import override

from paramfleet import runner

from .net import Mind, MindParameters, draw
from .reader import judged_rows, padded
from .recalled import Recalled

__all__ = ["Model"]

_ITEMS_AT_ONCE = 1 << 16
"""Whose vectors are pulled in a test."""


class Model(runner.Model[MindParameters]):
    """The items before, and the one that is to be found."""

    def __init__(self, config: runner.Config[MindParameters]) -> None:
        super().__init__(config)
        self._generator = torch.Generator().manual_seed(config.runner.seed)

    @override
    def create_model(self) -> torch.nn.Module:
        return Mind(self.hyper, seed=self.config.runner.seed)

    @override
    def create_feeds(self, batch: Sequence[torch.Tensor]) -> runner.Feeds:
        before, items, lengths = batch
        others = draw(
            self.hyper.neg_samples, below=self.hyper.item_count, generator=self._generator
        )
        inputs = (before, lengths.flatten(), items.flatten(), others)
        return runner.Feeds(inputs, torch.zeros(len(items), dtype=torch.int64))

    @override
    def create_loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs, labels.long())

    @override
    def create_metrics(self) -> dict[str, runner.Metric]:
        return {}

    @override
    def update_metrics(
        self, metrics: Mapping[str, runner.Metric], outputs: torch.Tensor, labels: torch.Tensor
    ) -> None:
        """Count nothing: recall is over all items."""

    @override
    def evaluate(self, net: torch.nn.Module) -> dict[str, float]:
        assert isinstance(net, Mind), "what create_model made"
        device = next(net.parameters()).device
        vectors = torch.cat(
            [
                net.items(torch.arange(start, min(start + _ITEMS_AT_ONCE, end), device=device))
                for end in (self.hyper.item_count,)
                for start in range(1, end, _ITEMS_AT_ONCE)
            ]
        )
        recalled = Recalled(self.hyper.top_n)
        rows = [
            row
            for file in runner.list_files(self.config, "test_data_dir")
            for row in judged_rows(file)
        ]
        size = self.config.runner.infer_batch_size or self.config.runner.train_batch_size
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            before = [items[-self.hyper.maxlen :] for items, _ in some]
            interests = net.interests(
                torch.stack(
                    [torch.from_numpy(padded(b, self.hyper.maxlen)) for b in before]
                ).to(device),
                torch.tensor([len(b) for b in before], device=device),
            )
            recalled.update(interests, vectors, [set(wanted) for _, wanted in some])
        return recalled.values()
