"""Modules whose rows are looked up at a server, and the dense parameters beside them.

Shape legend: q = ids of a call, D = row width.
"""

import weakref
from typing import final

import torch
from typing_extensions import override

from paramfleet.serving.errors import ExportMismatchError
from paramfleet.serving.modules import ServedEmbedding, ServedEmbeddingBag
from paramfleet.serving.remote.client import Client
from paramfleet.serving.rows import TableRows, tensor_of

__all__ = ["RemoteEmbedding", "RemoteEmbeddingBag", "RemoteRows", "refresh"]

_tags: "weakref.WeakKeyDictionary[torch.nn.Module, tuple[str, str]]"
_tags = weakref.WeakKeyDictionary()
"""Of models that were refreshed: from which server, and the tag of what they have."""


@final
class RemoteRows(TableRows):
    """A module from ids of any shape ``[...]`` to rows ``[..., D]``, which a server has.

    Args:
        client: The client of the server.
        table: The name of the table.

    Raises:
        ServingTableError: if the server has no table of this name.
        FleetError: as ``Client.lookup``.
    """

    def __init__(self, client: Client, table: str) -> None:
        super().__init__(table, client.width_of(table))
        self._client = client

    @override
    def extra_repr(self) -> str:
        return f"{self.name!r}, rows of {self.dim} at {self._client.url}"

    @override
    def _rows_of(self, ids: torch.Tensor) -> torch.Tensor:
        asked = ids.to("cpu").contiguous().numpy()
        return tensor_of(self._client.lookup({self.name: asked}).rows[self.name])


@final
class RemoteEmbedding(ServedEmbedding):
    """``fleet.nn.Embedding`` over a table of a server; for inference.

    Args:
        client: The client of the server.
        table: The name of the table.
        padding_idx: The id whose row is zeros; None for none.
        negative_ids: Whether negative ids are accepted.

    Raises:
        ServingTableError: if the server has no table of this name.
        FleetError: as ``Client.lookup``.
    """

    def __init__(
        self,
        client: Client,
        table: str,
        *,
        padding_idx: int | None = None,
        negative_ids: bool = False,
    ) -> None:
        super().__init__(RemoteRows(client, table), padding_idx, negative_ids=negative_ids)


@final
class RemoteEmbeddingBag(ServedEmbeddingBag):
    """``fleet.nn.EmbeddingBag`` over a table of a server; for inference.

    Args:
        client: The client of the server.
        table: The name of the table.
        padding_idx: The id that is left out of its bag; None for none.
        mode: ``sum``, ``mean`` or ``max`` over a bag.
        include_last_offset: The last of ``offsets`` is the number of ids.
        negative_ids: Whether negative ids are accepted.

    Raises:
        ServingTableError: if the server has no table of this name.
        FleetError: as ``Client.lookup``.
    """

    def __init__(
        self,
        client: Client,
        table: str,
        *,
        padding_idx: int | None = None,
        mode: str = "mean",
        include_last_offset: bool = False,
        negative_ids: bool = False,
    ) -> None:
        super().__init__(
            RemoteRows(client, table),
            padding_idx=padding_idx,
            mode=mode,
            include_last_offset=include_last_offset,
            negative_ids=negative_ids,
        )


def refresh(model: torch.nn.Module, client: Client) -> bool:
    """Copy the current dense parameters of a server into a model.

    Call it between two forwards. Buffers, such as BatchNorm statistics, keep the values of the
    export, because a stream contains only parameters. On an error the model is not changed.

    Args:
        model: The model that ``fleet.serving.load`` returned.
        client: The client of the server.

    Returns:
        Whether the parameters changed since the last call.

    Raises:
        ExportMismatchError: if the parameters of the server are those of another model.
        ServerUnreachableError: if no answer came in time.
        FleetError: as ``Client.lookup``.
    """
    url, tag = _tags.get(model, ("", ""))
    dense = client.dense(known=tag if url == client.url else "")
    if dense is None:
        return False
    own = dict(model.named_parameters())
    for what, names in (
        ("has {}, which the model lacks", dense.tensors.keys() - own.keys()),
        ("lacks {}, which the model has", own.keys() - dense.tensors.keys()),
        (
            "has {} in another shape than the model",
            {n for n in own.keys() & dense.tensors if own[n].shape != dense.tensors[n].shape},
        ),
    ):
        if names:
            rule = what.format(", ".join(map(repr, sorted(names))))
            raise ExportMismatchError(path=client.url, rule=rule)
    with torch.no_grad():
        for name, tensor in dense.tensors.items():
            own[name].copy_(tensor_of(tensor))
    _tags[model] = (client.url, dense.tag)
    return True
