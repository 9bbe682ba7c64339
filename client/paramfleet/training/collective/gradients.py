"""How the gradients of a batch come together: torch's DistributedDataParallel."""

from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from paramfleet.config.strategy import CollectiveMode
from paramfleet.model_state.batch_norm import check_sync_batch_norm, note_local_statistics
from paramfleet.training.collective.errors import CollectiveSetupError
from paramfleet.training.collective.features.merging import Merge
from paramfleet.training.collective.world import World
from paramfleet_shared.errors import ContractError

__all__ = [
    "LocalGradientsError",
    "Reduction",
    "SecondBackwardError",
    "UnusedParametersError",
]

_MAX_WRAPPERS = 2
"""Sets of trained parameters whose wrappers are kept, for scripts that alternate."""


class UnusedParametersError(ContractError):
    """A batch left parameters without a gradient, so that the all-reduce is partial."""

    code = "contract.unused_parameters"
    names: str
    sentence = (
        "backward() left these parameters without a gradient, and the all-reduce waits for it: "
        "{names}: set strategy.find_unused_parameters = True, or requires_grad_(False) on what "
        "isn't trained; nothing was changed"
    )


class SecondBackwardError(ContractError):
    """A second backward of one forward pass would add gradients of this worker alone."""

    code = "contract.second_backward"
    name: str
    sentence = (
        "{name} got a second gradient from one forward pass, after the first one was "
        "all-reduced: add the losses and call backward() once, or call the model once for "
        "each backward(); checkpoint() needs use_reentrant=False"
    )


class LocalGradientsError(ContractError):
    """Gradients that ``backward`` didn't make are those of this worker alone."""

    code = "contract.local_gradients"
    sentence = (
        "the gradients of this step are not all-reduced, because loss.backward() didn't make "
        "them: call backward() (autograd.grad() is for what isn't stepped); nothing was changed"
    )


class Reduction:
    """A model whose ``backward`` leaves the mean of all workers' gradients.

    Only the last batch of a merged step is all-reduced. DistributedDataParallel knows the
    parameters that need gradients when it is made, so there is one for each set of them.

    Args:
        module: On this worker's device; every worker begins with the values of worker 0.
        mode: The strategy.
        world: The workers.
        merge: Says which batch is a step's last.

    Raises:
        CollectiveSetupError: if batch norm can't be synchronised on this device, or an
            embedding has ``max_norm`` or ``scale_grad_by_freq``.
        PeersLostError: if a worker is lost meanwhile.
    """

    def __init__(
        self, module: torch.nn.Module, mode: CollectiveMode, world: World, merge: Merge
    ) -> None:
        if not world.alone:
            _check_embeddings(module)
        self._module = _with_batch_norm(module, mode, world)
        self._mode = mode
        self._world = world
        self._merge = merge
        self._hook: tuple[Any, Any] | None = None
        self._parameters = list(self._module.named_parameters())
        self._wrappers: dict[tuple[bool, ...], DistributedDataParallel] = {}
        self._key: tuple[bool, ...] = ()
        """Which parameters need gradients."""
        self._trained: list[tuple[str, torch.nn.Parameter]] = []
        self._counts: list[int] = []
        """Gradients of each trained parameter since the last forward pass."""
        self._counting: list[Any] = []
        self._is_reducing = False
        self._waits = False
        """Whether a forward pass has no gradients yet that are all-reduced."""
        self._wrapper: DistributedDataParallel | None = None
        self._wrapper = self._take_trained()

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """Let a hook all-reduce the gradients; before the first batch."""
        self._hook = (state, hook)
        if self._wrapper is not None:
            self._wrapper.register_comm_hook(state, hook)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns.

        Raises:
            UnusedParametersError: if the batch before left parameters without a gradient.
            PeersLostError: if a worker is lost meanwhile.
        """
        if torch.is_grad_enabled():
            self._check_counts()
            self._wrapper = self._take_trained()
            self._is_reducing = self._merge.is_last
            self._waits = self._waits or self._is_reducing
        if self._wrapper is None:
            return self._module(*args, **kwargs)
        if self._merge.is_last or not torch.is_grad_enabled():
            with self._world.together("a forward pass"):  # it sends buffers
                return self._wrapper(*args, **kwargs)
        with self._wrapper.no_sync():
            return self._wrapper(*args, **kwargs)

    def check(self) -> None:
        """Check that the gradients are those of all workers; to be called before a step.

        Raises:
            UnusedParametersError: if some parameters got none.
            LocalGradientsError: if ``backward`` made none.
        """
        if any(self._counts):
            self._check_counts()
        elif self._waits and self._is_reducing and not self._world.alone:
            found = [each.grad for _, each in self._trained if each.grad is not None]
            if any(bool(each.any()) for each in found):
                raise LocalGradientsError
        self._waits = False

    def _check_counts(self) -> None:
        """Check that each trained parameter got its gradient, if any did.

        Raises:
            UnusedParametersError: if some got none.
        """
        if not any(self._counts):
            return
        counted = zip(self._trained, self._counts, strict=True)
        unused = [name for (name, _), count in counted if not count]
        self._counts = [0] * len(self._trained)
        self._waits = False
        if unused and not self._mode.find_unused_parameters:
            more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
            raise UnusedParametersError(names=", ".join(unused[:3]) + more)

    def _take_trained(self) -> DistributedDataParallel | None:
        """Return the wrapper for the parameters that need gradients now; None without any."""
        key = tuple(parameter.requires_grad for _, parameter in self._parameters)
        if key == self._key:
            return self._wrapper
        self._key = key
        for handle in self._counting:
            handle.remove()
        self._trained = [each for each in self._parameters if each[1].requires_grad]
        self._counts = [0] * len(self._trained)
        self._counting = [
            parameter.register_post_accumulate_grad_hook(partial(self._count, number))  # type: ignore[no-untyped-call]  # torch leaves it untyped
            for number, (_, parameter) in enumerate(self._trained)
        ]
        if any(key) and key not in self._wrappers:
            while len(self._wrappers) >= _MAX_WRAPPERS:
                _drop(self._wrappers.pop(next(iter(self._wrappers))))
            self._wrappers[key] = self._wrap()
        return self._wrappers.get(key)

    def _wrap(self) -> DistributedDataParallel:
        device = self._world.device
        with self._world.together("distributed_model"):
            wrapper = DistributedDataParallel(
                self._module,
                device_ids=[device.index] if device.type == "cuda" else None,
                bucket_cap_mb=self._mode.fuse_grad_size_in_MB,
                find_unused_parameters=self._mode.find_unused_parameters,
            )
        if self._hook is not None:
            wrapper.register_comm_hook(*self._hook)
        return wrapper

    def _count(self, number: int, _: torch.Tensor) -> None:
        """Count a gradient, before the all-reduce sees it.

        Raises:
            SecondBackwardError: if it isn't the first one since the forward pass.
        """
        if not self._is_reducing:
            return
        self._counts[number] += 1
        if self._counts[number] > 1 and not self._world.alone:
            raise SecondBackwardError(name=self._trained[number][0])


def _with_batch_norm(
    module: torch.nn.Module, mode: CollectiveMode, world: World
) -> torch.nn.Module:
    """Return the model with torch's SyncBatchNorm, if the strategy says so.

    Raises:
        CollectiveSetupError: if this device has none.
        SyncBatchNormError: if it has none and the model has layers of it.
    """
    if world.device.type != "cuda":
        remedy = "torch's runs on GPUs only: keep torch.nn.BatchNorm on CPUs"
        check_sync_batch_norm(module, remedy=remedy)
    if not mode.sync_batch_norm:
        if not (world.alone or world.rank):
            remedy = "strategy.sync_batch_norm = True, on GPUs"
            note_local_statistics(module, remedy=remedy)
        return module
    if world.device.type != "cuda":
        rule = "torch's SyncBatchNorm runs on GPUs only"
        raise CollectiveSetupError(
            found=f"sync_batch_norm = True on {world.device.type}", rule=rule
        )
    convert: Any = torch.nn.SyncBatchNorm.convert_sync_batchnorm
    converted: torch.nn.Module = convert(module)
    return converted


def _check_embeddings(module: torch.nn.Module) -> None:
    """Check that no option of an embedding makes values that the workers don't share.

    Raises:
        CollectiveSetupError: naming the first option that does.
    """
    for path, layer in module.named_modules():
        if not isinstance(layer, torch.nn.Embedding | torch.nn.EmbeddingBag):
            continue
        for option in ("max_norm", "scale_grad_by_freq"):
            if getattr(layer, option):
                raise CollectiveSetupError(
                    found=f"{option} of embedding {path!r}",
                    rule="each worker would apply it to the ids of its own batch: leave it out",
                )


def _drop(wrapper: DistributedDataParallel) -> None:
    """Let go of a wrapper's reducer, whose hooks and buckets end with it."""
    wrapper.reducer = wrapper.logger = None  # type: ignore[assignment]  # it has no other end
