"""The tables and headlines that are made of what workers found."""

from typing import Any

import pytest

from localsgd import (
    IMAGE_SETTINGS,
    SPEED_SETTINGS,
    TEXT_HEADLINE,
    TEXT_SETTINGS,
    headlines,
    image_rows,
    text_rows,
)

SYNCS = {"k = 1": 96, "k = 2": 48, "k = 4": 24, "k = 8": 12, "k = 16": 6, "ADACOMM": 16,
         "post-local": 11, "DiLoCo": 6}  # fmt: skip
STEP_S, SYNC_S = 0.25, 0.5


def run(**facts: Any) -> dict[str, Any]:
    return {"steps": 96, "bytes": 1e6, **facts}


def found() -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {}
    for number, name in enumerate(IMAGE_SETTINGS):
        runs[f"accuracy/{name}"] = [
            run(syncs=SYNCS[name], accuracy=99.0 - 0.05 * number + seed) for seed in (0, 1)
        ]
    for name in SPEED_SETTINGS:
        syncs = SYNCS.get(name, 0)
        runs[f"speed/{name}"] = [run(syncs=syncs, seconds=96 * STEP_S + syncs * SYNC_S)]
    for name in TEXT_SETTINGS:
        is_headline = name == TEXT_HEADLINE
        runs[f"loss/{name}"] = [
            run(syncs=1, loss=2.0 + 0.01 * is_headline, bytes=1e6 / (1 + 119 * is_headline))
        ]
    return runs


def test_the_headlines_are_of_their_rows() -> None:
    figures = headlines(image_rows(found()), text_rows(found()))

    assert figures == {
        "adacomm_accuracy_loss_points": 0.25,
        "adacomm_sync_reduction": 6.0,
        "best_of_8x_accuracy_loss_points": 0.15,  # k = 8
        "best_of_8x_sync_reduction": 8.0,
        "k16_throughput_gain": pytest.approx(100 * (0.75 / (0.25 + 0.5 / 16) - 1), abs=0.1),
        "k16_accuracy_loss_points": 0.2,
        "diloco_byte_reduction": 120.0,
        "diloco_loss_gap": pytest.approx(0.005),
    }


def test_a_speed_that_is_not_measured_follows_from_steps_and_synchronisations() -> None:
    rows = {row["setting"]: row for row in image_rows(found())}

    step_s = STEP_S + SYNC_S * 16 / 96
    assert rows["ADACOMM"]["samples_per_s"] == pytest.approx(128 / step_s, abs=0.1)
    assert rows["k = 4"]["samples_per_s"] == pytest.approx(128 / (STEP_S + SYNC_S / 4), abs=0.1)
