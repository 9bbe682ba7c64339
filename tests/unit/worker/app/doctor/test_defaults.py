"""The doctor says what tables have where nothing is set."""

import json

from click.testing import CliRunner

from paramfleet.config.accessor import CtrAccessor
from paramfleet.config.eviction import EVICTION_KEYS, Eviction
from paramfleet_shared.tables.rules.ctr.catalog import PART_RULES
from paramfleet_worker.app.doctor.defaults import table_defaults
from paramfleet_worker.app.doctor.report import doctor


def test_each_option_is_there_with_its_default_and_its_meaning() -> None:
    found = table_defaults()

    assert found["accessor"]["embedx_threshold"].value == CtrAccessor().embedx_threshold
    assert found["accessor"]["embed"].value == "SparseAdaGradSGDRule"
    assert found["entry"]["kind"].value == "none"
    assert found["eviction"].keys() == EVICTION_KEYS.keys()
    assert found["eviction"]["headroom"].value == Eviction().headroom
    assert {title for title in found if title.startswith("rule ")} == {
        f"rule {name}" for name in PART_RULES
    }
    assert found["rule SparseAdamSGDRule"]["learning_rate"].value == 0.001
    assert found["rule SparseAdamSGDRule"]["beta1_decay_rate"].value == 0.9
    for title in ("accessor", "entry", "eviction"):
        for name, each in found[title].items():
            assert each.meaning.endswith("."), (title, name)


def test_the_command_prints_them_as_a_text_or_as_json() -> None:
    text = CliRunner().invoke(doctor, ["--defaults"])
    plain = CliRunner().invoke(doctor, ["--defaults", "--json"])

    assert text.exit_code == plain.exit_code == 0
    assert "    delete_threshold = 0.8: ``fleet.shrink`` removes rows" in text.output
    assert "    tables = none: Other values of these keys" in text.output
    found = json.loads(plain.output)["defaults"]
    assert found["rule SparseNaiveSGDRule"]["weight_bounds"]["value"] == [-10, 10]
