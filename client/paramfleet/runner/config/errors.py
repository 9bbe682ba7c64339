"""What can be wrong with a model folder and its configuration."""

from typing_extensions import override

from paramfleet_shared.errors import ContractError

__all__ = ["ConfigError", "FeatureNotHereError", "ModelFolderError", "UnknownKeyError"]


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
        super().__init__(
            f"{where}: nothing reads the key {key}{hint}{more}",
            where=where,
            key=key,
            nearest=nearest,
        )
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
