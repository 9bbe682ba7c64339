"""What a run with kills says of goodput, memory and descriptors."""

from goodput import Run, Sample, drift_of, summary_of


def run_of(steps: int, kills: list[float], samples: list[Sample]) -> Run:
    return Run(seconds=60.0, steps=steps, kills=kills, samples={"worker": samples})


def test_a_role_that_grows_is_seen() -> None:
    samples = [Sample(num_bytes=1_000_000 * each, descriptors=10) for each in range(1, 21)]

    assert drift_of(samples) == {"memory_mb": [8.0, 18.0], "descriptors": [10, 10]}


def test_few_samples_are_both_begin_and_end() -> None:
    assert drift_of([Sample(2_000_000, 7)]) == {"memory_mb": [2.0, 2.0], "descriptors": [7, 7]}


def test_goodput_is_the_ratio_of_speeds() -> None:
    flat = [Sample(1_000_000, 5)] * 8

    said = summary_of([run_of(600, [], flat)] * 2, run_of(540, [1.25, 1.5], flat), 30.0)

    assert (said["goodput"], said["kills"], said["minutes"]) == (0.9, 2, 1.0)
    assert said["recovery_s"] == [1.25, 1.5]
    assert said["drift"].keys() == said["drift_without"].keys() == {"worker"}
