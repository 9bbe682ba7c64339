"""What can be wrong with a model folder and its configuration."""

import contextlib
from collections.abc import Iterator, Sequence

from typing_extensions import override

from paramfleet_shared.errors import ContractError

__all__ = [
    "ConfigError",
    "FeatureNotHereError",
    "ModelFolderError",
    "NoExamplesError",
    "Problems",
    "RefusedConfigError",
    "UnknownKeyError",
    "collecting",
    "raise_all",
]

Problems = list[ContractError]
"""What is wrong with a configuration, until all of it has been looked at."""


class ConfigError(ContractError):
    """A key of a configuration has a value that its rule forbids, or lacks one."""

    code = "contract.config"
    where: str
    key: str
    value: str
    rule: str

    @override
    def describe(self) -> str:
        have = f" = {self.value}" if self.value else ""
        return f"{self.where}: {self.key}{have}: {self.rule}"


class UnknownKeyError(ContractError):
    """A configuration has a key that nothing reads; the text says how one is read."""

    code = "contract.unknown_key"

    def __init__(self, *, where: str, key: str, nearest: str | None, ways: str = "") -> None:
        hint = f"; did you mean {nearest}?" if nearest else ""
        more = f"; {ways.replace('{key}', key)}" if ways else ""
        self.without_ways = f"{where}: nothing reads the key {key}{hint}"
        super().__init__(f"{self.without_ways}{more}", where=where, key=key, nearest=nearest)
        self.ways = ways
        self.where = where
        self.key = key
        self.nearest = nearest


class FeatureNotHereError(ContractError):
    """A key asks for something that PaddleRec has and that isn't here."""

    code = "contract.feature_not_here"
    where: str
    key: str
    remedy: str
    sentence = "{where}: {key}: {remedy}"


class ModelFolderError(ContractError):
    """A model folder lacks a module or a name, or one of them isn't what it must be."""

    code = "contract.model_folder"
    path: str
    rule: str
    sentence = "{path}: {rule}"


class NoExamplesError(ContractError):
    """The files of a key have no examples, as all workers read them."""

    code = "contract.no_examples"
    key: str
    folder: str
    sentence = (
        "{key} = {folder}: its files have no examples; see what the reader, or pipe_command, "
        "makes of a line of them"
    )


class RefusedConfigError(ContractError):
    """Several things are wrong with a model folder or its configuration; the text has all."""

    code = "contract.refused_config"

    def __init__(self, *, path: str, problems: Sequence[ContractError]) -> None:
        lines = [
            each.without_ways if isinstance(each, UnknownKeyError) else str(each)
            for each in problems
        ]
        ways = {each.ways for each in problems if isinstance(each, UnknownKeyError)} - {""}
        short = [
            f"- {line.removeprefix(f'{path}, ').removeprefix(f'{path}: ')}" for line in lines
        ]
        more = [f"({way.replace('{key}', 'KEY')})" for way in sorted(ways)]
        head = f"{path}: {len(problems)} problems:"
        super().__init__("\n".join([head, *short, *more]), path=path, problems=len(problems))
        self.path = path
        self.problems = tuple(problems)


@contextlib.contextmanager
def collecting(problems: Problems | None) -> Iterator[None]:
    """Put an error of the block into a list, if there is one.

    Raises:
        ContractError: without a list, as the block raises it.
    """
    try:
        yield
    except ContractError as error:
        if problems is None:
            raise
        problems.append(error)


def raise_all(path: str, problems: Problems) -> None:
    """Raise what was collected, if anything was.

    Raises:
        ContractError: the only problem, as it is.
        RefusedConfigError: if there are several.
    """
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise RefusedConfigError(path=path, problems=problems)
