"""Deep gradient compression: the largest values travel, the rest waits (Lin et al., 2018).

Each worker keeps, for each parameter, a velocity ``u`` and what it hasn't sent ``v``
(section 3.1, momentum correction)::

    u = m u + g;  v = v + u;  send the largest of v;  there u = v = 0

and everybody steps ``p -= lr mean(sent)`` without momentum. Before ``rampup_begin_step`` whole
gradients travel and momentum steps as torch's does; its velocity is the first ``u``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import distributed
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # documented, not marked
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from typing_extensions import override

__all__ = ["DgcSgd", "sparsity_at"]


def sparsity_at(step: int, configs: Mapping[str, Any]) -> float | None:
    """Return the share of a gradient that stays behind in a step, from 0; None for whole ones.

    Args:
        step: Steps taken before.
        configs: The keys of ``dgc_configs``; the values of ``sparsity`` follow each other
            over ``rampup_step`` steps, and the last one stays.
    """
    since = step - configs["rampup_begin_step"]
    if since < 0:
        return None
    ramp: tuple[float, ...] = configs["sparsity"]
    part: float = ramp[min(since * len(ramp) // configs["rampup_step"], len(ramp) - 1)]
    return part


class DgcSgd(torch.optim.Optimizer):
    """Momentum SGD over compressed gradients, and the hook that compresses them.

    Args:
        groups: Parameter groups of a ``torch.optim.SGD``, shared with it: ``lr``,
            ``momentum`` and ``weight_decay`` are theirs.
        configs: The keys of ``dgc_configs``.
    """

    def __init__(self, groups: list[dict[str, Any]], configs: Mapping[str, Any]) -> None:
        super().__init__(groups, {})
        self._configs = configs
        self._num_steps = 0
        self._group_of = {id(p): group for group in groups for p in group["params"]}

    def hook(self, _: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Return the mean of what all workers send of a bucket's gradients.

        It is DDP's communication hook: every worker calls it for the same buckets in the
        same order. What it returns has the same bits in every worker.
        """
        sparsity = sparsity_at(self._num_steps, self._configs)
        if sparsity is None:
            return allreduce_hook(None, bucket)  # type: ignore[arg-type]  # None is all workers
        buffer = bucket.buffer()
        places, values, offset = [], [], 0
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        for parameter, gradient in pairs:
            chosen, sent = self._choose(parameter, gradient, sparsity)
            places.append(chosen + offset)
            values.append(sent)
            offset += gradient.numel()
        place, value = torch.cat(places), torch.cat(values)
        size = distributed.get_world_size()
        all_places = [torch.empty_like(place) for _ in range(size)]
        all_values = [torch.empty_like(value) for _ in range(size)]
        distributed.all_gather(all_places, place)
        distributed.all_gather(all_values, value)
        buffer.zero_()
        for each_place, each_value in zip(all_places, all_values, strict=True):
            buffer[each_place] += each_value  # one worker's places differ: the order is fixed
        buffer.div_(size)
        is_cuda = buffer.device.type == "cuda"
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=[buffer.device] if is_cuda else None
        )
        done.set_result(buffer)
        return done

    @override
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # torch's overloads
        """Take one step with the gradients that the hook left."""
        assert closure is None, "the distributed optimizer calls it"
        whole = sparsity_at(self._num_steps, self._configs) is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                moved = parameter.grad
                if whole:
                    moved = moved.add(parameter, alpha=group["weight_decay"])
                    velocity = self._kept(parameter, "velocity")
                    moved = velocity.mul_(group["momentum"]).add_(moved)
                parameter.sub_(moved, alpha=group["lr"])
        self._num_steps += 1

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return velocities and what wasn't sent, both this worker's own, and the step."""
        return {**super().state_dict(), "num_steps": self._num_steps}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        rest = dict(state_dict)
        self._num_steps = rest.pop("num_steps")
        super().load_state_dict(rest)
        self._group_of = {id(p): group for group in self.param_groups for p in group["params"]}

    @torch.no_grad()
    def _choose(
        self, parameter: torch.Tensor, gradient: torch.Tensor, sparsity: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a gradient in; return the places, int64 [K], and values [K] that are sent."""
        group = self._group_of[id(parameter)]
        velocity = self._kept(parameter, "velocity").view(-1)
        unsent = self._kept(parameter, "unsent").view(-1)
        flat = gradient.reshape(-1).add(parameter.reshape(-1), alpha=group["weight_decay"])
        velocity.mul_(group["momentum"]).add_(flat)
        unsent.add_(velocity)
        count = max(1, unsent.numel() - round(unsent.numel() * sparsity))
        chosen = unsent.abs().topk(count).indices
        sent = unsent[chosen]
        unsent[chosen] = 0
        velocity[chosen] = 0
        return chosen, sent

    def _kept(self, parameter: torch.Tensor, name: str) -> torch.Tensor:
        state = self.state[parameter]
        if name not in state:
            buffer = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
            state[name] = buffer
        kept: torch.Tensor = state[name]
        return kept
