"""How good the model is on the test rows, scored by all workers together."""

from dataclasses import dataclass

import numpy as np
import torch

import paramfleet as fleet
from records import Examples

__all__ = ["Scores", "evaluate"]

NUM_BUCKETS = 1 << 16
"""Scores are counted in this many equal buckets; the AUC is off by less than 1e-4."""

ROWS_AT_ONCE = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Of all test rows, the same on every worker."""

    auc: float
    accuracy: float


def evaluate(model: torch.nn.Module, test: Examples) -> Scores:
    """Score every ``worker_num``-th test row here, and add up what all workers counted.

    Every worker has to call it.
    """
    model.eval()
    positives = np.zeros(NUM_BUCKETS)
    negatives = np.zeros(NUM_BUCKETS)
    num_correct = 0
    rows = np.arange(fleet.worker_index(), len(test), fleet.worker_num())
    for first in range(0, len(rows), ROWS_AT_ONCE):
        batch = test.batch(rows[first : first + ROWS_AT_ONCE])
        with torch.no_grad():
            logits = model(batch.wide_ids, batch.deep_ids, batch.dense)
        positive = batch.labels.numpy() > 0.5
        scores = torch.sigmoid(logits).numpy()
        buckets = np.minimum((scores * NUM_BUCKETS).astype(np.int64), NUM_BUCKETS - 1)
        positives += np.bincount(buckets[positive], minlength=NUM_BUCKETS)
        negatives += np.bincount(buckets[~positive], minlength=NUM_BUCKETS)
        num_correct += int(((scores > 0.5) == positive).sum())
    return Scores(
        auc=float(fleet.metrics.auc(positives, negatives)),
        accuracy=float(fleet.metrics.acc(num_correct, len(rows))),
    )
