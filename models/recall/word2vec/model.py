"""recall/word2vec: words from their neighbours, judged by analogies and similarity."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet import runner
from paramfleet.text import VocabularyError, WordVectors, read_pairs, read_questions

from .net import SkipGram, Word2VecParameters
from .reader import vocabulary_of

__all__ = ["Model"]


class Model(runner.Model[Word2VecParameters]):
    """Skip-gram whose pairs learn one after the other, at the rate of the step."""

    unit: ClassVar[str] = "words"

    def __init__(self, config: runner.Config[Word2VecParameters]) -> None:
        super().__init__(config)
        self.vocabulary = vocabulary_of(config)
        self._groups: list[dict[str, Any]] = []
        if self.hyper.vocabulary_save_path and fleet.worker_index() == 0:
            self.vocabulary.save(config.path_of(self.hyper.vocabulary_save_path))

    @override
    def create_model(self) -> torch.nn.Module:
        seed = self.config.runner.seed
        return SkipGram(len(self.vocabulary), self.hyper.embedding_dim, seed=seed)

    @override
    def create_feeds(self, batch: Sequence[torch.Tensor]) -> runner.Feeds:
        words, reaches, targets, count = batch
        return runner.Feeds((words, targets), reaches, int(count))

    @override
    def create_loss(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        words, targets = outputs
        return fleet.nn.skip_gram_loss(words, targets, labels, rate=self._groups[0]["lr"])

    @override
    def create_optimizer(self, net: torch.nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(net.parameters(), lr=self.hyper.optimizer.learning_rate)
        self._groups = optimizer.param_groups
        return optimizer

    @override
    def create_scheduler(
        self, optimizer: torch.optim.Optimizer
    ) -> torch.optim.lr_scheduler.LRScheduler:
        found = fleet.util.all_gather(self.vocabulary.digest)
        if len(set(found)) > 1:
            rule = "differ from worker to worker: give all of them one vocabulary_path"
            raise VocabularyError(source="the words of the training files", rule=rule)
        own = self.config.runner
        words = self.vocabulary.num_occurrences * own.epochs / fleet.worker_num()
        least = self.hyper.min_learning_rate / self.hyper.optimizer.learning_rate
        steps = words / own.train_batch_size
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: max(1 - step / steps, least)
        )

    @override
    def create_metrics(self) -> dict[str, runner.Metric]:
        return {}

    @override
    def update_metrics(
        self, metrics: Mapping[str, runner.Metric], outputs: Any, labels: torch.Tensor
    ) -> None:
        """Count nothing: what is judged are all vectors together."""

    @override
    def evaluate(self, net: torch.nn.Module) -> dict[str, float]:
        assert isinstance(net, SkipGram), "what create_model made"
        vectors = WordVectors(self.vocabulary.words, net.vectors())
        found: dict[str, float] = {}
        alike = {}
        for file in runner.list_files(self.config, "test_data_dir"):
            name = file.rpartition("/")[2]
            if "questions" in name:
                found["analogy_accuracy"] = vectors.analogies(read_questions(file))
            else:
                alike[name.partition(".")[0]] = vectors.similarity(read_pairs(file))
        if alike:
            found["similarity"] = sum(alike.values()) / len(alike)
        found.update({f"similarity_{name}": value for name, value in alike.items()})
        return {name: value for name, value in found.items() if math.isfinite(value)}
