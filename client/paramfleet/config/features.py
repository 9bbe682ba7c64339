"""The features of a strategy: a switch ``<flag>``, and ``<flag>_configs`` for its keys.

They are collective mode's; the LocalSGD family also works over the parameter servers.
Which go together is in ``CLASHES``; a pair that isn't there trains.
"""

from collections.abc import Collection, Mapping
from typing import Any

from paramfleet.config.strategy_keys import MAX_STEPS, Key, StrategyError
from paramfleet_shared.tables.codecs.catalog import WIRE_DTYPES
from paramfleet_shared.values.bounds import MAX_LEARNING_RATE
from paramfleet_shared.values.texts import shown

__all__ = [
    "CLASHES",
    "FAMILY",
    "FEATURES",
    "SETTINGS",
    "check_pairs",
]

_OUTER: dict[str, Key] = {
    "outer_optimizer": Key(
        kind=str,
        default="none",
        choices=("none", "sgd", "nesterov"),
        meaning="Optimizer that applies the mean of the workers' differences; `none` adds it "
        "as it is, which averages the parameters.",
    ),
    "outer_lr": Key(
        kind=float,
        default=1.0,
        exclusive_minimum=0.0,
        maximum=MAX_LEARNING_RATE,
        meaning="Learning rate of `outer_optimizer`.",
    ),
    "outer_momentum": Key(
        kind=float,
        default=0.0,
        minimum=0.0,
        maximum=1.0,
        meaning="Momentum of `outer_optimizer`.",
    ),
    "optimizer_state": Key(
        kind=str,
        default="keep",
        choices=("keep", "average", "reset"),
        meaning="What happens to the inner optimizer's state when the workers synchronize.",
    ),
    "wire_dtype": Key(
        kind=str,
        default="float32",
        choices=WIRE_DTYPES,
        meaning="Number format of differences on the network; the rounding error is sent "
        "later.",
    ),
    "overlap": Key(
        kind=bool,
        default=False,
        meaning="Continue training while the workers synchronize; the result is applied when "
        "the next synchronization begins.",
    ),
}

_BEGIN = Key(
    kind=int,
    default=1,
    minimum=1,
    maximum=MAX_STEPS,
    meaning="Number of first steps after which the workers synchronize each time.",
)

FAMILY: dict[str, dict[str, Key]] = {
    "localsgd": {
        "k_steps": Key(
            kind=int,
            default=1,
            minimum=1,
            maximum=MAX_STEPS,
            meaning="Steps of a worker from one synchronization to the next.",
        ),
        "begin_step": _BEGIN,
        **_OUTER,
    },
    "adaptive_localsgd": {
        "init_k_steps": Key(
            kind=int,
            default=1,
            minimum=1,
            maximum=MAX_STEPS,
            meaning="First interval, in steps.",
        ),
        "begin_step": _BEGIN,
        "variant": Key(
            kind=str,
            default="paper",
            choices=("paper", "fleet"),
            meaning="The formula: AdaComm's, or Fleet's, with the first interval in the root.",
        ),
        "max_k_steps": Key(
            kind=int,
            default=16,
            minimum=1,
            maximum=MAX_STEPS,
            meaning="Longest interval, in steps.",
        ),
        **_OUTER,
    },
    "diloco": {
        "k_steps": Key(
            kind=int,
            default=100,
            minimum=1,
            maximum=MAX_STEPS,
            meaning="Steps of a worker from one synchronization to the next.",
        ),
        **_OUTER,
        "outer_optimizer": Key(
            kind=str,
            default="nesterov",
            choices=("none", "sgd", "nesterov"),
            meaning="Optimizer that applies the mean of the workers' differences.",
        ),
        "outer_lr": Key(
            kind=float,
            default=0.7,
            exclusive_minimum=0.0,
            maximum=MAX_LEARNING_RATE,
            meaning="Learning rate of `outer_optimizer`.",
        ),
        "outer_momentum": Key(
            kind=float,
            default=0.9,
            minimum=0.0,
            maximum=1.0,
            meaning="Momentum of `outer_optimizer`.",
        ),
        "fragments": Key(
            kind=int,
            default=1,
            minimum=1,
            maximum=4096,
            meaning="Number of parts of the model that are synchronized in turn; more than one "
            "is streaming DiLoCo.",
        ),
        "overlap_steps": Key(
            kind=int,
            default=0,
            minimum=0,
            maximum=MAX_STEPS,
            meaning="Number of steps until the result of a synchronization is applied.",
        ),
        "mixing": Key(
            kind=float,
            default=None,
            minimum=0.0,
            maximum=1.0,
            meaning="With `overlap_steps`: the share of the worker's own values in the values "
            "with which it continues; none keeps all progress made during the exchange.",
        ),
    },
}
"""LocalSGD and its kin, which exclude each other."""

_EXCLUDED = Key(
    kind=tuple,
    default=(),
    member_kind=str,
    meaning="Parameters without weight decay, by a part of their names.",
)

FEATURES: dict[str, dict[str, Key]] = {
    "gradient_merge": {
        "k_steps": Key(
            kind=int,
            default=1,
            minimum=1,
            maximum=MAX_STEPS,
            meaning="Number of batches in one step.",
        ),
        "avg": Key(
            kind=bool,
            default=True,
            meaning="Use the mean of their gradients instead of the sum.",
        ),
    },
    "amp": {
        "dtype": Key(
            kind=str,
            default="float16",
            choices=("float16", "bfloat16"),
            meaning="Number format of the forward pass; only `float16` scales the loss.",
        ),
        "init_loss_scaling": Key(
            kind=float,
            default=32768.0,
            exclusive_minimum=0.0,
            maximum=2.0**40,
            meaning="First scale of the loss.",
        ),
        "incr_every_n_steps": Key(
            kind=int,
            default=1000,
            minimum=1,
            maximum=MAX_STEPS,
            meaning="Number of finite steps after which the scale grows.",
        ),
        "decr_every_n_nan_or_inf": Key(
            kind=int,
            default=2,
            minimum=1,
            maximum=MAX_STEPS,
            meaning="Number of steps in a row with NaN or infinity after which it shrinks.",
        ),
        "incr_ratio": Key(
            kind=float,
            default=2.0,
            exclusive_minimum=1.0,
            maximum=1e6,
            meaning="Factor by which it grows.",
        ),
        "decr_ratio": Key(
            kind=float,
            default=0.8,
            exclusive_minimum=0.0,
            maximum=1.0,
            meaning="Factor by which it shrinks.",
        ),
        "use_dynamic_loss_scaling": Key(
            kind=bool, default=True, meaning="False: keep the first scale."
        ),
    },
    "lars": {
        "lars_coeff": Key(
            kind=float,
            default=0.001,
            exclusive_minimum=0.0,
            maximum=1e6,
            meaning="Trust coefficient of LARS.",
        ),
        "lars_weight_decay": Key(
            kind=float, default=0.0005, minimum=0.0, maximum=1e6, meaning="Weight decay."
        ),
        "epsilon": Key(
            kind=float,
            default=0.0,
            minimum=0.0,
            maximum=1e6,
            meaning="Number that is added to the norm in the denominator.",
        ),
        "exclude_from_weight_decay": _EXCLUDED,
    },
    "lamb": {
        "lamb_weight_decay": Key(
            kind=float, default=0.01, minimum=0.0, maximum=1e6, meaning="Weight decay."
        ),
        "exclude_from_weight_decay": _EXCLUDED,
    },
    "dgc": {
        "rampup_begin_step": Key(
            kind=int,
            default=0,
            minimum=0,
            maximum=MAX_STEPS,
            meaning="Number of first steps that send complete gradients.",
        ),
        "rampup_step": Key(
            kind=int,
            default=1,
            minimum=1,
            maximum=MAX_STEPS,
            meaning="Steps over which the values of `sparsity` follow each other.",
        ),
        "sparsity": Key(
            kind=tuple,
            default=(0.999,),
            member_kind=float,
            min_members=1,
            minimum=0.0,
            maximum=1.0,
            meaning="Shares of a gradient that are not sent, one for each part of the ramp.",
        ),
    },
    "fp16_allreduce": {
        "dtype": Key(
            kind=str,
            default="float16",
            choices=("float16", "bfloat16"),
            meaning="How gradients travel.",
        ),
    },
    "sharding": {
        "stage": Key(
            kind=int,
            default=2,
            choices=(2, 3),
            remedy="torch's fully_shard has no stage 1; 2 keeps less, and costs no more",
            meaning="2 cuts gradients and optimizer state up among the workers, and keeps the "
            "parameters whole between forward and backward; 3 cuts those up too.",
        ),
    },
    **FAMILY,
}
"""The keys of every feature's ``_configs``."""

SETTINGS: dict[str, Key] = {
    "fuse_grad_size_in_MB": Key(
        kind=int,
        default=32,
        minimum=1,
        maximum=65_536,
        meaning="Size of the buckets that are all-reduced.",
    ),
    "find_unused_parameters": Key(
        kind=bool,
        default=False,
        meaning="Look for parameters that a batch doesn't use; costs a pass over the graph.",
    ),
    "sync_batch_norm": Key(
        kind=bool,
        default=False,
        meaning="Batch norm over the batches of all workers: with servers in sync mode, in "
        "collective mode on GPUs.",
    ),
    "on_worker_loss": Key(
        kind=str,
        default="wait",
        choices=("wait", "shrink"),
        meaning="With servers in sync mode: what happens if a worker died and no new process "
        "replaces it in time: the job ends (wait), or continues without this worker (shrink).",
    ),
    "loss_reduction": Key(
        kind=str,
        default="mean",
        choices=("mean", "sum"),
        meaning="With servers in sync and gpubox mode, and in collective mode: whether the "
        "loss is a mean or a sum over the batch; the gradient of a step is the mean of the "
        "workers' gradients, or their sum.",
    ),
}
"""What collective mode takes beside them: single values. ``sync_batch_norm`` and
``loss_reduction`` are sync's, too, and ``on_worker_loss`` sync's alone."""

_APART = "LocalSGD's workers all-reduce no gradients"
_WHOLE = "sharded parameters have no gradients of their own that a bucket could hold"

CLASHES: dict[frozenset[str], str] = {
    frozenset({"localsgd", "adaptive_localsgd"}): "choose one kind of LocalSGD",
    frozenset({"localsgd", "diloco"}): "choose one kind of LocalSGD",
    frozenset({"adaptive_localsgd", "diloco"}): "choose one kind of LocalSGD",
    frozenset({"lars", "lamb"}): "choose one optimizer",
    frozenset({"dgc", "lars"}): "DGC keeps the momentum itself, and steps with plain SGD",
    frozenset({"dgc", "lamb"}): "DGC is for momentum SGD",
    frozenset({"dgc", "amp"}): "what DGC keeps back would be of an old scale of the loss",
    frozenset({"dgc", "gradient_merge"}): "DGC counts every batch's gradient",
    frozenset({"dgc", "fp16_allreduce"}): "a gradient travels in one way",
    frozenset({"dgc", "sharding"}): _WHOLE,
    frozenset({"dgc", "find_unused_parameters"}): "DGC needs every gradient in every step",
    frozenset({"sharding", "lars"}): "its norms are of whole parameters",
    frozenset({"sharding", "lamb"}): "its norms are of whole parameters",
    frozenset({"sharding", "fp16_allreduce"}): _WHOLE,
    frozenset({"sharding", "find_unused_parameters"}): "fully_shard needs no such look",
    frozenset({"sharding", "fuse_grad_size_in_MB"}): _WHOLE,
    frozenset({"sharding", "sync_batch_norm"}): _WHOLE,
    frozenset({"dgc", "loss_reduction"}): "DGC's formula is of the mean of the gradients",
    frozenset({"sharding", "loss_reduction"}): "fully_shard takes the mean of the gradients",
    **{
        frozenset({apart, other}): _APART
        for apart in FAMILY
        for other in (
            "dgc", "fp16_allreduce", "find_unused_parameters", "fuse_grad_size_in_MB",
            "loss_reduction", "sharding", "sync_batch_norm",
        )
    },
}  # fmt: skip
"""Pairs that don't go together, each with the reason."""


def check_pairs(enabled: Collection[str], values: Mapping[str, Any]) -> None:
    """Refuse two features that don't go together.

    Args:
        enabled: The features and settings that differ from their defaults.
        values: Their values, for the error.

    Raises:
        StrategyError: naming both.
    """
    for pair, reason in CLASHES.items():
        if pair <= set(enabled):
            first, second = sorted(pair)
            rule = f"doesn't go with {second} = {shown(values[second])}: {reason}"
            raise StrategyError(key=first, value=shown(values[first]), rule=rule)
