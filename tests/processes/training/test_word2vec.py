"""word2vec trains in every mode, on a text that the test makes, and on text8's beginning."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_worker.app.export.table import export_table

pytestmark = [pytest.mark.processes, pytest.mark.slow]

CONFIG = Path(__file__).parents[3] / "models" / "recall" / "word2vec" / "config.yaml"
SCRIPT = "model_folder.py"
NUM_TOPICS, WORDS_OF_TOPIC = 12, 15


def words(*options: Mapping[str, object]) -> list[str]:
    """Return the command line that trains with these keys."""
    keys = {key: value for some in options for key, value in some.items()}
    return ["train", "-m", str(CONFIG), *(f"-o{key}={value}" for key, value in keys.items())]


def first(ended: Any) -> dict[str, Any]:
    """Return what worker 0 of a job printed last."""
    assert set(ended.codes.values()) == {0}, ended.story()
    found = json.loads(ended.logs["worker0"].splitlines()[-1])
    assert isinstance(found, dict)
    return found


def word(topic: int, number: int) -> str:
    return f"{chr(97 + topic)}{chr(97 + number)}"


def write_topics(path: Path, *, num_words: int, seed: int) -> None:
    """Write paragraphs, each about something: two words of a topic are neighbours."""
    random = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as out:
        for topic in random.integers(0, NUM_TOPICS, num_words // 40):
            numbers = random.integers(0, WORDS_OF_TOPIC, 40)
            out.write(" ".join(word(topic, number) for number in numbers) + "\n")


def write_judgements(folder: Path) -> None:
    """Write that words of a topic are alike, and an analogy of which all words are known."""
    folder.mkdir()
    pairs = [(word(t, 0), word(t, n), 9) for t in range(NUM_TOPICS) for n in (1, 2)]
    pairs += [(word(t, 0), word((t + n) % NUM_TOPICS, n), 1) for t in range(12) for n in (3, 5)]
    lines = "".join(f"{a}\t{b}\t{score}\n" for a, b, score in pairs)
    (folder / "pairs.txt").write_text(lines, encoding="utf-8")
    questions = f": topics\n{word(0, 0)} {word(1, 0)} {word(0, 1)} {word(1, 1)}\n"
    (folder / "questions.txt").write_text(questions, encoding="utf-8")


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "train").mkdir()
    for name, seed in (("a", 1), ("b", 2)):
        write_topics(tmp_path / "train" / name, num_words=30_000, seed=seed)
    write_judgements(tmp_path / "test")
    return {
        "runner.train_data_dir": tmp_path / "train",
        "runner.test_data_dir": tmp_path / "test",
        "runner.train_batch_size": 200,
        "runner.model_save_path": "",
        "runner.epochs": 4,
        "hyper_parameters.embedding_dim": 20,
        "hyper_parameters.sample": 0,
    }


def test_words_of_a_topic_become_alike_alone_and_in_every_mode(
    jobs: Any, keys: dict[str, object]
) -> None:
    command = words(keys)

    results = {"local": jobs.local(SCRIPT, *command)}
    running = {
        mode: jobs.start(
            SCRIPT,
            *command,
            "-orunner.geo_step=20",
            f"-orunner.sync_mode={mode}",
            servers=1,
        )
        for mode in ("sync", "async", "geo")
    }
    results |= {mode: first(job.end()) for mode, job in running.items()}

    for mode, result in results.items():
        assert (result["model"], result["mode"]) == ("recall/word2vec", mode)
        assert result["words_per_s"] > 0
        assert result["similarity"] == result["similarity_pairs"]
        # the best that ranks of two marks can reach is 0.866
        assert result["similarity"] > 0.75, results
        assert result["analogy_accuracy"] in {0.0, 1.0}


@pytest.mark.parametrize("mode", ["local", "geo"])
def test_a_saved_vocabulary_and_epoch_are_what_was_trained(
    jobs: Any, keys: dict[str, object], tmp_path: Path, mode: str
) -> None:
    vocabulary, saved = tmp_path / "words", tmp_path / "saved"
    more = {"runner.epochs": 1, "runner.model_save_path": saved}
    command = words(keys, more)
    writes = f"-ohyper_parameters.vocabulary_save_path={vocabulary}"
    if mode == "local":
        trained = jobs.local(SCRIPT, *command, writes)
    else:
        trained = first(jobs.run(SCRIPT, *command, writes, "-orunner.sync_mode=geo", workers=1))
    (tmp_path / "train" / "a").unlink()  # the words are those that were saved

    reads = f"-ohyper_parameters.vocabulary_path={vocabulary}"
    scored = jobs.local(
        SCRIPT, "infer", *command[1:], reads, f"-orunner.infer_load_path={saved}"
    )
    output = tmp_path / "vectors.txt"
    done = export_table(
        saved / "0", table="words", format="word2vec", output=output, words=vocabulary
    )

    assert scored["similarity"] == pytest.approx(trained["similarity"], abs=1e-6)
    assert done.rows == NUM_TOPICS * WORDS_OF_TOPIC
    names = [line.split(" ")[0] for line in output.read_text(encoding="utf-8").splitlines()[1:]]
    expected = [line.split(" ")[0] for line in vocabulary.read_text().splitlines()]
    assert names == expected


def test_the_beginning_of_text8_trains(jobs: Any, keys: dict[str, object]) -> None:
    folder = read_environment().get("PARAMFLEET_DATA")
    if not folder:
        pytest.skip("PARAMFLEET_DATA names no folder of real data")
    data = Path(folder)
    file = data / "tiny" / "text8_head_200k.txt"
    more = {
        "runner.train_data_dir": file,
        "runner.test_data_dir": data / "medium" / "EN-WS-353-ALL.txt.gz",
    }

    result = jobs.local(SCRIPT, *words(keys, more))

    assert math.isfinite(result["similarity"])
    assert result["words_per_s"] > 0
