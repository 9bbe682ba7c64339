"""What happens with each ``config*.yaml`` of PaddleRec: the table of docs/paddlerec.md.

The files aren't here: ``paddlerec_yamls.txt`` has facts of them, of which folders are made that
have the same keys, and modules that name the same. With PARAMFLEET_PADDLEREC, a folder with
PaddleRec's repository, the real ones are read, and those with a network here trained a step.

    python -m tests.unit.client.runner.test_paddlerec_yamls   # writes its counts and table
"""

import ast
import re
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import paramfleet as fleet
from paramfleet.runner.batches import list_files, open_batches
from paramfleet.runner.config.errors import ModelFolderError, RefusedConfigError
from paramfleet.runner.config.paddle_optimizers import optimizer_note
from paramfleet.runner.folders import read_model
from paramfleet_shared.errors import ContractError, FleetError
from paramfleet_shared.settings.config import read_environment

CHECKOUT = Path(__file__).parents[4]
MODELS = CHECKOUT / "models"
FACTS = Path(__file__).with_name("paddlerec_yamls.txt")
PAGE = CHECKOUT / "docs" / "paddlerec.md"

VALUES: dict[str, Any] = {"int": 4, "float": 0.5, "str": "some", "bool": False, "list": [4, 4]}

_VERSION = re.compile(r"python\d\.\d+")

TEXT = "king queen man woman\n" * 5

_TABLE = "| configuration | what happens |\n|---|---|\n"
_COUNTS = re.compile(r"^Of \d+ files .*\.$", re.MULTILINE)


@dataclass
class Folder:
    """One of PaddleRec's, with what its modules name."""

    modules: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)
    """Optimizers and keys, by file."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Values by dotted key, of each YAML file."""


@cache
def folders() -> dict[str, Folder]:
    """Return PaddleRec's folders, of the facts."""
    top, _, rest = FACTS.read_text().partition("\n\n")[2].partition("\n\n")
    facts = top.splitlines()
    found: dict[str, Folder] = {}
    folder = Folder()
    for line in rest.replace("\n    ", " ").splitlines():
        kind, name, *words = line.split()
        if kind == "folder":
            folder = found[name] = Folder()
        elif kind == "module":
            optimizers = [] if words[0] == "-" else words[0].split(",")
            keys = [facts[int(each)].removeprefix("reads ") for each in words[1:]]
            folder.modules[name] = optimizers, keys
        else:
            folder.files[name] = dict(value_of(facts[int(each)]) for each in words)
    return found


def value_of(fact: str) -> tuple[str, Any]:
    key, equals, value = fact.partition(" = ")
    if equals:
        return key, ast.literal_eval(value)
    key, _, kind = fact.partition(": ")
    if kind.startswith("list["):
        inner = kind[5:-1].partition("|")[0]
        return key, [VALUES[inner]] * 2 if inner else []
    return key, VALUES[kind]


def write(folder: Folder, path: Path) -> None:
    """Write a folder with these keys, and modules that name the same as PaddleRec's."""
    path.mkdir(parents=True, exist_ok=True)
    (path / str(VALUES["str"])).write_text(TEXT)  # of word2vec, which counts words at its start
    for name, (optimizers, keys) in folder.modules.items():
        made = "".join(
            f"def create_optimizer():\n    paddle.optimizer.{each}()\n" for each in optimizers
        )
        (path / name).write_text(f"KEYS = {keys!r}\n{made}")
    for name, values in folder.files.items():
        nested: dict[str, Any] = {}
        for key, value in values.items():
            *above, last = key.split(".")
            inner = nested
            for each in above:
                inner = inner.setdefault(each, {})
            inner[last] = value
        (path / name).write_text(yaml.safe_dump(nested, sort_keys=False))


def options_of(name: str) -> list[str]:
    """Return the options for a folder whose network is among paramfleet's models."""
    model = MODELS / name
    if not (model / "model.py").is_file():
        return []
    options = [f"runner.model_path={model / 'model'}"]
    if name == "recall/word2vec":
        options += [
            f"runner.{kind}_reader_path={model / 'reader'}" for kind in ("train", "infer")
        ]
    return options


def outcome(path: Path, name: str) -> str:
    """Return what happens with a YAML file."""
    try:
        model = read_model(path, options_of(name))
    except RefusedConfigError as error:
        return "refused: " + "; ".join(reason(each, path) for each in error.problems)
    except ContractError as error:
        return "refused: " + reason(error, path)
    warnings = []
    if model.config.left_out:
        keys = ", ".join(f"`{each.partition(' ')[0]}`" for each in model.config.left_out)
        warnings.append(f"not read: {keys}")
    interpreter = model.config.runner.pipe_command.split()[0]
    if _VERSION.fullmatch(interpreter):
        warnings.append(f"the running interpreter, where `{interpreter}` isn't there")
    note = optimizer_note(model.config)
    if note:
        option = note.rpartition("-o ")[2]
        warnings.append(f"trains with {model.hyper.optimizer.name}; PaddleRec: `-o {option}`")
    return "runs with warning: " + "; ".join(warnings) if warnings else "runs"


def reason(error: ContractError, path: Path) -> str:
    """Return why something is refused, without the place."""
    facts = vars(error)
    if isinstance(error, ModelFolderError) and "Paddle's" in error.rule:
        return "no network here" if "write model.py" in error.rule else "no model.py"
    if isinstance(error, ModelFolderError):
        return f"no module `{Path(error.path).name}`"
    text = str(error).partition("; a key of the model's own")[0]
    text = text.replace(f"{path}, ", "").replace(f"{path}: ", "").replace("|", "\\|")
    return text.partition(": ")[2] if "line " in facts.get("where", "") else text


def page(root: Path) -> str:
    """Return the page, of folders that are made below a folder."""
    rows = []
    for name, folder in folders().items():
        write(folder, root / name)
        model = f" ({name})" if options_of(name) else ""
        for file in folder.files:
            happens = outcome(root / name / file, name)
            rows.append(f"| {name}/{file}{model} | {happens} |")
    return text_of(rows)


def text_of(rows: list[str]) -> str:
    """Return the page with some rows."""
    happens = [row.split(" | ")[1] for row in rows]
    refused = sum(each.startswith("refused") for each in happens)
    warned = sum(each.startswith("runs with") for each in happens)
    counts = (
        f"Of {len(rows)} files {len(rows) - refused - warned} run as they are, {warned} with a "
        f"warning, and {refused} are refused."
    )
    head = PAGE.read_text().partition(_TABLE)[0]
    return _COUNTS.sub(counts, head) + _TABLE + "\n".join(rows) + "\n"


@pytest.fixture(autouse=True)
def _alone() -> None:
    fleet.init()


def test_the_page_has_what_happens_with_each_of_paddlerecs_files(tmp_path: Path) -> None:
    made = page(tmp_path / "models")

    assert sum(len(folder.files) for folder in folders().values()) == 124
    assert PAGE.read_text() == made


def test_every_network_of_the_zoo_runs_with_paddlerecs_sample_configuration(
    tmp_path: Path,
) -> None:
    for name, folder in folders().items():
        if options_of(name):
            write(folder, tmp_path / name)
            assert outcome(tmp_path / name / "config.yaml", name).startswith("runs"), name


@pytest.fixture
def upstream() -> Path:
    named = read_environment().get("PARAMFLEET_PADDLEREC")
    if not named:
        pytest.skip("PARAMFLEET_PADDLEREC names no folder with PaddleRec's repository")
    return Path(named) / "models"


def test_the_facts_are_those_of_paddlerecs_files(upstream: Path) -> None:
    lines = PAGE.read_text().splitlines()

    for name, folder in folders().items():
        for file in folder.files:
            if name == "recall/word2vec":  # its model needs text at once, which isn't there
                continue
            model = f" ({name})" if options_of(name) else ""
            happens = outcome(upstream / name / file, name)
            assert f"| {name}/{file}{model} | {happens} |" in lines


def test_networks_of_the_zoo_train_on_paddlerecs_samples(
    upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # one of the readers writes a file
    trained = []
    for name, folder in folders().items():
        for file in folder.files:
            if not options_of(name) or name == "recall/word2vec":
                continue
            try:
                model = read_model(upstream / name / file, options_of(name))
                files = list_files(model.config, "train_data_dir")
            except FleetError:
                continue  # it is refused, or its data aren't beside it
            batch = next(iter(open_batches(model, files, test=False)))
            feeds = model.create_feeds(batch)
            net = fleet.distributed_model(model.create_model())
            optimizer = fleet.distributed_optimizer(model.create_optimizer(net))
            fleet.init_worker()
            loss = model.create_loss(net(*feeds.inputs), feeds.labels)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step(examples=feeds.size)
            assert torch.isfinite(loss), (name, file)
            trained.append(f"{name}/{file}")
    assert len(trained) >= 20


def test_all_that_is_wrong_with_a_folder_is_in_one_error(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "runner:\n  epoch: 3\n  need_dump: true\n  reader_type: Custom\n  sync_mode: heter\n"
        "  train_reader_path: lost\n  runner_result_dump_path: x\n"
        "hyper_parameters:\n  fc_sizes: 8\n  optimizer:\n    rate: 1\n"
    )
    options = [f"runner.model_path={MODELS / 'rank' / 'dnn' / 'model'}"]

    with pytest.raises(RefusedConfigError) as caught:
        read_model(tmp_path / "config.yaml", options)

    text = str(caught.value)
    for part in (
        "7 problems", "line 2: nothing reads the key runner.epoch; did you mean runner.epochs?",
        "line 3: runner.need_dump: dumping is not available: leave it out",
        "line 4: runner.reader_type = 'Custom': must be one of RecDataset",
        "line 5: runner.sync_mode: heter stages don't exist here",
        "lost.py: there is no such module", "line 9: hyper_parameters.fc_sizes",
        "line 11: nothing reads the key hyper_parameters.optimizer.rate",
    ):  # fmt: skip
        assert part in text
    assert text.count("a key of the model's own") == 1, "how keys become known is said once"


def test_keys_that_only_paddles_modules_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "dygraph_model.py").write_text('A = config.get("hyper_parameters.beta", 1)\n')
    (tmp_path / "criteo_reader.py").write_text('B = config.get("hyper_parameters.cut", 1)\n')
    (tmp_path / "config.yaml").write_text(
        "runner:\n  train_reader_path: criteo_reader\n  is_train: true\n"
        "hyper_parameters:\n  beta: 3\n  cut: 2\n"
    )
    options = [f"runner.model_path={MODELS / 'rank' / 'dnn' / 'model'}"]

    model = read_model(tmp_path / "config.yaml", options)

    assert [each.partition(" ")[0] for each in model.config.left_out] == [
        "runner.is_train",
        "hyper_parameters.beta",
    ]
    assert model.config.get("hyper_parameters.cut") == 2


if __name__ == "__main__":
    fleet.init()
    with tempfile.TemporaryDirectory() as made_below:
        PAGE.write_text(page(Path(made_below) / "models"))
