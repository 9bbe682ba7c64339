"""Readers that import Paddle's names run as they are, and without torch."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import paramfleet.data.reading.paddlerec
from paramfleet.data.memory_dataset import InMemoryDataset
from paramfleet.data.parsing.slots import Slot
from paramfleet.data.queue_dataset import QueueDataset
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied

PADDLE_NAMES = Path(paramfleet.data.reading.paddlerec.__file__).parent / "paddle_names"

READER = """\
import sys
import paddle.distributed.fleet as fleet


class Reader(fleet.MultiSlotDataGenerator):
    def init(self, config):
        self.size = int(config.get("hyper_parameters.size"))

    def generate_sample(self, line):
        def reader():
            label, *words = line.split()
            yield [("label", [int(label)]), ("words", [int(each) for each in words])]

        return reader


if __name__ == "__main__":
    yaml_path = sys.argv[1]
    utils_path = sys.argv[2]
    sys.path.append(utils_path)
    import common_ps
    yaml_helper = common_ps.YamlHelper()
    config = yaml_helper.load_yaml(yaml_path)

    r = Reader()
    r.init(config)
    r.run_from_stdin()
"""
"""In the shape of PaddleRec's ``queuedataset_reader.py``."""

HELPERS = (
    Path(paramfleet.data.reading.paddlerec.__file__).parents[2] / "runner" / "pipe_helpers"
)


@pytest.mark.parametrize("kind", [QueueDataset, InMemoryDataset])
def test_a_reader_of_paddlerec_is_a_pipe_command_as_it_is(kind: Any, tmp_path: Path) -> None:
    (tmp_path / "reader.py").write_text(READER)
    (tmp_path / "config.yaml").write_text("hyper_parameters:\n  size: 3\n")
    (tmp_path / "part-0").write_text("1 4 5\n0 6\n")
    words = [sys.executable, tmp_path / "reader.py", tmp_path / "config.yaml", HELPERS]
    dataset = kind()
    dataset.init(
        batch_size=2,
        use_var=[Slot("label", dense=True), Slot("words")],
        pipe_command=" ".join(map(str, words)),
    )
    dataset.set_filelist([str(tmp_path / "part-0")])
    if kind is InMemoryDataset:
        dataset.load_into_memory()

    (batch,) = dataset

    assert batch["label"].dense().tolist() == [[1], [0]]
    assert batch["words"].values.tolist() == [4, 5, 6]


def python(code: str, *path: Path) -> str:
    """Return what a Python says that has these folders on its path."""
    places = ":".join(map(str, path))
    done = subprocess.run(
        tied([sys.executable, "-c", code]),
        env={**read_environment(), "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "import paramfleet as fleet; fleet.MultiSlotDataGenerator",
        "from paramfleet.data import MultiSlotStringDataGenerator",
        "import paramfleet as fleet; fleet.data.MultiSlotDataGenerator; dir(fleet)",
        "import paddle.distributed.fleet as fleet; fleet.MultiSlotDataGenerator",
        "import paddle.distributed.fleet.data_generator as dg; dg.MultiSlotDataGenerator",
    ],
)
def test_a_generator_comes_without_torch(line: str) -> None:
    code = f"{line}\nimport sys\nprint([n for n in ('torch', 'numba') if n in sys.modules])"

    assert python(code, PADDLE_NAMES) == "[]"


@pytest.mark.slow
def test_a_paddle_that_is_installed_goes_first(tmp_path: Path) -> None:
    folder = tmp_path / "paddle" / "distributed"
    folder.mkdir(parents=True)
    (tmp_path / "paddle" / "__init__.py").write_text("REAL = True\n")
    (folder / "__init__.py").write_text("")
    (folder / "fleet.py").write_text("MultiSlotDataGenerator = 'the real one'\n")
    code = (
        "import paddle, paddle.distributed.fleet as fleet\n"
        "print(paddle.REAL, fleet.MultiSlotDataGenerator)"
    )

    assert python(code, tmp_path, PADDLE_NAMES) == "True the real one"
    assert python(code, PADDLE_NAMES, tmp_path) == "True the real one"


@pytest.mark.slow
def test_a_paddle_that_is_broken_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "paddle").mkdir()
    (tmp_path / "paddle" / "__init__.py").write_text("import no_such_library\n")
    code = (
        "try:\n    import paddle\nexcept ModuleNotFoundError as error:\n    print(error.name)"
    )

    assert python(code, PADDLE_NAMES, tmp_path) == "no_such_library"
