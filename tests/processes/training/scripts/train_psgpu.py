"""Train days of data by Paddle's names for passes, or the same batches in sync.

The data of a day is read while the day before is trained. Between two days, one pass trains
nothing.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="gpubox")
parser.add_argument("--data", type=Path, required=True, help="a folder with a file a day")
args = parser.parse_args()

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

torch.manual_seed(0)
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode == "gpubox"
if args.mode == "gpubox":
    strategy.a_sync_configs = {"use_ps_gpu": 1}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = fleet.nn.EmbeddingBag(0, 4, mode="sum", name="words", padding_idx=0)
        self.out = torch.nn.Linear(4, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.words(words)).squeeze(1)
        return logits


def words_of(batch: Any) -> torch.Tensor:
    words: torch.Tensor = batch["words"].padded(3)
    return words


def train(batch: Any) -> None:
    label = batch["label"].dense().float().squeeze(1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(words_of(batch)), label)
    optimizer.minimize(loss)
    losses.append(loss.item())


model = fleet.distributed_model(Model())
optimizer = fleet.distributed_optimizer(
    torch.optim.Adagrad(model.parameters(), lr=0.1), strategy
)
fleet.init_worker()

dataset = fleet.data.InMemoryDataset()
slots = [fleet.data.Slot("label", dense=True), fleet.data.Slot("words")]
dataset.init(batch_size=16, thread_num=1, use_var=slots, pipe_command="cat")
days = sorted(args.data.iterdir())
losses: list[float] = []
facts: list[dict[str, Any]] = []
scores = 0
if args.mode == "gpubox":
    ps = fleet.PSGPU()
    ps.set_slot_vector([1])
    ps.set_slot_dim_vector([4])
    ps.init_gpu_ps([0] if torch.cuda.is_available() else [])
    ps.set_dataset(dataset, model, ids=lambda batch: {"words": words_of(batch)})
    dataset.set_filelist([days[0]])
    ps.load_into_memory()
    for number, _ in enumerate(days):
        ps.set_date(2026, 11, number + 1)
        batches = ps.begin_pass()
        for place, batch in enumerate(batches):
            train(batch)
            if place == 0 and number + 1 < len(days):
                dataset.set_filelist([days[number + 1]])
                ps.preload_into_memory()
        ps.end_pass()
        facts += ps.facts
        ps.set_mode(True)
        for batch in ps.begin_pass():
            scores += len(model(words_of(batch)))
        ps.end_pass()
        ps.set_mode(False)
        if number + 1 < len(days):
            ps.wait_preload_done()
    ps.finalize()
else:
    for day in days:
        dataset.set_filelist([day])
        dataset.load_into_memory()
        for batch in dataset:
            train(batch)
fleet.finish_training()
with torch.no_grad():
    rows = model.words(torch.arange(1, 90).unsqueeze(1)).tolist()
fleet.stop_worker()
print(json.dumps({"losses": losses, "rows": rows, "facts": facts, "scores": scores}))
