"""Readers that users write: what they may yield, and what comes out."""

import io
import sys
from typing import Any

import pytest

from paramfleet.data.generator import (
    BadSampleError,
    DataGenerator,
    MultiSlotDataGenerator,
    MultiSlotStringDataGenerator,
)


class Numbers(MultiSlotDataGenerator):
    """Yields what it is given."""

    def __init__(self, *samples: Any) -> None:
        super().__init__()
        self._samples = samples

    def generate_sample(self, line: str | None) -> Any:
        return lambda: iter(self._samples)


class Words(MultiSlotStringDataGenerator):
    def generate_sample(self, line: str | None) -> Any:
        def samples() -> Any:
            assert line is not None
            label, *words = line.split()
            yield zip(["label", "words"], [[label], words], strict=True)
            yield None

        return samples


class Padded(Words):
    """Pads the words of a batch to one length."""

    def generate_batch(self, samples: Any) -> Any:
        lists = [list(sample) for sample in samples]
        longest = max(len(sample[1][1]) for sample in lists)
        return lambda: (
            [sample[0], ("words", sample[1][1] + ["0"] * (longest - len(sample[1][1])))]
            for sample in lists
        )


def said_of(lines: str, reader: DataGenerator, monkeypatch: pytest.MonkeyPatch) -> str:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    monkeypatch.setattr(sys, "stdout", out)
    reader.run_from_stdin()
    return out.getvalue()


def run(reader: DataGenerator, monkeypatch: pytest.MonkeyPatch) -> str:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    reader.run_from_memory()
    return out.getvalue()


def test_samples_become_multislot_text(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Numbers([("label", [1]), ("price", [0.5, 2])], [("label", [0]), ("price", [3])])

    assert run(reader, monkeypatch) == "1 1 2 0.5 2\n1 0 1 3\n"
    assert reader._proto_info == [("label", "uint64"), ("price", "float")]


def test_a_slot_becomes_float_when_a_float_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Numbers([("price", [1])], [("price", [1.5])])

    run(reader, monkeypatch)

    assert reader._proto_info == [("price", "float")]


def test_text_is_written_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_of("1 5 6\n0\n", Words(), monkeypatch) == "1 1 2 5 6\n1 0 0\n"


@pytest.mark.parametrize(
    ("size", "said"), [(1, "1 1 1 5\n1 0 2 6 7\n"), (2, "1 1 2 5 0\n1 0 2 6 7\n")]
)
def test_a_batch_passes_through_generate_batch(
    size: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Padded()
    reader.set_batch(size)

    assert said_of("1 5\n0 6 7\n", reader, monkeypatch) == said


BAD: list[tuple[list[Any], str]] = [
    ([{"label": [1]}], "a list of"),
    ([["label"]], "no pair"),
    ([[(1, [1])]], "no string"),
    ([[("label", (1,))]], "no list"),
    ([[("label", [])]], "label has no values"),
    ([[("label", ["1"])]], "ints and floats only"),
    ([[("label", [True])]], "ints and floats only"),
    ([[("label", [1])], [("label", [1]), ("price", [1])]], "sample 2: it has 2 slots"),
    ([[("label", [1])], [("price", [1])]], "slot 0 is price, in the first sample it is label"),
]


@pytest.mark.parametrize(("samples", "rule"), BAD)
def test_what_is_no_sample_is_refused(
    samples: list[Any], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadSampleError, match=rule):
        run(Numbers(*samples), monkeypatch)


def test_empty_slots_can_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Numbers([("label", [1]), ("words", [])])
    reader.allow_empty = True

    assert run(reader, monkeypatch) == "1 1 0\n"


def test_a_reader_must_be_written() -> None:
    with pytest.raises(NotImplementedError):
        MultiSlotDataGenerator().generate_sample("1")
