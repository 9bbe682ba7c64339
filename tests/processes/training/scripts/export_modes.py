"""Train rows that count shows and clicks, and plain ones; save a base and deltas of both."""

import argparse
import json
from pathlib import Path

import torch

import paramfleet as fleet
from paramfleet.serving.manifest import read_export_manifest
from paramfleet.session.checkpoint.exports.modes import NoBaseError
from paramfleet_shared.files.listed import ListedFile
from paramfleet_shared.files.tensorfile import read_tensors

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--mode", default="sync")
args = parser.parse_args()


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        accessor = fleet.nn.CtrAccessor(days_by="saves")
        self.ads = fleet.nn.Embedding(0, 3, name="ads", accessor=accessor)
        self.words = fleet.nn.Embedding(0, 2, name="words")

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        shown, clicked = torch.where(ids < 5, 3.0, 1.0), (ids < 5).float()
        rows = self.ads(ids, show=shown, click=clicked)
        total: torch.Tensor = rows.sum() + self.words(ids).sum()
        return total


fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode == "async"
model = fleet.distributed_model(Two())
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), strategy)
fleet.init_worker()
rank, size = fleet.worker_index(), fleet.worker_num()
found: dict[str, object] = {}


def train(*ids: int) -> None:
    optimizer.minimize(model(torch.tensor(ids)[rank::size]))
    fleet.util.barrier()  # async has pushed what it has before anybody saves


def remove(table: str, *ids: int) -> None:
    if args.mode == "sync" or rank == 0:
        fleet.remove_rows(table, torch.tensor(ids))


def ids_of(folder: Path, file: ListedFile | None) -> list[int]:
    if file is None:
        return []
    read = read_tensors(folder / file.name, num_bytes=file.bytes, sha256=file.sha256)
    return [int(each) for each in read.tensors["ids"]]


def export(name: str, mode: int) -> None:
    fleet.save_inference_model(args.folder / name, mode=mode)
    fleet.util.barrier()
    manifest = read_export_manifest(args.folder / name, deltas=True)
    for table in manifest.tables.values():
        about = [table.file, table.removed]
        found[f"{name} {table.name}"] = [ids_of(args.folder / name, file) for file in about]
    assert manifest.release is not None
    found[f"{name} sequence"] = manifest.release.sequence


train(5, 6, 7, 8)
export("empty", 2)
train(*range(10))
train(*range(10))
export("base", 2)
export("again", 2)
train(3, 4, 5, 6)
remove("ads", 0)
remove("words", 9)
fleet.util.barrier()
export("delta", 1)
export("nothing", 1)
fleet.save_persistables(args.folder / "batch", mode=3)
train(1, 2, 3, 4)
export("next", 1)
fleet.load_model(args.folder / "batch")
try:
    fleet.save_inference_model(args.folder / "after a load", mode=1)
except NoBaseError as error:
    print(error, flush=True)
fleet.util.barrier()
export("new base", 2)
export("new delta", 1)
fleet.stop_worker()
print(json.dumps(found), flush=True)
