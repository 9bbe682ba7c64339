"""``load`` and ``tables``: an exported model as a torch module, without a job."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

import torch

from paramfleet.serving.errors import ExportMismatchError
from paramfleet.serving.files import map_rows, read_state
from paramfleet.serving.firsts import stored
from paramfleet.serving.manifest import ExportedTable, ExportManifest, read_export_manifest
from paramfleet.serving.modules import Servable
from paramfleet.serving.remote.client import Client
from paramfleet.serving.remote.errors import RemoteOptionError
from paramfleet.serving.remote.modules import RemoteRows
from paramfleet.serving.rows import Rows, TableRows, tensor_of
from paramfleet.serving.states import check_state, take_state
from paramfleet.serving.unknown import Policy, UnknownOf, chosen_of, shared_row

__all__ = ["load", "tables"]

_Device = str | torch.device
_Model = TypeVar("_Model", bound=torch.nn.Module)


def load(  # noqa: PLR0913 (all by keyword)
    dirname: str | Path,
    model: _Model,
    *,
    map_location: _Device = "cpu",
    rows_location: _Device | None = None,
    unknown: UnknownOf | None = None,
    verify: bool = True,
    remote: Client | None = None,
) -> _Model:
    """Return a model with the values that ``fleet.save_inference_model`` wrote.

    The structure comes from ``model``, an instance of the class that was trained: no code is
    read from the folder. Its dense parameters and buffers get the exported values, and each
    ``fleet.nn`` module in it is replaced by one that reads the exported rows. The export
    defines what an id without a row reads. No job, server or ``fleet.init`` is needed.

    Rows stay in their file, which is mapped into memory, read-only: a lookup reads the pages
    that it needs, and the processes of a machine share them. Don't overwrite a mapped file;
    ``fleet.save_inference_model`` replaces the whole folder, which is safe.

    Args:
        dirname: The folder of the export.
        model: Is changed and returned, in eval mode; if it is a ``fleet.nn`` module itself,
            another module is returned. On an error it is not changed.
        map_location: Device of the dense parameters and of all results.
        rows_location: Device to which the tables are copied; None leaves them in their files.
        unknown: What ids without a row read, instead of the policy in the export:
            ``"initial"``, ``"zeros"`` or ``"constant"`` for all tables, or by table, where a
            row of D numbers is possible, too.
        verify: Read every file once and check its SHA-256. Without it only lengths and shapes
            are checked, and large tables load immediately.
        remote: Look rows up at this client's server, with one request for each module. The
            export then gives only the dense part; ``fleet.serving.refresh`` copies a newer one
            from the server. The server defines what ids without a row read.

    Raises:
        ExportError: if the folder is not an export.
        ExportDamagedError: if a file is missing, or its content is not what was exported.
        ExportMismatchError: if parameters, dtypes, tables or row widths of the model differ
            from those of the export or the server.
        UnknownRowError: if ``unknown`` is wrong.
        EmbeddingOptionError: if a subclass of a ``fleet.nn`` module has its own ``forward``.
        RemoteOptionError: if ``remote`` is given with ``unknown`` or ``rows_location``.
        FleetError: if the server does not answer; see ``Client.lookup``.
    """
    folder = Path(dirname)
    manifest = read_export_manifest(folder)
    lookups = _lookups(model)
    names = {path: module.table_at(path) for path, module in lookups.items()}
    _check_widths(folder, manifest, {path: (names[path], lookups[path]) for path in lookups})
    torch.empty(0, device=map_location)  # whatever is wrong comes before the first change
    found: Mapping[str, TableRows]
    if remote is None:
        found = _moved(
            _opened(folder, manifest, set(names.values()), unknown, verify=verify),
            rows_location,
        )
    else:
        for option, value in (("unknown", unknown), ("rows_location", rows_location)):
            if value is not None:
                rule = "has no effect with remote, where the server has the rows: leave it out"
                raise RemoteOptionError(option=option, rule=rule)
        found = _remote_rows(remote, manifest, set(names.values()))
    served = {id(each): each.served_from(found[names[path]]) for path, each in lookups.items()}
    state = read_state(folder, manifest.model, verify=verify)
    check_state(folder, folder / manifest.model.name, model, state)
    take_state(folder, model, state)
    for path, module in lookups.items():
        parent, _, name = path.rpartition(".")
        if path:
            setattr(model.get_submodule(parent), name, served[id(module)])
    whole = cast("_Model", served.get(id(model), model))
    return whole.to(map_location).eval()


def tables(
    dirname: str | Path,
    *,
    rows_location: _Device | None = None,
    unknown: UnknownOf | None = None,
    verify: bool = True,
) -> dict[str, Rows]:
    """Return the tables of an export as modules from ids to rows, by name.

    For programs that have the dense part in another form, such as a ``torch.export`` program.

    Args:
        dirname: The folder of the export.
        rows_location: As in ``load``.
        unknown: As in ``load``.
        verify: As in ``load``.

    Raises:
        ExportError: if the folder is not an export.
        ExportDamagedError: if a file is missing, or its content is not what was exported.
        UnknownRowError: if ``unknown`` is wrong.
    """
    folder = Path(dirname)
    manifest = read_export_manifest(folder)
    found = _opened(folder, manifest, set(manifest.tables), unknown, verify=verify)
    return _moved(found, rows_location)


def _moved(found: dict[str, Rows], rows_location: _Device | None) -> dict[str, Rows]:
    for rows in found.values():
        rows.move_table(rows_location)
    return found


def _remote_rows(
    client: Client, manifest: ExportManifest, wanted: set[str]
) -> dict[str, RemoteRows]:
    """Return a server's tables.

    Raises:
        ExportMismatchError: if one has another width than the export's.
        ServingTableError: if the server lacks one.
        FleetError: as ``Client.lookup``.
    """
    found = {name: RemoteRows(client, name) for name in sorted(wanted)}
    for name, rows in found.items():
        if rows.dim != manifest.tables[name].dim:
            dim = manifest.tables[name].dim
            rule = f"rows of table {name!r} are {rows.dim} wide, and {dim} in the export"
            raise ExportMismatchError(path=client.url, rule=rule)
    return found


def _opened(
    folder: Path,
    manifest: ExportManifest,
    wanted: set[str],
    unknown: UnknownOf | None,
    *,
    verify: bool,
) -> dict[str, Rows]:
    """Map tables of an export.

    Raises:
        ExportDamagedError: if a file isn't what was exported.
        UnknownRowError: if ``unknown`` is wrong.
    """
    widths = {name: table.dim for name, table in manifest.tables.items()}
    chosen = {} if unknown is None else chosen_of(unknown, widths)
    found = {}
    for name in sorted(wanted):
        table = manifest.tables[name]
        shared = _shared_row(table, chosen.get(name, table.unknown))
        ids, rows = map_rows(folder, table, verify=verify)
        found[name] = Rows(table, tensor_of(ids), tensor_of(rows), shared)
    return found


def _shared_row(table: ExportedTable, unknown: Policy | list[float]) -> torch.Tensor | None:
    """Return what all ids without a row read, float32 [D]; None if each has its own."""
    if isinstance(unknown, list):
        return torch.tensor(unknown, dtype=torch.float32)
    first, end = table.drawn or (0, table.dim)
    row = shared_row(unknown, table.initializer, end - first)
    if row is None:
        return None
    return stored(torch.nn.functional.pad(row, (first, table.dim - end)), table.storage)


def _lookups(model: torch.nn.Module) -> dict[str, Servable]:
    """Return the modules that look up tables, by path; a shared one by each of its paths."""
    return {
        path: module
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, Servable)
    }


def _check_widths(
    folder: Path, manifest: ExportManifest, lookups: Mapping[str, tuple[str, Servable]]
) -> None:
    """Compare the tables that a model wants with those there are.

    Raises:
        ExportMismatchError: naming the first that is missing or has another width.
    """
    for path, (name, module) in lookups.items():
        table = manifest.tables.get(name)
        if table is None:
            there = ", ".join(sorted(manifest.tables)) or "none"
            rule = f"module {path!r} wants table {name!r}, and the export has: {there}"
            raise ExportMismatchError(path=str(folder), rule=rule)
        if table.dim != module.row_width:
            rule = f"rows of table {name!r} are {table.dim} wide, not {module.row_width}"
            raise ExportMismatchError(path=str(folder), rule=rule)
