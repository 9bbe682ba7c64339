"""Load own files, shuffle them among all workers, and print the samples of each round."""

import argparse
import json
import os
import signal

import msgpack

import paramfleet as fleet
from paramfleet.api.public import session

parser = argparse.ArgumentParser()
parser.add_argument("--files", nargs="+", required=True)
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--dies", type=int, default=-1, help="the worker that dies in between")
parser.add_argument("--claims", action="store_true", help="worker 1 sends less than it says")
args = parser.parse_args()

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

rank = fleet.worker_index()
if rank == 1 and args.claims:
    for what, said in (("endpoints", "127.0.0.1:9"), ("sent", {0: 3})):
        session.gather(f"fleet.exchange.{what}", msgpack.packb([rank, said]))
    fleet.stop_worker()
    raise SystemExit(0)
dataset = fleet.data.InMemoryDataset()
dataset.init(
    batch_size=16,
    thread_num=2,
    fleet_send_batch_size=10,
    use_var=[fleet.data.Slot("number", dense=True), fleet.data.Slot("words")],
)
dataset.set_filelist(fleet.data.split_files(args.files, rank, fleet.worker_num()))
dataset.load_into_memory()
rounds = []
for _ in range(args.rounds):
    if rank == args.dies:
        os.kill(os.getpid(), signal.SIGKILL)
    dataset.global_shuffle(fleet, thread_num=3)
    samples = []
    for batch in dataset:
        words, offsets = batch["words"].values.tolist(), batch["words"].offsets.tolist()
        for at, number in enumerate(batch["number"].values.tolist()):
            samples.append([number, words[offsets[at] : offsets[at + 1]]])
    rounds.append(samples)
sizes = [dataset.get_memory_data_size(fleet), dataset.get_shuffle_data_size(fleet)]
fleet.stop_worker()
print(json.dumps({"rounds": rounds, "sizes": sizes}))
