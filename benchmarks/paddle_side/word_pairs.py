"""``work/word_pairs.py`` on Paddle's GEO: ``python word_pairs.py OPTIONS``, in JSON."""

import json
import sys
import tempfile
from pathlib import Path

import job  # before Paddle, whose output it keeps from the driver
import numpy as np
import paddle
from paddle.distributed import fleet
from paddle.nn import functional

from pairs import NUM_WORDS, Pairs, make_pairs

NUM_SCORED = 50


def main(*, k_steps: int, lr: float, steps: int, windows: int, batch: int, dim: int) -> None:
    """Be what the environment says."""
    job.begin()
    inputs = job.slots(["centres", "contexts", "negatives"])
    loss = network(*inputs, batch=batch, dim=dim)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    strategy.a_sync_configs = {"k_steps": k_steps}
    mine = job.Job(loss, paddle.optimizer.SGD(lr), strategy)
    scored = job.copy_for_scoring(mine.program)
    pairs = make_pairs(steps * windows, batch, independent=False, seed=fleet.worker_index())

    def quality() -> dict[str, float]:
        # Paddle's trainer drops what an executor remembers of a program.
        executor = paddle.static.Executor(paddle.CPUPlace())
        losses = [
            executor.run(scored, feed=feed_of(pairs, number), fetch_list=[loss.name])[0]
            for number in range(min(NUM_SCORED, len(pairs.centres)))
        ]
        return {"loss_of_50": float(np.mean(losses))}

    with tempfile.TemporaryDirectory() as folder:
        files = [
            write(pairs, slice(start, start + steps), Path(folder) / str(start))
            for start in range(0, len(pairs.centres), steps)
        ]
        passes = job.Windows(mine, inputs, files, batch_size=1, samples=batch)
    mine.obey({"window": passes.window, "quality": quality})


def network(
    centres: paddle.static.Variable,
    contexts: paddle.static.Variable,
    negatives: paddle.static.Variable,
    *,
    batch: int,
    dim: int,
) -> paddle.static.Variable:
    """Return the loss of a batch, averaged over its pairs."""

    def look_up(
        words: paddle.static.Variable, name: str, reach: float
    ) -> paddle.static.Variable:
        initializer = paddle.nn.initializer.Uniform(-reach, reach)
        attributes = paddle.ParamAttr(name=name, initializer=initializer)
        rows = paddle.static.nn.embedding(
            words, [NUM_WORDS + 1, dim], is_sparse=True, param_attr=attributes
        )
        return paddle.reshape(rows, [-1, dim])

    centre = look_up(centres, "centre_rows", 0.5 / dim)
    context = look_up(contexts, "context_rows", 1e-9)
    negative = look_up(negatives, "context_rows", 1e-9)
    right = functional.log_sigmoid((centre * context).sum(1)).sum()
    wrong = functional.log_sigmoid(-paddle.matmul(centre, negative, transpose_y=True)).sum()
    return -(right + wrong) / batch


def feed_of(pairs: Pairs, number: int) -> dict[str, np.ndarray]:
    """Return a batch as a feed. Id 0 is special to Paddle: words begin at 1."""
    return {name: ids[number].reshape(-1, 1) + 1 for name, ids in pairs._asdict().items()}


def write(pairs: Pairs, at: slice, path: Path) -> Path:
    """Write batches as Paddle's text, one a line: how many words, then the words."""
    with path.open("w") as file:
        for batch in zip(*(ids[at] + 1 for ids in pairs), strict=True):
            file.write(" ".join(f"{len(ids)} {' '.join(map(str, ids))}" for ids in batch))
            file.write("\n")
    return path


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
