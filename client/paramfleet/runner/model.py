"""What a model folder's ``model.py`` defines: one class, ``Model``.

The names of its methods are those of PaddleRec's ``DygraphModel``.
"""

import abc
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch

from paramfleet.data.slots import Slot
from paramfleet.runner.config import Config
from paramfleet.runner.errors import ModelFolderError
from paramfleet.runner.metrics import Metric
from paramfleet.runner.optimizers import make_optimizer
from paramfleet.runner.settings import HyperParameters

__all__ = ["Feeds", "Model"]

P = TypeVar("P", bound=HyperParameters)


class Feeds(NamedTuple):
    """One batch, as the network takes it."""

    inputs: tuple[torch.Tensor, ...]
    """The arguments of its forward, [B, ...] each."""
    labels: torch.Tensor
    """float32 [B, ...]."""


class Model(abc.ABC, Generic[P]):
    """A network with its feeds, loss, optimizer and metrics.

    ``class Model(runner.Model[Mine])`` says that the hyper parameters are those of the
    dataclass ``Mine``.

    Args:
        config: The configuration.
    """

    parameters: ClassVar[type[HyperParameters]] = HyperParameters
    """The dataclass that says which hyper parameters there are."""

    def __init_subclass__(cls) -> None:
        """Note the class of the hyper parameters."""
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            (named,) = typing.get_args(base) or (None,)
            if isinstance(named, type) and issubclass(named, HyperParameters):
                cls.parameters = named

    def __init__(self, config: Config[P]) -> None:
        self.config = config
        self.hyper = config.hyper_parameters

    @abc.abstractmethod
    def create_model(self) -> torch.nn.Module:
        """Return the network."""

    def create_slots(self) -> Sequence[Slot]:
        """Return the slots of MultiSlot text, in its order, one a field of a batch.

        Raises:
            ModelFolderError: if the model has none: it can't be fed by a QueueDataset.
        """
        path = str(self.config.path.parent / self.config.runner.model_path)
        rule = "QueueDataset and InmemoryDataset need its create_slots"
        raise ModelFolderError(path=path, rule=rule)

    @abc.abstractmethod
    def create_feeds(self, batch: Sequence[torch.Tensor]) -> Feeds:
        """Return a batch as the network takes it.

        Args:
            batch: A tensor [B, width] for each field of the reader's samples, or for each
                slot, in order: ids and other whole numbers int64, the rest float32. A slot
                that isn't dense is padded with 0, or cut, to its width.
        """

    @abc.abstractmethod
    def create_loss(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch, a scalar."""

    def create_optimizer(self, net: torch.nn.Module) -> torch.optim.Optimizer:
        """Return torch's optimizer over all parameters: what ``optimizer`` says."""
        return make_optimizer(net, self.hyper.optimizer)

    @abc.abstractmethod
    def create_metrics(self) -> Mapping[str, Metric]:
        """Return fresh metrics, by the names that results have; the first is the model's."""

    @abc.abstractmethod
    def update_metrics(
        self, metrics: Mapping[str, Any], outputs: Any, labels: torch.Tensor
    ) -> None:
        """Count a batch in the metrics that ``create_metrics`` made."""
