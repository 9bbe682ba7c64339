"""Use the samples of files, note each batch with the position behind it, and die."""

import argparse
import json
import os
import signal
from pathlib import Path

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--files", nargs="+", required=True)
parser.add_argument("--kind", default="QueueDataset")
parser.add_argument("--thread_num", type=int, default=1)
parser.add_argument("--pipe_command", default="cat")
parser.add_argument("--ledger", type=Path, required=True)
parser.add_argument("--die_after", type=int, default=-1, help="batches")
args = parser.parse_args()

dataset = getattr(fleet.data, args.kind)()
dataset.init(
    batch_size=7,
    thread_num=args.thread_num,
    use_var=[fleet.data.Slot("number", dense=True), fleet.data.Slot("words")],
    pipe_command=args.pipe_command,
)
dataset.set_filelist(args.files)
if args.ledger.exists():
    dataset.load_state_dict(json.loads(args.ledger.read_text().splitlines()[-1])["state"])
if args.kind == "InMemoryDataset":
    dataset.load_into_memory(is_shuffle=True)
with args.ledger.open("a") as ledger:
    for count, batch in enumerate(dataset):
        if count == args.die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        numbers = batch["number"].values.tolist()
        ledger.write(json.dumps({"numbers": numbers, "state": dataset.state_dict()}) + "\n")
        ledger.flush()
