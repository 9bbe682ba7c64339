"""What a model folder's ``model.py`` defines: one class, ``Model``.

The names of its methods are those of PaddleRec's ``DygraphModel``.
"""

import abc
import sys
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch

from paramfleet.data.parsing.slots import Slot
from paramfleet.runner.config.configuration import Config
from paramfleet.runner.config.errors import ModelFolderError
from paramfleet.runner.config.settings import HyperParameters
from paramfleet.runner.models.metrics import Metric
from paramfleet.runner.models.optimizers import make_optimizer, make_scheduler

__all__ = ["Feeds", "Model"]

P = TypeVar("P", bound=HyperParameters)


class Feeds(NamedTuple):
    """One batch, as the network takes it."""

    inputs: tuple[torch.Tensor, ...]
    """The arguments of its forward, [B, ...] each."""
    labels: torch.Tensor
    """float32 [B, ...]."""
    num_examples: int | None = None
    """How many examples there are, where that isn't the length of ``labels``."""

    @property
    def size(self) -> int:
        """How many examples there are."""
        return len(self.labels) if self.num_examples is None else self.num_examples


class Model(abc.ABC, Generic[P]):
    """A network with its feeds, loss, optimizer and metrics.

    ``class Model(runner.Model[Mine])`` says that the hyper parameters are those of the
    dataclass ``Mine``.

    Args:
        config: The configuration.
    """

    parameters: ClassVar[type[HyperParameters]] = HyperParameters
    """The dataclass that says which hyper parameters there are."""

    pads_ids: ClassVar[bool] = False
    """Whether a ``RecDataset`` may yield fields with any number of ids: they are padded with
    ``NO_ID``. Otherwise they are an error."""

    unit: ClassVar[str] = "examples"
    """What is counted, in the plural: the result has ``examples_per_s``."""

    def __init_subclass__(cls) -> None:
        """Note the class of the hyper parameters.

        Raises:
            ModelFolderError: if what stands for it isn't one.
        """
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            origin, (named, *_) = typing.get_origin(base), typing.get_args(base) or (Any,)
            if not isinstance(origin, type) or not issubclass(origin, Model):
                continue
            if isinstance(named, type) and issubclass(named, HyperParameters):
                cls.parameters = named
            elif isinstance(named, type) and named is not Any:
                path = str(getattr(sys.modules.get(cls.__module__), "__file__", cls.__module__))
                rule = (
                    f"class {cls.__name__}(Model[{named.__name__}]): {named.__name__} must be "
                    "a frozen dataclass derived from paramfleet.runner.HyperParameters"
                )
                raise ModelFolderError(path=path, rule=rule)

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
        path = str(self.config.modules / self.config.runner.model_path)
        rule = "QueueDataset and InmemoryDataset need its create_slots"
        raise ModelFolderError(path=path, rule=rule)

    @abc.abstractmethod
    def create_feeds(self, batch: Sequence[torch.Tensor]) -> Feeds:
        """Return a batch as the network takes it.

        Args:
            batch: A tensor [B, width] for each field of the reader's samples, or for each
                slot, in order: ids and other whole numbers int64, the rest float32. A slot
                that isn't dense has all its values, padded to the most of an example of the
                batch: ids with ``NO_ID`` (the ``padding_idx`` of an embedding), floats with
                0. If it has a width, it is padded with 0, or cut, to that.
        """

    @abc.abstractmethod
    def create_loss(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch, a scalar."""

    def create_optimizer(self, net: torch.nn.Module) -> torch.optim.Optimizer:
        """Return torch's optimizer over all parameters: what ``optimizer`` says."""
        return make_optimizer(net, self.hyper.optimizer)

    def create_scheduler(
        self, optimizer: torch.optim.Optimizer
    ) -> torch.optim.lr_scheduler.LRScheduler | None:
        """Return what changes the learning rate, stepped after each step; None for nothing.

        What ``optimizer.decay_steps`` says, if nothing else.
        """
        return make_scheduler(optimizer, self.hyper.optimizer)

    @abc.abstractmethod
    def create_metrics(self) -> Mapping[str, Metric]:
        """Return fresh metrics, by the names that results have; the first is the model's."""

    @abc.abstractmethod
    def update_metrics(
        self, metrics: Mapping[str, Any], outputs: Any, labels: torch.Tensor
    ) -> None:
        """Count a batch in the metrics that ``create_metrics`` made."""

    def evaluate(self, net: torch.nn.Module) -> Mapping[str, float] | None:
        """Return how good the network is, where that isn't seen batch by batch.

        Called instead of scoring the test files, where there are any, by every worker; all
        must find the same. None has the batches of the test files scored.

        Args:
            net: The network, as ``create_model`` made it.
        """
        del net
        return None
