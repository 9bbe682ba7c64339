"""Keys that a model's own modules read, and the defaults that they ask with."""

from pathlib import Path
from typing import Any

import pytest

from paramfleet.runner.config.configuration import Config, read_config
from paramfleet.runner.config.errors import ConfigError, UnknownKeyError
from paramfleet.runner.config.own_keys import keys_named
from paramfleet.runner.config.settings import CtrParameters, HyperParameters

TEXT = """\
runner:
  epochs: 3
  counterfact_mode: DR
hyper_parameters:
  optimizer:
    class: SGD
    gamma: 0.7
  max_len: 3
  layer_sizes_cin: [128, 32]
  fc_sizes: [8, 4]
"""
NET = """\
def sizes(config):
    mode = config.get("runner.counterfact_mode", "DR")
    layers = config.get("hyper_parameters.layer_sizes_cin")
    longest = config.get('hyper_parameters.max_len', 3)
    return mode, layers, longest, config.get("hyper_parameters.optimizer.gamma", 1.0)
"""


def read(folder: Path, text: str, *options: str) -> Config[Any]:
    (folder / "config.yaml").write_text(text)
    return read_config(folder / "config.yaml", options).read_as(CtrParameters)


def test_the_callers_default_is_preferred_to_ours(tmp_path: Path) -> None:
    config = read(tmp_path, "runner:\n  epochs: 3\nhyper_parameters:\n  fc_sizes: [8]\n")

    assert config.get("runner.use_fleet", False) is False
    assert config.get("runner.thread_num", 7) == 7
    assert config.get("runner.seed", None) is None
    assert config.get("hyper_parameters.sparse_feature_dim", 16) == 16
    assert config.get("hyper_parameters.optimizer.learning_rate", 0.5) == 0.5
    assert config.get("hyper_parameters.optimizer.class", "Lamb") == "Lamb"
    assert config.get("runner.a_sync_configs", {"k_steps": 1}) == {"k_steps": 1}


def test_a_key_that_is_given_is_preferred_to_the_callers_default(tmp_path: Path) -> None:
    text = "runner:\n  use_gpu: false\n  a_sync_configs:\n    max_staleness: 2\n"
    config = read(tmp_path, text, "hyper_parameters.optimizer.class=SGD", "runner.seed=12345")

    assert config.get("runner.use_gpu", True) is False
    assert config.get("runner.seed", 7) == 12345
    assert config.get("hyper_parameters.optimizer.class", "Adam") == "SGD"
    assert config.get("runner.a_sync_configs", {}) == {"max_staleness": 2}
    assert config.get("runner.a_sync_configs.max_staleness", 9) == 2
    assert config.get("runner.a_sync_configs.k_steps", 9) == 9


def test_without_a_default_ours_is_returned(tmp_path: Path) -> None:
    config = read(tmp_path, "")

    assert config.get("runner.seed") == 12345
    assert config.get("hyper_parameters.optimizer.learning_rate") == 0.001
    assert config.get("runner.no_such") is None


def test_a_list_is_a_list_as_in_paddlerec(tmp_path: Path) -> None:
    config = read(tmp_path, "hyper_parameters:\n  fc_sizes: [8, 4]\n")

    assert config.get("hyper_parameters.fc_sizes") == [8, 4]


def test_the_folder_of_the_files_is_under_paddlerecs_name(tmp_path: Path) -> None:
    assert read(tmp_path, "").get("config_abs_dir", None) == str(tmp_path)


@pytest.mark.parametrize("module", ["net.py", "model.py", "any_reader.py"])
def test_a_key_that_a_module_reads_is_allowed(tmp_path: Path, module: str) -> None:
    (tmp_path / module).write_text(NET)

    config = read(tmp_path, TEXT, "runner.counterfact_mode=IPS", "hyper_parameters.max_len=5")

    assert config.get("runner.counterfact_mode", "DR") == "IPS"
    assert config.get("hyper_parameters.max_len", 3) == 5
    assert config.get("hyper_parameters.layer_sizes_cin") == [128, 32]
    assert config.get("hyper_parameters.optimizer.gamma", 1.0) == 0.7
    assert config.get("hyper_parameters.optimizer.class") == "SGD"


def test_the_modules_that_the_configuration_names_are_read_where_they_are(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "yaml"
    for name in ("yaml", "model", "reader"):
        (tmp_path / name).mkdir()
    (tmp_path / "reader/criteo.py").write_text('def f(c): return c.get("runner.top_k")\n')
    (tmp_path / "model/net.py").write_text('def f(c): c.get("hyper_parameters.heads")\n')
    text = (
        "runner:\n  model_path: ../model/model\n  train_reader_path: ../reader/criteo\n"
        "  top_k: 10\nhyper_parameters:\n  heads: 2\n"
    )

    config = read(folder, text)

    assert (config.get("runner.top_k"), config.get("hyper_parameters.heads")) == (10, 2)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("hyper_parameters:\n  max_lem: 3\n", "hyper_parameters.max_lem"),
        ("hyper_parameters:\n  optimizer:\n    gama: 3\n", "hyper_parameters.optimizer.gama"),
        ("runner:\n  counterfact: 3\n", "runner.counterfact"),
    ],
)
def test_a_key_that_nothing_reads_is_refused_with_the_ways_to_read_one(
    tmp_path: Path, text: str, key: str
) -> None:
    (tmp_path / "net.py").write_text(NET)

    with pytest.raises(UnknownKeyError) as caught:
        read(tmp_path, text)

    assert caught.value.key == key
    assert f'config.get("{key}")' in str(caught.value)
    assert "dataclass" in str(caught.value)


def test_the_nearest_may_be_a_key_that_a_module_reads(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)

    with pytest.raises(UnknownKeyError, match=r"did you mean hyper_parameters\.max_len\?"):
        read(tmp_path, "hyper_parameters:\n  max_lenn: 3\n")


def test_a_declared_key_keeps_its_type_though_a_module_reads_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text('def f(c): c.get("hyper_parameters.fc_sizes")\n')

    with pytest.raises(ConfigError, match="must be a list"):
        read(tmp_path, "hyper_parameters:\n  fc_sizes: 8\n")


def test_a_module_that_is_no_python_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text('config.get("hyper_parameters.max_len"\n')
    (tmp_path / "old.py").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(UnknownKeyError):
        read(tmp_path, "hyper_parameters:\n  max_len: 3\n")


def test_a_model_without_a_class_of_its_own_reads_keys(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "config.yaml").write_text("hyper_parameters:\n  max_len: 3\n")

    config = read_config(tmp_path / "config.yaml").read_as(HyperParameters)

    assert config.get("hyper_parameters.max_len") == 3


def test_keys_are_whole_texts_of_a_module() -> None:
    source = '''"""Says runner.epochs in a sentence."""
a = config.get("runner.top_k"), "runner", "hyper_parameters.", "x.runner.y"
b = "hyper_parameters.meta." "rate"
'''

    assert keys_named(source) == {"runner.top_k", "hyper_parameters.meta.rate"}


def test_a_key_of_what_is_not_here_has_its_value_where_it_asks_for_nothing(
    tmp_path: Path,
) -> None:
    text = "workspace: .\nrunner:\n  use_xpu: false\n  inference: 0\n"
    config = read(tmp_path, text, "runner.need_dump=False")

    assert config.get("runner.use_xpu", True) is False
    assert config.get("runner.inference", True) == 0
    assert config.get("runner.need_dump", True) is False
    assert config.get("runner.use_npu", True) is True
    assert config.get("workspace", None) == "."
