"""A step's arithmetic and a bare exchange of its bytes: what a synchronous step can't go below.

    python -m peer.step_floor serve NAME WORKERS SENT ANSWERED
    python -m peer.step_floor work NAME... --tables each

A worker computes the loss and gradients of the small model of ``work.tabular``, with rows that
it has itself; sends each server as many bytes as a step's gradients and ids are, through a
blocking Unix socket, and waits for as many as parameters and rows are. A server answers
when all workers have sent theirs: the barrier. Nobody looks at a byte, and no optimizer steps.
"""

import argparse
import json
import selectors
import socket
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import paramfleet as fleet

sys.path.append(str(Path(__file__).parents[1] / "work"))

from tabular import DIM, TabularTask, add_options

__all__: list[str] = []


def serve(name: str, workers: int, num_sent: int, num_answered: int) -> None:
    """Answer the workers of every step together, until they go."""
    answer = bytes(num_answered)
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(f"\0{name}")
        listener.listen()
        sys.stdin.readline()
        print(json.dumps("listening"), flush=True)
        lines = [listener.accept()[0] for _ in range(workers)]
        for line in lines:
            selector.register(line, selectors.EVENT_READ)
        left = dict.fromkeys(lines, num_sent)
        buffer = bytearray(num_sent)
        while True:
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket), "only these are registered"
                line = key.fileobj
                count = line.recv_into(buffer, left[line])
                if not count:
                    return
                left[line] -= count
            if not any(left.values()):
                left = dict.fromkeys(lines, num_sent)
                for line in lines:
                    line.sendall(answer)


class _Worker:
    """The arithmetic of a step, and its bytes."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._task = TabularTask(options)
        model = fleet.distributed_model(self._task.model)
        self._optimizer = fleet.distributed_optimizer(
            torch.optim.SGD(model.parameters(), lr=0.0), fleet.DistributedStrategy()
        )
        self._batches = self._task.batches()
        self._lines: list[socket.socket] = []

    def obey(self, *, do: str, **told: Any) -> Any:
        """Carry out one command of the driver."""
        match do:
            case "bytes":
                return self._bytes(told["servers"])
            case "connect":
                for name in told["names"]:
                    line = socket.socket(socket.AF_UNIX)
                    line.connect(f"\0{name}")
                    self._lines.append(line)
                self._sent, self._buffer = bytes(told["sent"]), bytearray(told["answered"])
                return None
            case _:
                return self._window(told["steps"])

    def _bytes(self, servers: int) -> list[int]:
        """Return how many bytes a step sends to each server, and how many come back."""
        parameters = dict(self._task.model.named_parameters())
        dense = 4 * sum(p.numel() for name, p in parameters.items() if "network" in name)
        ids = self._task.num_different()
        sent, answered = dense + ids * (8 + 4 * DIM), dense + ids * 4 * DIM
        return [round(sent / servers), round(answered / servers)]

    def _window(self, steps: int) -> dict[str, float]:
        start = time.perf_counter()
        for batch in islice(self._batches, steps):
            loss = self._task.loss(batch)
            torch.autograd.backward(loss)
            for line in self._lines:
                line.sendall(self._sent)
            for line in self._lines:
                left = len(self._buffer)
                while left:
                    left -= line.recv_into(self._buffer, left)
            self._optimizer.zero_grad()
            loss.item()
        return {"seconds": time.perf_counter() - start, "steps": steps}


def main() -> None:
    """Be a server or a worker."""
    if sys.argv[1] == "serve":
        name, *sizes = sys.argv[2:]
        serve(name, *map(int, sizes))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("role")
    add_options(parser)
    fleet.init()
    worker = _Worker(parser.parse_args())
    for line in sys.stdin:
        print(json.dumps(worker.obey(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
