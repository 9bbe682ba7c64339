import numpy as np
import pytest

from records import BatchPlan, Examples


def all_rows(plan: BatchPlan, num_rows: int, *, epoch: int = 0) -> list[list[np.ndarray]]:
    """Return the batches of every worker."""
    return [
        list(plan.rows(num_rows, epoch=epoch, rank=rank)) for rank in range(plan.num_workers)
    ]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_in_lockstep_the_workers_batches_make_up_the_single_one(num_workers: int) -> None:
    (alone,) = all_rows(BatchPlan(batch_size=8, seed=5), 50)
    together = all_rows(
        BatchPlan(batch_size=8, seed=5, num_workers=num_workers, lockstep=True), 50
    )

    for batch, *shares in zip(alone, *together, strict=True):
        assert sorted(batch) == sorted(np.concatenate(shares))


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_otherwise_every_worker_has_whole_batches_of_rows_of_its_own(num_workers: int) -> None:
    plan = BatchPlan(batch_size=8, seed=5, num_workers=num_workers)

    workers = all_rows(plan, 50)

    assert {len(batches) for batches in workers} == {plan.steps_per_epoch(50)}
    assert {len(batch) for batches in workers for batch in batches} == {8}
    seen = np.concatenate([np.concatenate(batches) for batches in workers])
    assert len(set(seen)) == len(seen)


def test_an_epoch_has_an_order_of_its_own_that_the_seed_tells() -> None:
    plan = BatchPlan(batch_size=50, seed=5)

    ((first,),) = all_rows(plan, 50)
    ((again,),) = all_rows(plan, 50)
    ((second,),) = all_rows(plan, 50, epoch=1)

    assert first.tolist() == again.tolist()
    assert first.tolist() != second.tolist()


def test_a_batch_with_fewer_examples_than_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size 3"):
        BatchPlan(batch_size=3, seed=0, num_workers=4, lockstep=True)


def test_a_batch_has_the_rows_asked_for_in_their_order() -> None:
    examples = Examples(
        wide_ids=np.arange(6).reshape(3, 2),
        deep_ids=np.arange(3).reshape(3, 1),
        dense=np.zeros((3, 1), dtype=np.float32),
        labels=np.array([0, 1, 0], dtype=np.float32),
    )

    batch = examples.batch(np.array([2, 1]))

    assert batch.wide_ids.tolist() == [[4, 5], [2, 3]]
    assert batch.labels.tolist() == [0.0, 1.0]
