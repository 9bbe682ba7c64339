"""What pickle wrote, read as plain data: nothing is imported, and nothing is called.

A name of a module stays a name, and an object is what it would have been made of. So a file of
anybody can be read, as those that torch writes beside tensors. Known are the opcodes that
pickle's protocols 2 to 5 use for numbers, texts, containers and objects of dataclasses.
"""

import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple

from paramfleet_shared.values.texts import shown

__all__ = ["MAX_BYTES", "Made", "Name", "NotPlainError", "read_pickled"]

MAX_BYTES = 256 << 20
"""Of one text: the metadata of millions of chunks."""

_BROKEN = (
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,  # of keys that are nested
)
"""What comes of a text that isn't whole."""


class NotPlainError(ValueError):
    """It isn't what pickle writes of plain data."""


class Name(NamedTuple):
    """Something of a module, as ``torch float32``."""

    module: str
    name: str


class Made:
    """An object as it is written: what made it, of what, and its attributes."""

    def __init__(self, of: Any, arguments: Any) -> None:
        self.of = of
        self.arguments = arguments
        self.attributes: dict[Any, Any] = {}


class _Mark:
    """Where the items of a container begin on the stack."""


_MARK = _Mark()


def read_pickled(text: bytes) -> Any:
    """Return what a text of pickle says: plain values, and ``Name`` and ``Made`` among them.

    Raises:
        NotPlainError: if it says anything else, or is none.
    """
    if len(text) > MAX_BYTES:
        message = f"it has {len(text):,} bytes, and at most {MAX_BYTES:,} are read"
        raise NotPlainError(message)
    try:
        return _run(text)
    except NotPlainError:
        raise
    except _BROKEN as error:
        message = f"it is no whole text of pickle: {shown(error)}"
        raise NotPlainError(message) from error


def _run(text: bytes) -> Any:
    """Do what the opcodes of a text say; return what is left on the stack.

    Raises:
        NotPlainError: if one isn't known, or the last one is missing.
    """
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(text):
        if opcode.name == "STOP":
            return machine.pop()
        act = _ACTS.get(opcode.name)
        if act is None:
            message = f"pickle's {opcode.name} isn't read"
            raise NotPlainError(message)
        act(machine, argument)
    message = "it has no end"
    raise NotPlainError(message)


class _Machine:
    """The stack and the memory that opcodes work on."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def pop(self) -> Any:
        return self.stack.pop()

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def items(self) -> list[Any]:
        """Take what lies above the last mark, and the mark.

        Raises:
            NotPlainError: if there is none.
        """
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                found = self.stack[at + 1 :]
                del self.stack[at:]
                return found
        message = "nothing is marked"
        raise NotPlainError(message)

    def keep(self, place: int) -> None:
        self.memory[place] = self.stack[-1]

    def tuple_of(self, count: int) -> None:
        if count > len(self.stack):
            message = "a tuple lacks items"
            raise NotPlainError(message)
        found = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.push(found)

    def put(self, items: list[Any]) -> None:
        """Put keys and values, one behind the other, into the dictionary below.

        Raises:
            NotPlainError: if there is none.
        """
        target = self.stack[-1]
        if isinstance(target, Made):  # as an OrderedDict
            target = target.attributes
        if not isinstance(target, dict):
            message = "items are put into no dictionary"
            raise NotPlainError(message)
        target.update(zip(items[::2], items[1::2], strict=True))

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            message = "items are appended to no list"
            raise NotPlainError(message)
        target += items

    def add(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, set):
            message = "items are added to no set"
            raise NotPlainError(message)
        target.update(items)

    def name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            message = "a name is no text"
            raise NotPlainError(message)
        self.push(Name(module, name))

    def make(self) -> None:
        arguments, of = self.pop(), self.pop()
        self.push(Made(of, arguments))

    def build(self) -> None:
        """Give an object its attributes.

        Raises:
            NotPlainError: if there is none.
        """
        state, made = self.pop(), self.stack[-1]
        if isinstance(state, tuple):  # and those that have slots
            state = {k: v for each in state if isinstance(each, dict) for k, v in each.items()}
        if not isinstance(made, Made) or not isinstance(state, dict):
            message = "attributes are given to no object"
            raise NotPlainError(message)
        made.attributes.update(state)


_Act = Callable[[_Machine, Any], None]


def _name_of_stack(machine: _Machine, _argument: Any) -> None:
    name, module = machine.pop(), machine.pop()
    machine.name(module, name)


def _set_item(machine: _Machine, _argument: Any) -> None:
    value, key = machine.pop(), machine.pop()
    machine.put([key, value])


def _persistent(machine: _Machine, _argument: Any) -> None:
    machine.push(Made(Name("", "persistent"), machine.pop()))


def _nothing(_machine: _Machine, _argument: Any) -> None:
    """It says how the text is laid out."""


def _pushing(make: Callable[[Any], Any]) -> _Act:
    return lambda machine, argument: machine.push(make(argument))


_VALUES = (
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
)  # fmt: skip

_ACTS: dict[str, _Act] = {
    "PROTO": _nothing,
    "FRAME": _nothing,
    **dict.fromkeys(_VALUES, lambda machine, argument: machine.push(argument)),
    "NONE": _pushing(lambda _: None),
    "NEWTRUE": _pushing(lambda _: True),
    "NEWFALSE": _pushing(lambda _: False),
    "EMPTY_DICT": _pushing(lambda _: {}),
    "EMPTY_LIST": _pushing(lambda _: []),
    "EMPTY_TUPLE": _pushing(lambda _: ()),
    "EMPTY_SET": _pushing(lambda _: set()),
    "MARK": _pushing(lambda _: _MARK),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.items())),
    "FROZENSET": lambda machine, _: machine.push(frozenset(machine.items())),
    "APPEND": lambda machine, _: machine.extend([machine.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.items()),
    "ADDITEMS": lambda machine, _: machine.add(machine.items()),
    "SETITEM": _set_item,
    "SETITEMS": lambda machine, _: machine.put(machine.items()),
    "MEMOIZE": lambda machine, _: machine.keep(len(machine.memory)),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda machine, place: machine.keep(place)),
    **dict.fromkeys(
        ("BINGET", "LONG_BINGET"), lambda machine, place: machine.push(machine.memory[place])
    ),
    "GLOBAL": lambda machine, both: machine.name(*both.split(" ", 1)),
    "STACK_GLOBAL": _name_of_stack,
    "REDUCE": lambda machine, _: machine.make(),
    "NEWOBJ": lambda machine, _: machine.make(),
    "BUILD": lambda machine, _: machine.build(),
    "BINPERSID": _persistent,
}
