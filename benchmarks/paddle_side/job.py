"""A process of a Paddle job: its role comes from the environment, its orders from stdin.

Importing this takes standard output away from Paddle, which prints to it: the driver reads
answers there. It must therefore be imported before Paddle is.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path.append(str(Path(__file__).parents[1] / "work"))

import paddle
from paddle.base import core, framework
from paddle.distributed import fleet
from paddle.distributed.ps.utils.public import get_the_one_recv_context

__all__ = ["Job", "Windows", "begin", "copy_for_scoring", "rows_variable", "slots"]

SERVER_TIMEOUT_S = 60.0


class Job:
    """This process's part of the job.

    Args:
        loss: What is trained.
        optimizer: Paddle's.
        strategy: Of the job.
    """

    def __init__(
        self,
        loss: paddle.static.Variable,
        optimizer: paddle.optimizer.Optimizer,
        strategy: fleet.DistributedStrategy,
    ) -> None:
        fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
        if fleet.is_server():
            fleet.init_server()
            fleet.run_server()
            sys.exit()
        self.program = paddle.static.default_main_program()
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        self.executor.run(paddle.static.default_startup_program())
        _wait_for_server()
        fleet.init_worker()
        self._runtime = fleet.fleet._runtime_handle  # noqa: SLF001 - there is no other way
        self._client = self._runtime._worker  # noqa: SLF001

    def flush(self) -> float:
        """Wait until what was pushed is applied; return how many seconds it surely took.

        Paddle looks every 100 ms whether its queues are empty, the first time after 100 ms:
        those are not counted.
        """
        start = time.perf_counter()
        self._client.client_flush()
        return max(0.0, time.perf_counter() - start - 0.1)

    def pull_dense(self) -> None:
        """Bring the servers' dense parameters here."""
        names = get_the_one_recv_context(self._runtime.context, split_dense_table=False)
        self._runtime._pull_all_dense(  # noqa: SLF001
            [paddle.static.global_scope()],
            self._runtime._send_ctx,  # noqa: SLF001
            names,
        )

    def obey(self, commands: dict[str, Callable[..., Any]]) -> None:
        """Answer commands until the input ends, then leave."""
        _answer("ready")
        for line in sys.stdin:
            command = json.loads(line)
            _answer(commands[command.pop("do")](**command))
        fleet.barrier_worker()
        fleet.stop_worker()


class Windows:
    """Measured passes over data in memory, by Paddle's own trainer, one thread.

    Args:
        job: This process's part.
        inputs: Variables, in the order of the columns of the files.
        files: A file of MultiSlot text for each window.
        batch_size: Lines of a step.
        samples: Samples of a line.
    """

    def __init__(
        self,
        job: Job,
        inputs: list[paddle.static.Variable],
        files: list[Path],
        *,
        batch_size: int,
        samples: int = 1,
    ) -> None:
        self._job = job
        self._passes = []
        for file in files:
            dataset = paddle.distributed.InMemoryDataset()
            dataset.init(
                batch_size=batch_size, thread_num=1, use_var=inputs, pipe_command="cat"
            )
            dataset.set_filelist([str(file)])
            dataset.load_into_memory()
            file.unlink()
            self._passes.append((dataset, samples * dataset.get_memory_data_size()))
        self._num_done = 0

    def window(self) -> dict[str, float]:
        """Train on the next data, with all workers; returns this worker's own rate."""
        dataset, num = self._passes[self._num_done % len(self._passes)]
        self._num_done += 1
        fleet.barrier_worker()
        start = time.perf_counter()
        self._job.executor.train_from_dataset(self._job.program, dataset)
        seconds = time.perf_counter() - start
        self._job.flush()
        fleet.barrier_worker()
        return {"samples_per_s": num / seconds, "seconds": seconds}


def begin() -> None:
    """Join the job that the environment describes."""
    paddle.enable_static()
    paddle.seed(1)
    fleet.init()


def slots(names: list[str]) -> list[paddle.static.Variable]:
    """Return inputs of any number of ids a line."""
    return [paddle.static.data(name, [-1, 1], "int64", lod_level=1) for name in names]


def copy_for_scoring(program: paddle.static.Program) -> paddle.static.Program:
    """Return the forward part of a worker's program, as it is after ``minimize``."""
    copied = program.clone(for_test=True)
    block = copied.global_block()
    for index in reversed(range(len(block.ops))):
        if block.ops[index].type in {"distributed_push_sparse", "send"}:
            block._remove_op(index)  # noqa: SLF001
    return copied


def rows_variable(block: framework.Block, name: str, dim: int) -> paddle.static.Variable:
    """Return the table's variable in another program than the trained one."""
    return block.create_var(
        name=name,
        shape=[1, dim],
        dtype="float32",
        persistable=True,
        type=core.VarDesc.VarType.SELECTED_ROWS,
    )


def _answer(value: object) -> None:
    _ANSWERS.write(json.dumps(value) + "\n")
    _ANSWERS.flush()


def _wait_for_server() -> None:
    """Wait until the server listens: Paddle's workers give up at once if it doesn't.

    Raises:
        OSError: if it still doesn't after ``SERVER_TIMEOUT_S``.
    """
    host, _, port = fleet.server_endpoints()[0].rpartition(":")
    end = time.perf_counter() + SERVER_TIMEOUT_S
    while True:
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            if time.perf_counter() > end:
                raise
            time.sleep(0.1)
        else:
            return
