"""What comes from outside is shown bounded, and never commands a terminal."""

import json
import logging
import math
import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet_shared.discovery.records import Failure, Lost, end_from_text, end_to_text
from paramfleet_shared.errors import (
    ContractError,
    FleetError,
    JobFailedError,
    error_from_wire,
    error_to_wire,
)
from paramfleet_shared.errors.served import UnknownTableError
from paramfleet_shared.net.wire.message import MalformedMessageError
from paramfleet_shared.settings.config import SettingError, UnknownSettingError
from paramfleet_shared.tables.spec import TableSpec, TableSpecError
from paramfleet_shared.telemetry.logs_and_metrics import (
    JsonFormatter,
    add_pairs,
    event_formatter,
    finite,
)
from paramfleet_shared.values.texts import (
    all_near,
    is_name,
    is_printable,
    nearest,
    printable,
    shortened,
    shown,
)

CONTROLS = (
    [chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))]
    + list("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    + ["\u2028", "\u2029", "\ud800"]
)
PAGES = Path(__file__).parents[4] / "services/coordinator/paramfleet_coordinator/dashboard"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\x08\x9b31m\u202egnp.exe\x00"


def is_clean(text: str) -> bool:
    return not any(char in text for char in CONTROLS)


@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
def test_a_control_character_is_escaped(control: str) -> None:
    assert is_clean(printable(f"a{control}b"))
    assert not is_printable(f"a{control}b")
    assert is_clean(shown(f"a{control}b"))
    assert not is_name(f"a{control}b")


@given(st.text())
def test_text_without_control_characters_stays_as_it_is(text: str) -> None:
    clean = "".join(c for c in text if unicodedata.category(c) not in {"Cc", "Cf", "Cs"})
    clean = clean.replace("\u2028", "").replace("\u2029", "")
    assert printable(clean) == clean
    assert is_clean(printable(text))
    assert printable(printable(text)) == printable(text)


@given(
    st.one_of(
        st.text(max_size=2000), st.binary(max_size=2000), st.integers(), st.lists(st.text())
    )
)
def test_any_value_is_shown_within_bounds(value: object) -> None:
    assert len(shown(value)) <= 250
    assert is_clean(shown(value))
    assert "\n" not in shown(value)


def test_what_is_cut_off_is_counted() -> None:
    assert shortened("x" * 100_000) == "x" * 200 + "... (100000 characters)"
    assert shown("x" * 100_000) == repr("x" * 200) + "... (100000 characters)"
    assert shown(10**5000) == "a whole number of 16610 bits"


@given(
    st.recursive(
        st.one_of(
            st.integers(), st.floats(), st.booleans(), st.none(), st.text("ab'", max_size=9)
        ),
        lambda inner: st.one_of(
            st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(st.text("ab"), inner)
        ),
    )
)
def test_a_list_or_map_is_shown_as_python_does(value: object) -> None:
    text = repr(value)

    assert shown(value, 10_000) == (text if len(text) <= 10_000 else f"{text[:10_000]}...")
    assert shown(value) == (text if len(text) <= 200 else f"{text[:200]}...")


def test_what_is_there_many_times_is_shown_without_all_of_it() -> None:
    inner: Any = [1] * 10
    mapped: Any = {"a": 1}
    for _ in range(30):
        inner, mapped = [inner] * 10, {str(key): mapped for key in range(10)}
    itself: list[Any] = []
    itself.append(itself)

    for value in (inner, mapped, (inner, mapped), itself):
        assert len(shown(value)) <= 203


class Rude:
    """Raises when it is shown."""

    def __repr__(self) -> str:
        raise RuntimeError


def test_a_value_that_can_not_be_shown_is_named_by_its_type() -> None:
    assert shown(Rude()) == "<Rude>"


LONG = "y" * 100_000


@pytest.mark.parametrize(
    "error",
    [
        UnknownTableError(table=LONG),
        UnknownSettingError(name=LONG, nearest=None),
        SettingError(name="x", value=LONG, rule="short"),
        SettingError(name="x", value=[LONG], rule="short"),
        TableSpecError(field="name", value=LONG, rule="short"),
        MalformedMessageError(where=LONG, rule="short"),
        ContractError(LONG),
        JobFailedError(role="worker", index=0, reason=LONG),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_never_echoes_all_of_a_long_input(error: FleetError) -> None:
    assert len(str(error)) < 4500
    assert "100000 characters" in str(error) or "characters)" in str(error)
    wire = error_to_wire(error)
    assert len(json.dumps(wire)) < 9000
    assert len(str(error_from_wire(wire))) < 4500


def test_an_input_is_cut_where_it_stands_so_that_the_rule_is_read() -> None:
    error = SettingError(name="job", value=LONG, rule="short")
    assert str(error).endswith("must be short")
    assert len(str(error)) < 400


def test_an_unplanned_error_is_bounded_on_the_wire_too() -> None:
    assert len(error_to_wire(ValueError(LONG + HOSTILE))["message"]) < 4500
    assert is_clean(error_to_wire(ValueError(HOSTILE))["message"])


@pytest.mark.parametrize(
    "error",
    [
        JobFailedError(role="worker", index=0, reason=HOSTILE),
        ContractError(HOSTILE),
        MalformedMessageError(where="x", rule=HOSTILE),
    ],
    ids=lambda error: type(error).__name__,
)
def test_control_characters_reach_no_error_and_no_fact(error: FleetError) -> None:
    assert is_clean(str(error))
    assert all(is_clean(fact) for fact in error.facts.values() if isinstance(fact, str))
    again = error_from_wire(
        {"code": error.code, "message": HOSTILE, "facts": dict(error.facts)}
    )
    assert is_clean(str(again))


def test_reasons_in_the_registry_hold_no_control_characters_and_are_bounded() -> None:
    failure = Failure.from_json(json.dumps({"role": "worker", "index": 1, "reason": HOSTILE}))
    assert is_clean(failure.reason)
    assert is_clean(Lost(index=0, incarnation=1, reason=HOSTILE).reason)
    assert is_clean(end_from_text(end_to_text("lost", HOSTILE))[1])
    assert is_clean(end_from_text(f"lost:{HOSTILE}")[1])
    assert len(Failure(role="worker", index=0, reason=LONG).reason) < 4500


def test_what_pages_are_given_holds_no_control_characters() -> None:
    given = {f"job{HOSTILE}": [{"host": HOSTILE, "loss": math.nan, "rank": 1}], "x": (HOSTILE,)}
    text = json.dumps(finite(given), ensure_ascii=False)
    assert is_clean(text)
    assert json.loads(text)["x"] == [printable(HOSTILE)]


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.js")) + sorted(PAGES.glob("*.html")))
def test_pages_insert_text_and_never_markup(page: Path) -> None:
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|eval\(|\son\w+=\""
    assert re.search(markup, page.read_text(encoding="utf-8")) is None


def record(**extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("x", logging.INFO, "f", 1, f"event {HOSTILE}", (), None)
    vars(made).update(extra)
    return made


def test_a_log_line_holds_no_control_characters() -> None:
    line = record(reason=HOSTILE, cause=ValueError(HOSTILE))
    add_pairs(line)
    text = event_formatter(f"worker/{HOSTILE}").format(line)
    assert is_clean(text)
    assert "\n" not in text
    assert is_clean(JsonFormatter("worker", 0).format(record(reason=HOSTILE)))


def test_a_traceback_in_a_log_keeps_its_lines_and_no_control_characters() -> None:
    raised: Any = None
    try:
        int(HOSTILE)
    except ValueError:
        raised = sys.exc_info()
    broken = logging.LogRecord("x", logging.ERROR, "f", 1, "broken", (), raised)
    add_pairs(broken)
    text = event_formatter("worker/0").format(broken)
    assert is_clean(text)
    assert len(text.splitlines()) > 3


@pytest.mark.parametrize(
    "name",
    [
        "dense_0",
        "deep/emb ü",
        "encoder.layers.0.wte",
        "C14[hash]",
        "user id",
        "a:b",
        "größe",
        "x",
    ],
)
def test_names_that_models_have_are_names(name: str) -> None:
    assert is_name(name)
    assert TableSpec(name=name, kind="sparse").name == name


@pytest.mark.parametrize(
    "name",
    ["", ".hidden", "..", "a/../b", "/etc/passwd", " x", "x ", "a\x00b", "a\nb", "<b>", "a'b",
     'a"b', "a\\b", "$(x)", "n" * 257, HOSTILE, 7, None, b"x", "-rf"],
)  # fmt: skip
def test_a_name_outside_the_alphabet_is_refused_by_the_table(name: Any) -> None:
    assert not is_name(name)
    with pytest.raises(TableSpecError) as caught:
        TableSpec(name=name, kind="sparse")
    assert caught.value.field == "name"
    assert is_clean(str(caught.value))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("lr_deccay", "lr_decay"), ("words", None), ("", None), ("x" * 10**7, None)],
)
def test_the_name_that_may_be_meant_is_one_like_it_and_looked_for_fast(
    name: str, meant: str | None
) -> None:
    assert nearest(name, ["seed", "lr_decay", "lr"]) == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("num_servers", ["server_num", "servers"]),
        ("pservers", ["servers"]),
        ("server-num", ["server_num"]),
        ("folder", []),
    ],
)
def test_words_may_stand_in_another_order(name: str, meant: list[str]) -> None:
    assert all_near(name, ["server_num", "servers", "log_dir"]) == meant
