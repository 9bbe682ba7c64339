"""Readers as users write them: a line in, samples out, as MultiSlot text.

The protocol is Fleet's: a class with ``generate_sample``, run as the program of a
``pipe_command``.

    class Reader(MultiSlotDataGenerator):
        def generate_sample(self, line):
            def samples():
                label, *words = line.split()
                yield [("label", [int(label)]), ("words", [int(word) for word in words])]

            return samples


    Reader().run_from_stdin()
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

from typing_extensions import override

from paramfleet_shared.errors import ContractError
from paramfleet_shared.settings.config import read_environment

SLOTS_VARIABLE = "PARAMFLEET_PIPE_SLOTS"
"""Names of the slots of the dataset that reads a command's output, with blanks between."""

__all__ = [
    "SLOTS_VARIABLE",
    "BadSampleError",
    "DataGenerator",
    "MultiSlotDataGenerator",
    "MultiSlotStringDataGenerator",
]

Sample = Iterable[tuple[str, Sequence[Any]]]
Samples = Callable[[], Iterable[Sample | None]]


class BadSampleError(ContractError):
    """A reader yields something that is no sample, or not one like the others."""

    code = "contract.bad_sample"
    number: int
    rule: str
    sentence = "sample {number}: {rule}"


class DataGenerator:
    """What both kinds of reader share; override ``generate_sample``."""

    def __init__(self) -> None:
        self._batch_size = 32
        self._num_samples = 0
        self._wanted = read_environment().get(SLOTS_VARIABLE, "").split()

    def set_batch(self, batch_size: int) -> None:
        """Set how many samples ``generate_batch`` gets at a time; 32 if not called."""
        self._batch_size = batch_size

    def generate_sample(self, line: str | None) -> Samples:
        """Return a function whose result iterates over the samples of a line.

        Args:
            line: A line with its end; None in ``run_from_memory``.

        Raises:
            NotImplementedError: unless it is overridden.
        """
        message = "write generate_sample(self, line) in your reader"
        raise NotImplementedError(message)

    def generate_batch(self, samples: list[Sample]) -> Samples:
        """Return a function whose result iterates over what becomes of some samples.

        Override it for what needs several samples, as padding to one length.
        """
        return lambda: iter(samples)

    def run_from_stdin(self) -> None:
        """Write the samples of every line of the standard input to the standard output.

        In a pipeline, as ``reader | head``, SIGPIPE ends the process once nobody reads it.

        Raises:
            BadSampleError: if a sample isn't one.
        """
        try:
            self._run((self.generate_sample(line) for line in sys.stdin), sys.stdout)
        except BrokenPipeError:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGPIPE)

    def run_from_memory(self) -> None:
        """Write the samples of ``generate_sample(None)`` to the standard output.

        Raises:
            BadSampleError: if a sample isn't one.
        """
        self._run(iter([self.generate_sample(None)]), sys.stdout)

    def _run(self, parts: Iterator[Samples], out: TextIO) -> None:
        waiting: list[Sample] = []
        for samples in parts:
            for sample in samples():
                if sample is None:
                    continue
                waiting.append(sample)
                if len(waiting) == self._batch_size:
                    self._write(waiting, out)
                    waiting = []
        self._write(waiting, out)
        out.flush()

    def _write(self, samples: list[Sample], out: TextIO) -> None:
        if not samples:
            return
        for sample in self.generate_batch(samples)():
            if sample is not None:
                self._num_samples += 1
                out.write(self._gen_str(sample))

    def _gen_str(self, line: Any) -> str:
        """Return a sample as a line of text."""
        raise NotImplementedError

    def _check_order(self, names: Sequence[Any]) -> None:
        """See that slots come in the order of the dataset, where both name the same ones.

        The text has no names, so that values would be those of other slots. Slots of other
        names are a reader's own.

        Raises:
            BadSampleError: if they have another order.
        """
        if self._wanted and list(names) != self._wanted and {*names} == {*self._wanted}:
            place = next(n for n, each in enumerate(names) if each != self._wanted[n])
            rule = f"slot {place} is {names[place]}, the dataset's is {self._wanted[place]}"
            raise self._fail(rule)

    def _fail(self, rule: str) -> BadSampleError:
        return BadSampleError(number=self._num_samples, rule=rule)

    def _pairs(self, line: Any) -> list[tuple[str, Sequence[Any]]]:
        """Return a sample's slots.

        Raises:
            BadSampleError: if they aren't pairs of a name and values.
        """
        if not isinstance(line, list | tuple | zip):
            rule = f"a list of (slot, values) is needed, not {type(line).__name__}"
            raise self._fail(rule)
        pairs = list(line)
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                rule = f"{pair!r} is no pair of a slot's name and its values"
                raise self._fail(rule)
        return pairs


class MultiSlotStringDataGenerator(DataGenerator):
    """A reader whose values are text already; they are written as they are."""

    @override
    def _gen_str(self, line: Any) -> str:
        words, pairs = [], self._pairs(line)
        if self._num_samples == 1:
            self._check_order([name for name, _ in pairs])
        for name, values in pairs:
            if isinstance(values, str):
                rule = f"the values of {name} are a string, {values!r}: put it in a list"
                raise self._fail(rule)
            words.append(str(len(values)))
            words.extend(values)
        return " ".join(words) + "\n"


class MultiSlotDataGenerator(DataGenerator):
    """A reader whose values are numbers; every sample must be like the first.

    All samples have the same slots in the same order, each with at least one value. A
    slot holds ints, or floats from its first float on.
    """

    allow_empty = False
    """Whether a sample may have slots without values; these datasets read them, other
    readers of the protocol may not."""

    def __init__(self) -> None:
        super().__init__()
        self._proto_info: list[tuple[str, str]] | None = None
        """Name and ``uint64`` or ``float`` of every slot, after the first sample."""

    @override
    def _gen_str(self, line: Any) -> str:
        pairs = self._pairs(line)
        if self._proto_info is None:
            self._proto_info = [(name, "uint64") for name, _ in pairs]
            self._check_order([name for name, _ in pairs])
        if len(pairs) != len(self._proto_info):
            rule = f"it has {len(pairs)} slots, the first one has {len(self._proto_info)}"
            raise self._fail(rule)
        words = []
        for number, (name, values) in enumerate(pairs):
            words.append(str(len(values)) if isinstance(values, list) else "")
            words.extend(self._numbers(number, name, values))
        return " ".join(words) + "\n"

    def _numbers(self, number: int, name: Any, values: Any) -> Iterator[str]:
        """Yield a slot's values as text.

        Raises:
            BadSampleError: if they aren't what this slot's must be.
        """
        assert self._proto_info is not None
        known, kind = self._proto_info[number]
        if not isinstance(name, str):
            rule = f"the name of slot {number} is {name!r}, which is no string"
            raise self._fail(rule)
        if name != known:
            rule = f"slot {number} is {name}, in the first sample it is {known}"
            raise self._fail(rule)
        if not isinstance(values, list):
            rule = f"the values of {name} are no list: {values!r}"
            raise self._fail(rule)
        if not values and not self.allow_empty:
            rule = f"{name} has no values: give it one that means none, or set allow_empty"
            raise self._fail(rule)
        for value in values:
            if isinstance(value, float):
                kind = "float"
            elif not isinstance(value, int) or isinstance(value, bool):
                rule = f"a value of {name} is {value!r}: ints and floats only"
                raise self._fail(rule)
            yield str(value)
        self._proto_info[number] = (name, kind)
