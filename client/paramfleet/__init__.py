"""Parameter-server training for PyTorch.

    import paramfleet as fleet

    fleet.init()
    if fleet.is_server():
        raise SystemExit(fleet.run_server())
    model = fleet.distributed_model(WideDeep())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters()), strategy)
    fleet.init_worker()
    ...
    fleet.stop_worker()

A process has one session; every name here works on it.

A name is loaded when it is first used: a reader of a ``pipe_command`` runs once a file, and
one that takes its generator from here does without torch.
"""

import contextlib
import gc
import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramfleet_shared.system.processes.ending import note_ending

if TYPE_CHECKING:
    from paramfleet import data, nn, serving, text
    from paramfleet.api.public import (
        PSGPU,
        DistributedOptimizer,
        DistributedStrategy,
        PaddleCloudRoleMaker,
        Role,
        UserDefinedRoleMaker,
        average_buffers,
        barrier_worker,
        clip_grad_norm_,
        device_pass,
        distributed_model,
        distributed_optimizer,
        ema,
        finish_training,
        init,
        init_server,
        init_worker,
        is_first_worker,
        is_server,
        is_worker,
        job_progress,
        leave,
        load_checkpoint,
        load_model,
        load_rows,
        metrics,
        newest_checkpoint,
        prefetch,
        prefetch_rows,
        register_for_checkpointing,
        remove_rows,
        report,
        restart_count,
        resumed_from,
        run_server,
        save_checkpoint,
        save_inference_model,
        save_persistables,
        server_endpoints,
        server_index,
        server_num,
        set_date,
        should_stop,
        shrink,
        stop_worker,
        util,
        worker_endpoints,
        worker_index,
        worker_num,
    )
    from paramfleet.data.generator import MultiSlotDataGenerator, MultiSlotStringDataGenerator
    from paramfleet.training import optim

__all__ = [  # noqa: RUF022 - grouped as a user needs them
    # life cycle
    "init",
    "init_server",
    "run_server",
    "init_worker",
    "average_buffers",
    "finish_training",
    "stop_worker",
    "leave",
    # who and where
    "Role",
    "PaddleCloudRoleMaker",
    "UserDefinedRoleMaker",
    "is_worker",
    "is_server",
    "is_first_worker",
    "worker_index",
    "worker_num",
    "worker_endpoints",
    "server_index",
    "server_num",
    "server_endpoints",
    "barrier_worker",
    "restart_count",
    # training
    "DistributedStrategy",
    "DistributedOptimizer",
    "distributed_model",
    "distributed_optimizer",
    "ema",
    "clip_grad_norm_",
    "prefetch",
    "prefetch_rows",
    "device_pass",
    "PSGPU",
    "remove_rows",
    "set_date",
    "shrink",
    "report",
    "job_progress",
    "should_stop",
    # saving
    "register_for_checkpointing",
    "save_persistables",
    "load_model",
    "save_checkpoint",
    "load_checkpoint",
    "newest_checkpoint",
    "load_rows",
    "save_inference_model",
    "resumed_from",
    # readers
    "MultiSlotDataGenerator",
    "MultiSlotStringDataGenerator",
    # modules
    "data",
    "metrics",
    "nn",
    "optim",
    "serving",
    "text",
    "util",
]

_MODULES = {
    "data": "data",
    "nn": "nn",
    "optim": "training.optim",
    "serving": "serving",
    "text": "text",
}
_READERS = ("MultiSlotDataGenerator", "MultiSlotStringDataGenerator")

note_ending()  # where a launcher asks for it


def _instead_of_torch() -> str:
    """Return the file that ``import torch`` finds in the script's folder; empty without one."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return "" if hasattr(torch, "__path__") else str(getattr(torch, "__file__", ""))
    script = str(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    if sys.flags.safe_path or script.rpartition("/")[2] != "torch.py":
        return ""
    with contextlib.suppress(OSError, ValueError):
        source = Path(script).read_text(encoding="utf-8")
        return script if re.search(r"^\s*(import|from) torch\b", source, re.MULTILINE) else ""
    return ""


if _found := _instead_of_torch():
    _message = (
        f"`import torch` imports {_found} instead of PyTorch: give this file another name "
        "(Python looks for modules in the script's own folder first)"
    )
    raise ImportError(_message)

if not TYPE_CHECKING:  # a type checker knows the names, and which there aren't

    def _imported(name: str) -> Any:
        """Import one of our modules without a collection, which would look at all of torch."""
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return importlib.import_module(f"{__name__}.{name}")
        finally:
            if was_enabled:
                gc.enable()

    def __getattr__(name: str) -> Any:
        """Load what is asked for, once.

        Raises:
            AttributeError: if there is nothing of this name.
        """
        if name not in __all__:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        if name in _MODULES:
            return _imported(_MODULES[name])
        module = "data.generator" if name in _READERS else "api.public"
        found = getattr(_imported(module), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
