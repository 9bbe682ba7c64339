"""A YAML file is read, or the line that can't be is named."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from paramfleet.nn import CtrAccessor, SparseRule
from paramfleet.runner.config.configuration import Config, read_config
from paramfleet.runner.config.errors import ConfigError, FeatureNotHereError, UnknownKeyError
from paramfleet.runner.config.not_here import NOT_HERE
from paramfleet.runner.config.settings import CtrParameters, HyperParameters
from paramfleet.runner.learning import strategy_of

PADDLEREC = """\
# rank/dnn as PaddleRec ships it, for parameter servers
runner:
  train_data_dir: "data/sample_data/train"
  train_reader_path: "reader" # importlib format
  use_gpu: False
  use_auc: True
  train_batch_size: 2
  epochs: 3
  print_interval: 2
  model_save_path: "output_model_dnn"
  test_data_dir: "data/sample_data/train"
  infer_reader_path: "reader" # importlib format
  infer_batch_size: 2
  infer_load_path: "output_model_dnn"
  infer_start_epoch: 0
  infer_end_epoch: 3
  #use inference save model
  use_inference: False
  save_inference_feed_varnames: ["label", "C1", "C2", "dense_input"]
  save_inference_fetch_varnames: ["cast_0.tmp_0"]
  sync_mode: "async"
  geo_step: 400
  thread_num: 1
  reader_type: "QueueDataset"
  pipe_command: "python queuedataset_reader.py"
  dataset_debug: False
  split_file_list: False
  use_fleet: True
  need_dump: False

hyper_parameters:
  # optimizer config
  optimizer:
    class: Adam
    learning_rate: 1e-3
    strategy: async
  # user-defined <key, value> pairs
  sparse_inputs_slots: 27
  sparse_feature_number: 1000001
  sparse_feature_dim: 9
  dense_input_dim: 13
  fc_sizes: [512, 256, 128, 32]
  distributed_embedding: 0
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def read(folder: Path, text: str, *options: str) -> Config[CtrParameters]:
    return read_config(written(folder, text), options).read_as(CtrParameters)


def test_a_configuration_of_paddlerec_is_read_as_it_is(tmp_path: Path) -> None:
    config = read(tmp_path, PADDLEREC)

    assert config.runner.sync_mode == "async"
    assert config.runner.reader_type == "QueueDataset"
    assert config.hyper_parameters.fc_sizes == (512, 256, 128, 32)
    assert config.hyper_parameters.optimizer.name == "Adam"
    assert config.hyper_parameters.optimizer.learning_rate == 0.001
    assert config.get("hyper_parameters.optimizer.class") == "Adam"
    assert config.get("runner.no_such", 7) == 7
    assert config.path_of("data/train") == tmp_path / "data/train"


ONLINE = """\
# the keys of rank/slot_dnn as PaddleRec ships it, for training by days
runner:
  use_gloo: True
  train_data_dir: "./data2"
  train_reader_path: "criteo_reader" # importlib format
  use_gpu: False
  use_auc: True
  train_batch_size: 32
  epochs: 3
  print_interval: 1
  model_save_path: "output_model"
  checkpoint_per_pass: 6
  save_delta_frequency: 6
  train_thread_num: 3
  reader_type: "InMemoryDataset"
  pipe_command: "python3.7 queuedataset_reader.py"
  dataset_debug: False
  split_file_list: False
  data_sleep_second: 1
  sync_mode: "async"
  split_interval: 5
  split_per_pass: 2
  start_day: "20190720"
  end_day: "20190722"
  infer_batch_size: 32
  infer_thread_num: 1
  infer_reader_path: "criteo_reader" # importlib format
  infer_data_dir: "data/"
  infer_load_path: "output_model"
  infer_start_epoch: 0
  infer_end_epoch: 3
  use_inference: True
  train_dump_fields_dir: "./train_dump_data"
  infer_dump_fields_dir: "./infer_dump_data"
hyper_parameters:
  optimizer:
    class: Adam
    learning_rate: 5e-6
    strategy: async
"""


def test_a_configuration_of_days_of_paddlerec_is_read_as_it_is(tmp_path: Path) -> None:
    runner = read(tmp_path, ONLINE).runner

    assert runner.training_days == ("20190720", "20190721", "20190722")
    assert (runner.passes_that_fit, runner.train_thread_num) == (144, 3)
    assert runner.is_in_memory
    assert runner.data_wait_s == 86_400


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("{20260131..20260201}", ("20260131", "20260201")),
        ('"{20260131..20260201}"', ("20260131", "20260201")),
        ("20260131", ("20260131",)),
        ("[20260131, '20260202..20260203']", ("20260131", "20260202", "20260203")),
        ("{20260131, 20260203}", ("20260131", "20260203")),
        ('"20260131 20260203"', ("20260131", "20260203")),
    ],
)
def test_days_are_a_range_or_a_list(tmp_path: Path, text: str, days: tuple[str, ...]) -> None:
    without = ONLINE.replace('  start_day: "20190720"\n  end_day: "20190722"\n', "")
    in_file = without.replace("runner:\n", f"runner:\n  days: {text}\n", 1)

    assert read(tmp_path, in_file).runner.training_days == days
    option = f"runner.days={text.strip(chr(34))}"
    assert read(tmp_path, without, option).runner.training_days == days
    other = without.replace("runner:\n", "runner:\n  days: {20250101..20250102}\n", 1)
    assert read(tmp_path, other, option).runner.training_days == days


@pytest.mark.parametrize(
    ("option", "rule"),
    [
        ("runner.days=20260101", "left out where days is given"),
        ("runner.end_day=", "must be given, with start_day and end_day"),
        ("runner.end_day=20190719", "doesn't end before it begins"),
        ("runner.start_day=today", "days as"),
        ("runner.split_per_pass=289", "at most 288"),
        ("runner.pass_per_day=145", "at most 144"),
        ("runner.split_interval=1441", "from 1 to 1440"),
        ("runner.data_donefile=a/b", "without a path"),
        ("runner.sync_mode=diloco", "sync, async or geo"),
        ("runner.reader_type=RecDataset", "InMemoryDataset"),
        ("runner.last_epoch=2", "there are no epochs"),
        ("runner.train_data_dir=", "it has their folders"),
        ("runner.model_save_path=", "the training continues from there"),
        ("runner.split_batches=true", "samples are shared"),
    ],
)
def test_keys_of_days_that_contradict_are_told(tmp_path: Path, option: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        read(tmp_path, ONLINE, option)


@pytest.mark.parametrize(
    "option", ["split_interval=10", "prefetch=true", "data_donefile=done", "data_wait_s=9"]
)
def test_a_key_of_days_is_refused_without_days(tmp_path: Path, option: str) -> None:
    with pytest.raises(ConfigError, match="where there is no days"):
        read(tmp_path, PADDLEREC, f"runner.{option}")


def test_a_mapping_of_days_is_no_list(tmp_path: Path) -> None:
    with pytest.raises(UnknownKeyError, match="days"):
        read(tmp_path, "runner:\n  days: {20260101: 3}\n")


def test_options_overrule_the_file_and_take_the_keys_type(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        PADDLEREC,
        "runner.epochs=5",
        "runner.use_gpu=true",
        "runner.infer_end_epoch=none",
        "runner.a_sync_configs.max_staleness=2",
        "hyper_parameters.fc_sizes=[8,4]",
        "hyper_parameters.optimizer.learning_rate=0.5",
        "runner.model_save_path=",
        "runner.epochs=6",
    )

    assert config.runner.epochs == 6
    assert config.runner.use_gpu is True
    assert config.runner.infer_end_epoch is None
    assert config.runner.a_sync_configs == {"max_staleness": 2}
    assert config.hyper_parameters.fc_sizes == (8, 4)
    assert config.hyper_parameters.optimizer.learning_rate == 0.5
    assert not config.runner.model_save_path


@pytest.mark.parametrize(
    ("text", "line", "key", "nearest"),
    [
        ("runner:\n  epoch: 3\n", 2, "runner.epoch", "runner.epochs"),
        ("runner:\n  geo_stepp: 3\n", 2, "runner.geo_stepp", "runner.geo_step"),
        ("runer:\n  epochs: 3\n", 2, "runer", "runner"),
        (
            "hyper_parameters:\n  optimizer:\n    learning_rat: 1\n",
            3,
            "hyper_parameters.optimizer.learning_rat",
            "hyper_parameters.optimizer.learning_rate",
        ),
        ("runner:\n\n  epochs:\n    many: 3\n", 4, "runner.epochs.many", "runner.epochs"),
    ],
)
def test_an_unknown_key_is_told_with_its_line_and_the_nearest(
    tmp_path: Path, text: str, line: int, key: str, nearest: str
) -> None:
    with pytest.raises(UnknownKeyError) as caught:
        read(tmp_path, text)

    assert caught.value.where == f"{tmp_path / 'config.yaml'}, line {line}"
    assert caught.value.key == key
    assert caught.value.nearest == nearest


@pytest.mark.parametrize(
    ("text", "line", "rule"),
    [
        ("runner:\n  epochs: three\n", 2, "must be a whole number"),
        ("runner:\n  epochs: 2.5\n", 2, "must be a whole number"),
        ("runner:\n  epochs: true\n", 2, "must be a whole number"),
        ("runner:\n  epochs: 0\n", 2, "must be a whole number from 1 to 1000000"),
        ("runner:\n  pipe_timeout_s: 0\n", 2, "must be a number from 0.001 to 1e+07"),
        ("runner:\n  on_bad_line: drop\n", 2, "must be one of raise, skip, quarantine"),
        ("runner:\n  epochs:\n", 2, "must be a whole number"),
        ("runner:\n  use_gpu: maybe\n", 2, "must be true or false"),
        ("runner:\n  sync_mode: half\n", 2, "must be one of sync, async, geo"),
        ("runner:\n  model_save_path: [a]\n", 2, "must be text"),
        ("hyper_parameters:\n  optimizer:\n    adam_lazy_mode: no\n", 3, "must be true: rows"),
        ("hyper_parameters:\n  fc_sizes: 8\n", 2, "must be a list, as [512, 256]"),
        ("hyper_parameters:\n  fc_sizes: [8, x]\n", 2, "must be a whole number"),
        ("runner:\n  epochs: 1\n  epochs: 2\n", 3, "is a duplicate of"),
        ("runner:\n  epochs: [1\n", 3, "no YAML"),
        ("runner:\n\tepochs: 1\n", 2, "no YAML"),
        ("- runner\n", 1, "must be a mapping"),
        ("runner: 3\n", 1, "must be a mapping"),
        ("runner:\n  split_file_list: true\n  split_batches: true\n", 3, "files or batches"),
    ],
)
def test_a_wrong_value_is_told_with_its_line(
    tmp_path: Path, text: str, line: int, rule: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)

    assert caught.value.where == f"{tmp_path / 'config.yaml'}, line {line}"
    assert rule in str(caught.value)


@pytest.mark.parametrize("key", sorted(NOT_HERE))
def test_a_key_of_what_is_not_here_raises_by_name_when_it_asks_for_something(
    tmp_path: Path, key: str
) -> None:
    assert read(tmp_path, f"runner:\n  {key}: false\n").runner.epochs == 1

    with pytest.raises(FeatureNotHereError, match=rf"line 2: runner\.{key}: "):
        read(tmp_path, f"runner:\n  {key}: 12\n")


def test_a_mode_that_is_not_here_raises_by_name(tmp_path: Path) -> None:
    with pytest.raises(FeatureNotHereError, match="heter"):
        read(tmp_path, "", "runner.sync_mode=heter")


TABLE = """\
runner:
  epochs: 2
table_parameters:
  embedding:
    shard_num: 10
    enable_sparse_table_cache: false
    accessor:
      accessor_class: SparseAccessor
      embedx_threshold: 3
      embed_sgd_param:
        name: SparseAdaGradSGDRule
        adagrad:
          learning_rate: 0.1
          weight_bounds: [-5, 5]
"""


def test_tables_are_those_of_fleets_strategy(tmp_path: Path) -> None:
    option = "table_parameters.embedding.accessor.ctr_accessor_param.delete_threshold=0.5"
    config = read(tmp_path, TABLE, option)

    mode = strategy_of(config.runner, config.tables).resolve()

    ((accessor, _, _),) = mode.accessors.values()
    assert list(mode.accessors) == ["embedding"]
    assert accessor == CtrAccessor(
        cvm=False,
        embedx_threshold=3,
        delete_threshold=0.5,
        embed=SparseRule("SparseAdaGradSGDRule", learning_rate=0.1, weight_bounds=(-5, 5)),
    )


def test_a_table_without_keys_has_the_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, "table_parameters:\n  embedding:\n")
    mode = strategy_of(config.runner, config.tables).resolve()
    assert mode.accessors["embedding"].accessor == CtrAccessor(cvm=True)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("  t:\n    acessor: 3\n", r"line 3: table_parameters\.t\.acessor: unknown"),
        (
            "  t:\n    accessor:\n      embedx_treshold: 3\n",
            r"line 4: .*embedx_treshold: unknown; did you mean 'accessor\.embedx_threshold'",
        ),
        ("  t:\n    accessor:\n      embedx_dim: x\n", r"embedx_dim = 'x': must be a whole"),
        ("  t:\n    table_class: SSDSparseTable\n", r"table_class = .*rows are in memory"),
        ("  t: 4\n", r"line 2: table_parameters\.t = 4: must be a mapping"),
        (
            "  t:\n    accessor:\n      fea_dim: 9\n      embedx_dim: 9\n",
            r"line 4: table_parameters\.t = 9: must be embedx_dim \+ 3",
        ),
    ],
)
def test_a_key_of_a_table_that_is_wrong_is_named_with_its_line(
    tmp_path: Path, text: str, match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        read(tmp_path, f"table_parameters:\n{text}")


def test_an_option_may_be_a_mapping(tmp_path: Path) -> None:
    text = "runner:\n  a_sync_configs:\n    k_steps: 5\n    max_staleness: 9\n"
    config = read(
        tmp_path,
        text,
        "runner.a_sync_configs={max_staleness: 2, wire_dtype: fp16}",
        "runner={epochs: 4, use_gpu: false}",
        "hyper_parameters.optimizer={class: SGD, learning_rate: 1e-3}",
    )

    configs = {"k_steps": 5, "max_staleness": 2, "wire_dtype": "fp16"}
    assert config.runner.a_sync_configs == configs
    assert (config.runner.epochs, config.runner.use_gpu) == (4, False)
    assert config.hyper_parameters.optimizer.name == "SGD"
    assert config.hyper_parameters.optimizer.learning_rate == 0.001


def test_of_one_key_the_last_option_counts_also_within_a_mapping(tmp_path: Path) -> None:
    options = ["runner={epochs: 4}", "runner.epochs=6", "runner={seed: 2}"]

    config = read(tmp_path, "", *options)

    assert (config.runner.epochs, config.runner.seed) == (6, 2)


@pytest.mark.parametrize(
    ("option", "rule"),
    [
        ("runner.a_sync_configs={max_staleness: 2", "no YAML"),
        ("runner.a_sync_configs={a: 1, a: 2}", "is a duplicate of"),
        ("runner.a_sync_configs=3", "must be a mapping"),
        ("runner.a_sync_configs=", "must be a mapping"),
        ("runner.a_sync_configs.max_staleness=[2", "no YAML"),
        ("runner.epochs={three: 3", "no YAML"),
        ("hyper_parameters.optimizer=Adam", "must be a mapping"),
    ],
)
def test_an_option_that_is_no_mapping_is_told(tmp_path: Path, option: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule) as caught:
        read(tmp_path, "", option)

    assert caught.value.where == "-o"
    assert caught.value.key.startswith(option.partition("=")[0])


@pytest.mark.parametrize("value", ["3", "[a]", ""])
@pytest.mark.parametrize(
    "above", ["runner:\n  a_sync_configs", "hyper_parameters:\n  optimizer"]
)
def test_a_value_where_keys_belong_is_told_with_its_line(
    tmp_path: Path, above: str, value: str
) -> None:
    with pytest.raises(ConfigError, match=r"line 2: .*must be a mapping"):
        read(tmp_path, f"{above}: {value}\n")


def test_an_option_without_a_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"-o: runner\.epochs"):
        read(tmp_path, "", "runner.epochs")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml.*can't be read"):
        read_config(tmp_path / "none.yaml")


def test_a_model_reads_its_own_parameters_alone(tmp_path: Path) -> None:
    raw = read_config(written(tmp_path, "hyper_parameters:\n  fc_sizes: [3]\n"))

    assert raw.read_as(CtrParameters).hyper_parameters.fc_sizes == (3,)
    with pytest.raises(UnknownKeyError, match=r"hyper_parameters\.fc_sizes"):
        raw.read_as(HyperParameters)


@dataclass(frozen=True)
class Lists(HyperParameters):
    widths: list[int] = field(default_factory=list)
    names: Sequence[str] = ()
    rates: list[float] | None = None


def test_a_models_own_keys_may_be_lists(tmp_path: Path) -> None:
    text = "hyper_parameters:\n  widths: [64, 32]\n  names: [a]\n  rates: [0.5]\n"
    config = read_config(written(tmp_path, text), ["hyper_parameters.rates=[1, 2.5]"])

    assert config.read_as(Lists).hyper_parameters == Lists(
        widths=[64, 32], names=("a",), rates=[1.0, 2.5]
    )


@dataclass(frozen=True)
class Odd(HyperParameters):
    made: set[int] = field(default_factory=set)


def test_a_field_of_a_type_that_no_key_has_is_told_with_the_keys_line(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, "hyper_parameters:\n  made: [1]\n"))

    with pytest.raises(ConfigError, match=r"yaml, line 2.*made.*set\[int\].*a list or tuple"):
        config.read_as(Odd)


def test_the_workspace_of_paddlerec_is_the_files_own_folder(tmp_path: Path) -> None:
    folder = tmp_path / "models/rank/dnn"
    folder.mkdir(parents=True)

    assert read(folder, "workspace: models/rank/dnn\n").folder == folder
    assert read(folder, "workspace: ./models/rank/dnn\n").folder == folder
    assert read(folder, "").folder == folder
    assert read(folder, "workspace: /elsewhere\n").folder == Path("/elsewhere")
    assert read(folder, "workspace: sub\n").folder == folder / "sub"


def test_the_workspace_has_the_models_files(tmp_path: Path) -> None:
    for name in ("yamls", "yamls/sub"):
        (tmp_path / name).mkdir()
    (tmp_path / "yamls/sub/model.py").write_text("")

    there = read(tmp_path / "yamls", "workspace: sub\n")
    beside = read(tmp_path / "yamls/sub", f"workspace: {tmp_path}\n")

    assert there.modules == tmp_path / "yamls/sub"
    assert (beside.folder, beside.modules) == (tmp_path, tmp_path / "yamls/sub")


def test_a_workspace_may_be_named_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "models/rank/dnn"
    for folder in (workspace, tmp_path / "yamls"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    config = read(tmp_path / "yamls", "workspace: models/rank/dnn\n")

    assert config.folder == workspace


def test_a_deep_file_is_refused(tmp_path: Path) -> None:
    text = "".join(f"{'  ' * depth}a:\n" for depth in range(12))

    with pytest.raises(ConfigError, match="8 deep"):
        read(tmp_path, f"runner:\n{text.replace('a:', '  a:')}                          b: 1\n")


def laughing(kind: str) -> str:
    """Return YAML of a few hundred bytes that means 10^9 values."""
    inner = "[1]" if kind == "list" else "{a: 1}"
    for level in range(9):
        aliases = [f"*m{level}"] * 9
        if kind == "list":
            inner = f"[&m{level} {inner}, {', '.join(aliases)}]"
        else:
            pairs = ", ".join(f"k{at}: {alias}" for at, alias in enumerate(aliases))
            inner = f"{{a: &m{level} {inner}, {pairs}}}"
    return inner


@pytest.mark.parametrize("kind", ["list", "map"])
def test_what_means_more_values_than_any_model_has_is_refused(
    tmp_path: Path, kind: str
) -> None:
    with pytest.raises(ConfigError, match=r"line 2: .*more than 100000 values"):
        read(tmp_path, f"runner:\n  epochs: {laughing(kind)}\n")


@pytest.mark.parametrize(
    "option",
    [
        "runner.epochs=[" + "[" * 5000,
        "runner.a_sync_configs.own=" + "[" * 5000,
        "runner.own=" + "{k: " * 5000,
        "hyper_parameters.fc_sizes=" + "[" * 5000,
        f"hyper_parameters.fc_sizes={laughing('list')}",
        f"runner.a_sync_configs.own={laughing('list')}",
    ],
    ids=range(6),
)
def test_an_option_that_is_deep_or_means_too_much_is_refused(
    tmp_path: Path, option: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "", option)

    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", ["[" * 5000, "- " * 5000 + "1", "{k: " * 5000])
def test_a_value_nested_too_deep_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=r"line 3: .*64 deep"):
        read(tmp_path, f"runner:\n  epochs:\n    {value}\n")


@pytest.mark.parametrize("value", ["&a [1, *a]", "&a {k: *a, l: *a}"])
def test_what_names_itself_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=r"line 2: .*inside the value that it refers to"):
        read(tmp_path, f"runner:\n  epochs: {value}\n")


def test_an_alias_stands_for_what_it_names(tmp_path: Path) -> None:
    text = "hyper_parameters:\n  widths: &w [64, 32]\n  rates: *w\n"

    config = read_config(written(tmp_path, text)).read_as(Lists)

    assert config.hyper_parameters == Lists(widths=[64, 32], rates=[64.0, 32.0])


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="larger than 1048576 bytes"):
        read(tmp_path, "#" * (1 << 20) + "\n")


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / "pipe"
    if kind == "pipe":
        os.mkfifo(path)

    with pytest.raises(ConfigError, match="isn't a regular file"):
        read_config(path)
