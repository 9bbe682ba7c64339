"""Files as a stream of batches: what comes, in which order, and how it goes on."""

import gzip
import json
import os
import select
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from torch.utils.data import DataLoader

from paramfleet.data.batch import Batch, NotDenseError
from paramfleet.data.dataset import NotInitializedError
from paramfleet.data.parsing.bad_lines import BadLineError
from paramfleet.data.parsing.slots import Slot
from paramfleet.data.progress import OtherDataError
from paramfleet.data.queue_dataset import QueueDataset
from paramfleet.data.reading.files import (
    CannotReadFileError,
    DamagedFileError,
    EmptyFileListError,
    TooFewFilesError,
    split_files,
)
from paramfleet.data.reading.pipe import PipeFailedError, PipeTimeoutError
from paramfleet_shared.settings.config import SettingError, UnknownSettingError
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S

SLOTS = [Slot("label", dense=True), Slot("price", "float32"), Slot("words")]

Made = Callable[..., QueueDataset]


def line_of(number: int) -> str:
    words = " ".join(str(number * 10 + each) for each in range(number % 4))
    return f"1 {number} 1 {number / 2} {number % 4} {words}".rstrip()


def write(path: Path, numbers: range) -> str:
    path.write_text("".join(line_of(number) + "\n" for number in numbers))
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Three files with samples 0 to 99, 100 to 199 and 200 to 249."""
    ranges = (range(100), range(100, 200), range(200, 250))
    return [write(tmp_path / f"part-{n}", numbers) for n, numbers in enumerate(ranges)]


@pytest.fixture
def made(files: list[str]) -> Made:
    def make(**given: Any) -> QueueDataset:
        dataset = QueueDataset()
        dataset.init(**{"use_var": SLOTS, "batch_size": 7, **given})
        dataset.set_filelist(files)
        return dataset

    return make


def numbers_of(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["label"].values.tolist()]


def drain(dataset: QueueDataset, found: list[int]) -> None:
    """Note every batch's numbers as it comes, so that they are there after an error."""
    for batch in dataset:
        found += numbers_of([batch])


def test_a_batch_holds_values_and_offsets_of_every_slot(made: Made) -> None:
    batch = next(iter(made(batch_size=4)))

    assert batch.size == 4
    assert list(batch) == ["label", "price", "words"]
    assert batch["label"].dense().tolist() == [[0], [1], [2], [3]]
    assert batch["price"].values.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert batch["words"].values.tolist() == [10, 20, 21, 30, 31, 32]
    assert batch["words"].offsets.tolist() == [0, 0, 1, 3, 6]
    assert batch["words"].values.dtype is batch["words"].offsets.dtype is torch.int64
    assert batch["price"].values.dtype is torch.float32


def test_values_are_padded_or_cut_to_a_width(made: Made) -> None:
    words = next(iter(made(batch_size=4)))["words"]

    assert words.padded(2, fill=-1).tolist() == [[-1, -1], [10, -1], [20, 21], [30, 31]]
    assert words.padded(4).shape == (4, 4)
    with pytest.raises(NotDenseError, match="words"):
        words.dense()
    with pytest.raises(KeyError):
        next(iter(made()))["word"]


def test_one_reader_keeps_the_order_and_fills_every_batch_but_the_last(made: Made) -> None:
    batches = list(made())

    assert numbers_of(batches) == list(range(250))
    assert [batch.size for batch in batches] == [7] * 35 + [5]


@pytest.mark.parametrize("command", ["cat", "cat | cat", "grep ."])
def test_several_readers_bring_every_sample_once(made: Made, command: str) -> None:
    batches = list(made(thread_num=9, pipe_command=command))

    found = numbers_of(batches)
    assert sorted(found) == list(range(250))
    assert [number for number in found if number < 100] == list(range(100))
    assert {batch.size for batch in batches[:-1]} == {7}


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_data_loader_brings_every_sample_once(made: Made, num_workers: int) -> None:
    loader = DataLoader(made(), batch_size=None, num_workers=num_workers)

    assert sorted(numbers_of(loader)) == list(range(250))


def test_a_batch_crosses_processes_with_all_slots(made: Made) -> None:
    (batch, *_) = DataLoader(made(batch_size=4), batch_size=None, num_workers=1)

    assert isinstance(batch, Batch)
    assert batch["words"].values.tolist() == [10, 20, 21, 30, 31, 32]
    assert batch.to("cpu")["label"].values.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("command", ["cat", "cat | cat"])
@pytest.mark.parametrize("used", [0, 1, 14, 15, 29, 36])
def test_a_loaded_state_goes_on_at_the_exact_sample(
    made: Made, used: int, command: str
) -> None:
    first = made(pipe_command=command)
    batches = iter(first)
    before = numbers_of([next(batches) for _ in range(used)])
    state = json.loads(json.dumps(first.state_dict()))
    batches.close()

    second = made(pipe_command=command)
    second.load_state_dict(state)

    assert before + numbers_of(second) == list(range(250))
    assert numbers_of(second) == list(range(250)), "the next epoch is a whole one"
    assert second.epoch == 2


def test_a_state_of_several_readers_loses_and_repeats_nothing(made: Made) -> None:
    first = made(thread_num=3, batch_size=3)
    batches = iter(first)
    before = numbers_of([next(batches) for _ in range(40)])
    second = made(thread_num=2, batch_size=5)

    second.load_state_dict(first.state_dict())

    assert sorted(before + numbers_of(second)) == list(range(250))


def test_a_data_loader_that_read_ahead_goes_on_behind_what_was_used(made: Made) -> None:
    first = made()
    loader = iter(DataLoader(first, batch_size=None, num_workers=2))
    before = []
    for _ in range(11):
        batch = next(loader)
        before += numbers_of([batch])
        first.advance(batch)

    second = made()
    second.load_state_dict(first.state_dict())

    assert sorted(before + numbers_of(second)) == list(range(250))


def test_a_state_of_other_files_is_refused(made: Made, files: list[str]) -> None:
    other = made()
    other.set_filelist(files[:2])

    with pytest.raises(OtherDataError, match="files was"):
        made().load_state_dict(other.state_dict())


def test_an_iteration_that_was_left_early_begins_anew(made: Made) -> None:
    dataset = made()
    next(iter(dataset))

    assert numbers_of(dataset) == list(range(250))


def test_the_error_of_a_bad_line_comes_behind_the_batches_before_it(
    made: Made, tmp_path: Path
) -> None:
    dataset = made()
    (tmp_path / "part-1").write_text(line_of(100) + "\n1 x\n" + line_of(101) + "\n")
    found: list[int] = []

    with pytest.raises(BadLineError, match=r"part-1, line 2, slot label, column 3"):
        drain(dataset, found)

    assert found == list(range(98)), "a batch is whole or not there"
    write(tmp_path / "part-1", range(100, 200))
    second = made()
    second.load_state_dict(dataset.state_dict())
    assert numbers_of(second) == list(range(98, 250))


@pytest.mark.parametrize("on_bad_line", ["skip", "quarantine"])
def test_bad_lines_are_counted_by_file(made: Made, tmp_path: Path, on_bad_line: str) -> None:
    with (tmp_path / "part-2").open("a") as file:
        file.write("1 x\n1 y\n")
    dataset = made(on_bad_line=on_bad_line, quarantine_dir=tmp_path / "bad")

    assert numbers_of(dataset) == list(range(250))

    path = str(tmp_path / "part-2")
    assert dataset.bad_lines == {path: 2}
    kept = dataset.quarantine_file(path)
    assert kept.is_file() == (on_bad_line == "quarantine")


def test_gzip_is_unpacked(made: Made, tmp_path: Path, files: list[str]) -> None:
    packed = tmp_path / "part-0.gz"
    packed.write_bytes(gzip.compress(Path(files[0]).read_bytes()))

    for command in ("cat", "cat | cat"):
        dataset = made(pipe_command=command)
        dataset.set_filelist([str(packed)])
        assert numbers_of(dataset) == list(range(100))


@pytest.mark.parametrize("command", ["cat", "cat | cat"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "plain"])
def test_damaged_gzip_is_named(
    made: Made, tmp_path: Path, files: list[str], damage: str, command: str
) -> None:
    whole = bytearray(gzip.compress(Path(files[0]).read_bytes()))
    whole[30] ^= 255 * (damage == "flipped")
    damaged = {"cut": bytes(whole[:-30]), "flipped": bytes(whole), "plain": b"1 1 0 0\n"}
    packed = tmp_path / "part-0.gz"
    packed.write_bytes(damaged[damage])
    dataset = made(pipe_command=command)
    dataset.set_filelist([str(packed)])

    with pytest.raises(DamagedFileError, match=r"part-0\.gz is damaged"):
        list(dataset)


def test_any_file_system_of_fsspec_is_read(made: Made, files: list[str]) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/days/part-0", Path(files[0]).read_bytes())
    memory.pipe("/days/part-1.gz", gzip.compress(Path(files[1]).read_bytes()))

    whole, named = made(), made()
    whole.set_filelist(["memory://days/part-0", "memory://days/part-1.gz"])
    named.update_settings(fs_name="memory://", pipe_command="cat | cat")
    named.set_filelist(["/days/part-0", "/days/part-1.gz"])

    assert numbers_of(whole) == numbers_of(named) == list(range(200))


class Guarded(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A file system that asks for a user."""

    protocol = "guarded"

    def __init__(self, username: str = "", password: str = "") -> None:
        super().__init__()
        if (username, password) != ("anna", "secret"):
            raise PermissionError(username)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("guarded://")


@pytest.mark.parametrize("user", ["", "anna", "anna,secret"])
def test_a_file_system_learns_who_asks(made: Made, files: list[str], user: str) -> None:
    fsspec.register_implementation("guarded", Guarded, clobber=True)
    fsspec.filesystem("memory").pipe("/kept/part-0", Path(files[0]).read_bytes())
    dataset = made(fs_ugi=user)
    dataset.set_filelist(["guarded:///kept/part-0"])

    if user == "anna,secret":
        assert numbers_of(dataset) == list(range(100))
    else:
        with pytest.raises(CannotReadFileError, match="guarded"):
            list(dataset)


@pytest.mark.skipif(find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_a_library_that_a_file_system_needs_is_named(made: Made) -> None:
    dataset = made()
    dataset.set_filelist(["hdfs://namenode:9000/days/part-0"])

    with pytest.raises(CannotReadFileError, match=r"hdfs://.*pip install pyarrow"):
        list(dataset)


@pytest.mark.parametrize("file", ["memory://days/none", "nosuch://days/part-0"])
def test_a_file_that_a_file_system_lacks_is_named(made: Made, file: str) -> None:
    dataset = made()
    dataset.set_filelist([file])

    with pytest.raises(CannotReadFileError, match=file):
        list(dataset)


def test_a_command_that_fails_is_named_with_its_last_words(
    made: Made, files: list[str]
) -> None:
    dataset = made(pipe_command="head -3; echo no field 7 >&2; exit 3", batch_size=2)
    found: list[int] = []

    with pytest.raises(PipeFailedError) as caught:
        drain(dataset, found)

    error = caught.value
    assert (error.status, error.file, error.words) == (3, files[0], "no field 7")
    assert found == [0, 1]


def test_the_half_line_of_a_command_that_fails_is_no_sample(made: Made) -> None:
    dataset = made(pipe_command="printf '1 1 0 0\\n1 2 0 '; exit 1", batch_size=1)

    with pytest.raises(PipeFailedError):
        list(dataset)


@pytest.mark.parametrize("command", ["sleep 100", "cat; exec 1>&-; sleep 100"])
def test_a_command_that_hangs_is_given_up(made: Made, command: str) -> None:
    with pytest.raises(PipeTimeoutError, match=r"wrote nothing for 0\.2 s"):
        list(made(pipe_command=command, pipe_timeout_s=0.2))


def test_what_a_command_leaves_behind_does_not_hold_the_reader(made: Made) -> None:
    dataset = made(pipe_command="cat; sleep 15 >/dev/null &")

    assert numbers_of(dataset) == list(range(250))


def test_a_command_that_reads_only_the_beginning_is_fine(
    made: Made, tmp_path: Path, files: list[str]
) -> None:
    packed = tmp_path / "many.gz"
    packed.write_bytes(gzip.compress(Path(files[0]).read_bytes() * 2000))
    dataset = made(pipe_command="head -5")
    dataset.set_filelist([str(packed)])

    assert numbers_of(dataset) == [0, 1, 2, 3, 4]


def test_rubbish_of_a_command_is_named_as_its_output(made: Made) -> None:
    with pytest.raises(
        BadLineError, match=r"the output of 'echo debug; cat' for .*part-0, line 1"
    ):
        list(made(pipe_command="echo debug; cat"))


def test_a_command_waits_while_nobody_takes_its_lines(made: Made, tmp_path: Path) -> None:
    lines = shlex.quote(line_of(3))
    said = tmp_path / "said"
    command = f"cat; yes {lines} | head -c 50000000; echo > {said}"
    batches = iter(made(pipe_command=command, queue_num=1))

    next(batches)

    assert not said.exists(), "50 MB fit neither the queue nor the pipe"
    batches.close()
    assert not said.exists(), "it is killed with its reader"


@pytest.mark.slow
def test_a_process_that_ends_takes_its_commands_with_it(
    tmp_path: Path, files: list[str]
) -> None:
    script = (
        "from paramfleet.data import QueueDataset, Slot\n"
        "dataset = QueueDataset()\n"
        f"command = 'echo $$ > {tmp_path}/pid; echo 1 7; exec sleep 1000'\n"
        "dataset.init(use_var=[Slot('label')], pipe_command=command)\n"
        f"dataset.set_filelist({files!r})\n"
        "batches = iter(dataset)\n"
        "held = [batches, next(batches)]\n"
        "held.append(held)\n"
        "raise SystemExit(7)\n"
    )

    ended = subprocess.run(tied([sys.executable, "-c", script]), check=False)

    assert ended.returncode == 7
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="pidfd_open is Linux's")
def test_a_process_that_is_killed_takes_its_commands_and_their_children_with_it(
    files: list[str],
) -> None:
    script = (
        "import sys\n"
        "from paramfleet.data import QueueDataset, Slot\n"
        "dataset = QueueDataset()\n"
        "command = 'sleep 1000 >&- 2>&- & echo 1 $$; echo 1 $!; wait'\n"
        "dataset.init(use_var=[Slot('label')], pipe_command=command, batch_size=2)\n"
        f"dataset.set_filelist({files[:1]!r})\n"
        "for batch in dataset:\n"
        "    print(*batch['label'].values.tolist(), flush=True)\n"
    )
    command = tied([sys.executable, "-c", script])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = [int(word) for word in process.stdout.readline().split()]
        watched = [os.pidfd_open(pid) for pid in started]

        process.kill()

        ended = [select.select([each], [], [], LATE_S)[0] for each in watched]
    for each in watched:
        os.close(each)
    assert len(started) == 2
    assert all(ended)


def test_an_unmodified_reader_script_is_a_pipe_command(made: Made, tmp_path: Path) -> None:
    script = tmp_path / "reader.py"
    script.write_text(
        "import sys\n"
        "class Reader:\n"
        "    def generate_sample(self, line):\n"
        "        def reader():\n"
        "            _, label, *_ = line.split()\n"
        "            yield [('label', [int(label)]), ('price', [0.25]), ('words', [1, 2])]\n"
        "        return reader\n"
        "    def run_from_stdin(self):\n"
        "        for line in sys.stdin:\n"
        "            for sample in self.generate_sample(line)():\n"
        "                words = [' '.join(map(str, [len(v), *v])) for _, v in sample]\n"
        "                sys.stdout.write(' '.join(words) + '\\n')\n"
        "Reader().run_from_stdin()\n"
    )

    batches = list(made(pipe_command=f"{sys.executable} {script}"))

    assert numbers_of(batches) == list(range(250))
    assert batches[0]["words"].values.tolist() == [1, 2] * 7


def test_an_unknown_setting_says_the_nearest(made: Made) -> None:
    with pytest.raises(UnknownSettingError, match="did you mean pipe_command"):
        made(pipe_comand="cat")
    with pytest.raises(UnknownSettingError, match="did you mean batch_size"):
        made().update_settings(batchsize=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("thread_num", True),
        ("on_bad_line", "ignore"),
        ("queue_num", 0),
        ("pipe_timeout_s", 0),
        ("pipe_command", " "),
        ("use_var", []),
        ("use_var", ["label"]),
        ("use_var", [SLOTS[0], SLOTS[0]]),
        ("parse_ins_id", True),
        ("fs_name", "hdfs"),
    ],
)
def test_a_setting_out_of_range_is_named(made: Made, name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=name):
        made(**{name: value})


@pytest.mark.parametrize("given", [("", "int64"), ("a", "uint64")])
def test_a_slot_that_cannot_be_is_named(given: Any) -> None:
    with pytest.raises(SettingError, match="Slot"):
        Slot(*given)
    with pytest.raises(SettingError, match="width"):
        Slot("a", width=0)


def test_settings_change_with_the_next_epoch(made: Made) -> None:
    dataset = made()

    dataset.update_settings(batch_size=100)

    assert [batch.size for batch in dataset] == [100, 100, 50]


def test_files_that_are_not_there_are_named(made: Made, tmp_path: Path) -> None:
    dataset = made()
    with pytest.raises(EmptyFileListError):
        dataset.set_filelist([])
    with pytest.raises(CannotReadFileError, match="no such file"):
        dataset.set_filelist([str(tmp_path / "none")])
    with pytest.raises(CannotReadFileError, match="a folder"):
        dataset.set_filelist([str(tmp_path)])
    with pytest.raises(TypeError):
        dataset.set_filelist(str(tmp_path / "part-0"))
    (tmp_path / "part-1").unlink()
    with pytest.raises(CannotReadFileError, match="part-1"):
        next(iter(dataset))


def test_a_dataset_must_be_initialized() -> None:
    with pytest.raises(NotInitializedError):
        list(QueueDataset())


def test_files_are_split_among_workers() -> None:
    files = [f"part-{number}" for number in range(8)]

    shares = [split_files(files, rank, 3) for rank in range(3)]

    assert shares == [files[:3], files[3:6], files[6:]]
    with pytest.raises(TooFewFilesError, match="8 files for 9 workers"):
        split_files(files, 0, 9)
    with pytest.raises(EmptyFileListError):
        split_files([], 0, 1)
