"""The zoo's models train alone and in jobs, on samples that code makes."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramfleet.session.saved_progress import read_progress
from paramfleet_shared.checkpoint.manifest import read_manifest
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied

pytestmark = [pytest.mark.processes, pytest.mark.slow]

MODELS = Path(__file__).parents[3] / "models"
SCRIPT = "model_folder.py"

Options = Mapping[str, object]


IN_MEMORY = {
    "runner.reader_type": "InmemoryDataset",
    "runner.infer_reader_type": "RecDataset",
    "runner.pipe_command": "python pipe_reader.py",
    "runner.split_file_list": True,
}


def write_clicks(path: Path, *, rows: int, seed: int) -> None:
    """Write PaddleRec's slot text; whether three of the ids are even decides most clicks."""
    random = np.random.default_rng(seed)
    ids = random.integers(1, 20, (rows, 26)) + 1000 * np.arange(26)
    dense = random.random((rows, 13)).round(4)
    clicks = (ids[:, :3] % 2).sum(1) + dense[:, 0] > 2
    with path.open("w", encoding="utf-8") as out:
        for click, numbers, row in zip(clicks, dense, ids, strict=True):
            words = [f"click:{int(click)}", *(f"dense_feature:{n}" for n in numbers)]
            words += [f"{slot}:{value}" for slot, value in enumerate(row, start=1)]
            out.write(" ".join(words) + "\n")


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Options:
    """Return the keys that name a train folder of two files and a test folder."""
    folder = tmp_path_factory.mktemp("clicks")
    for name, seed in (("train/a.txt", 1), ("train/b.txt", 2), ("test/a.txt", 3)):
        (folder / name).parent.mkdir(exist_ok=True)
        write_clicks(folder / name, rows=320, seed=seed)
    return {
        "runner.train_data_dir": folder / "train",
        "runner.test_data_dir": folder / "test",
        "runner.train_batch_size": 32,
        "runner.model_save_path": "",
        "runner.epochs": 4,  # old gradients of async want more steps than one process does
        "hyper_parameters.optimizer.learning_rate": 0.02,
    }


def words(model: str, *options: Options) -> list[str]:
    """Return the command line of a model with these keys."""
    keys = {key: value for some in options for key, value in some.items()}
    config = MODELS / model / "config.yaml"
    return ["train", "-m", str(config), *(f"-o{key}={value}" for key, value in keys.items())]


def first(ended: Any) -> dict[str, Any]:
    """Return what worker 0 of a job printed last."""
    assert set(ended.codes.values()) == {0}, ended.story()
    found = json.loads(ended.logs["worker0"].splitlines()[-1])
    assert isinstance(found, dict)
    return found


SMALL = {"hyper_parameters.fc_sizes": "[32, 16]"}
CTR = {
    "dnn": SMALL,
    "wide_deep": SMALL,
    "deepfm": SMALL,
    "logistic_regression": SMALL,
    "dcn_v2": SMALL,
    "dlrm": {
        "hyper_parameters.bot_layer_sizes": "[32, 16]",
        "hyper_parameters.top_layer_sizes": "[32, 16, 2]",
    },
    "autoint": {**SMALL, "hyper_parameters.attn_layer_sizes": "[8, 8]"},
    "xdeepfm": {
        "hyper_parameters.layer_sizes_dnn": "[32, 16]",
        "hyper_parameters.layer_sizes_cin": "[8, 4]",
    },
}
"""The models of clicks, each with its sizes for a test."""

MODES = ["sync", "async", "geo"]


def in_each_mode(
    jobs: Any, *keys: str, in_sync: Sequence[str] = (), modes: Sequence[str] = MODES
) -> dict[str, dict[str, Any]]:
    """Train on two workers and a server in the modes, at the same time.

    Sync may have a command line of its own.
    """
    shared = ["-orunner.split_batches=true", "-orunner.geo_step=5"]
    running = {}
    for mode in modes:
        command = in_sync if in_sync and mode == "sync" else keys
        mode_key = f"-orunner.sync_mode={mode}"
        running[mode] = jobs.start(SCRIPT, *command, *shared, mode_key, servers=1)
    return {mode: first(job.end()) for mode, job in running.items()}


# They differ in what they compute of the same rows: one model goes through every mode, the
# others take turns of the modes whose numbers aren't those of one process.
TURNS = {
    model: MODES if model == "wide_deep" else [MODES[1 + number % 2]]
    for number, model in enumerate(CTR)
}


@pytest.mark.parametrize("model", CTR)
def test_a_model_of_clicks_learns_alone_and_in_a_job(
    jobs: Any, clicks: Options, model: str
) -> None:
    keys = words(f"rank/{model}", clicks, CTR[model])

    alone = jobs.local(SCRIPT, *keys)
    together = in_each_mode(jobs, *keys, modes=TURNS[model])

    assert (alone["model"], alone["mode"]) == (f"rank/{model}", "local")
    assert (alone["workers"], alone["servers"], alone["scored_on"]) == (1, 0, "test")
    assert alone["examples_per_s"] > 0
    for mode, result in together.items():
        assert (result["mode"], result["workers"], result["servers"]) == (mode, 2, 1)
    scores = {"local": alone["auc"], **{m: result["auc"] for m, result in together.items()}}
    assert min(scores.values()) > 0.7, scores


def write_census(path: Path, *, rows: int, seed: int) -> None:
    """Write people of whom age and education say most."""
    random = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as out:
        for person in range(rows):
            age, degree = int(random.integers(15, 70)), int(random.integers(0, 4))
            marital = " Never married" if age < 30 else " Widowed"
            columns = [f" x{random.integers(0, 3)}" for _ in range(42)]
            for place in (5, 16, 17, 18, 39):
                columns[place] = str(random.integers(0, 50))
            columns[0], columns[4], columns[7] = str(age), f" degree {degree}", marital
            columns[41] = " 50000+." if degree == 3 else " - 50000."
            out.write(",".join([str(person), *columns]) + "\n")


@pytest.mark.parametrize(
    ("model", "sizes"), [("mmoe", {}), ("ple", {"hyper_parameters.level_number": 2})]
)
def test_both_tasks_are_learned_alone_and_in_every_mode(
    jobs: Any, tmp_path: Path, model: str, sizes: Options
) -> None:
    for name, seed in (("train", 1), ("test", 2)):
        write_census(tmp_path / name, rows=900, seed=seed)
    options = {
        "runner.train_data_dir": tmp_path / "train",
        "runner.test_data_dir": tmp_path / "test",
        "runner.model_save_path": "",
        "runner.epochs": 2,
        "hyper_parameters.optimizer.learning_rate": 0.01,
    }
    keys = words(f"multitask/{model}", options, sizes)

    results = {"local": jobs.local(SCRIPT, *keys), **in_each_mode(jobs, *keys)}

    for mode, result in results.items():  # async takes steps in the order of chance
        assert result["auc_income"] > 0.8, (mode, result)
        assert result["auc_marital"] > 0.8, (mode, result)


def write_impressions(path: Path, *, rows: int, seed: int) -> None:
    """Write impressions of which one id decides the click, and another the purchase."""
    random = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as out:
        for row in range(rows):
            user, item = random.integers(1, 20, 2)
            clicked = int(user % 2)
            bought = int(clicked and item % 2)
            others = [f"150_14:{1000 + each}" for each in random.integers(1, 30, 5)]
            pairs = [f"101:{user}", f"205:{100 + item}", *others]
            out.write(",".join([str(row), str(clicked), str(bought), "0", *pairs]) + "\n")


def test_esmm_learns_clicks_and_purchases_alone_and_in_every_mode(
    jobs: Any, tmp_path: Path
) -> None:
    for name, seed in (("train", 1), ("test", 2)):
        write_impressions(tmp_path / name, rows=900, seed=seed)
    options = {
        "runner.train_data_dir": tmp_path / "train",
        "runner.test_data_dir": tmp_path / "test",
        "runner.train_batch_size": 32,
        "runner.model_save_path": "",
        "runner.epochs": 4,
        "hyper_parameters.optimizer.learning_rate": 0.01,
        "hyper_parameters.ctr_fc_sizes": "[16]",
        "hyper_parameters.cvr_fc_sizes": "[16]",
    }
    keys = words("multitask/esmm", options)

    results = {"local": jobs.local(SCRIPT, *keys), **in_each_mode(jobs, *keys)}

    for mode, result in results.items():
        assert result["auc_ctr"] > 0.9, (mode, result)
        assert result["auc_ctcvr"] > 0.9, (mode, result)


def test_ncf_learns_which_items_users_like_alone_and_in_every_mode(
    jobs: Any, tmp_path: Path
) -> None:
    for name, seed in (("train", 1), ("test", 2)):
        random = np.random.default_rng(seed)
        users, items = random.integers(0, 20, (2, 1200))
        likes = users % 2 == items % 2
        rows = zip(users, items, likes.astype(int), strict=True)
        text = "".join(f"{user},{item},{label}\n" for user, item, label in rows)
        (tmp_path / name).write_text(text)
    options = {
        "runner.train_data_dir": tmp_path / "train",
        "runner.test_data_dir": tmp_path / "test",
        "runner.train_batch_size": 32,
        "runner.model_save_path": "",
        "runner.epochs": 4,
        "hyper_parameters.optimizer.learning_rate": 0.04,
    }
    keys = words("recall/ncf", options)

    results = {"local": jobs.local(SCRIPT, *keys), **in_each_mode(jobs, *keys)}

    scores = {mode: result["auc"] for mode, result in results.items()}
    assert min(scores.values()) > 0.9, scores


def learns(
    jobs: Any,
    model: str,
    options: Options,
    metric: str,
    *,
    above: float,
    in_lockstep: Options | None = None,
) -> None:
    """Train alone and in every mode, on the files train and test of one folder.

    ``in_lockstep`` are other keys for one process and for sync, which equals it.
    """
    keys = words(model, options)
    quick = words(model, options, in_lockstep or {})

    results = {"local": jobs.local(SCRIPT, *quick), **in_each_mode(jobs, *keys, in_sync=quick)}

    scores = {mode: result[metric] for mode, result in results.items()}
    assert min(scores.values()) > above, scores


def write_histories(path: Path, *, rows: int, seed: int) -> None:
    """Write users who take an item if its category is among those of their history."""
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        history = random.integers(0, 20, random.integers(1, 4))
        item = int(random.choice([*history, *random.integers(0, 20, 2)]))
        taken = int(item % 4 in history % 4)
        past, kinds = (" ".join(map(str, part)) for part in (history, history % 4))
        lines.append(f"{past};{kinds};{item};{item % 4};{taken}\n")
    path.write_text("".join(lines))


def test_din_learns_which_items_go_with_a_history_alone_and_in_every_mode(
    jobs: Any, tmp_path: Path
) -> None:
    for name, rows, seed in (("train", 2000, 1), ("test", 600, 2)):
        write_histories(tmp_path / name, rows=rows, seed=seed)
    options = {
        "runner.train_data_dir": tmp_path / "train",
        "runner.test_data_dir": tmp_path / "test",
        "runner.model_save_path": "",
        "runner.epochs": 14,
        "hyper_parameters.optimizer.class": "Adam",
        "hyper_parameters.optimizer.learning_rate": 0.01,
        "hyper_parameters.item_emb_size": 8,
        "hyper_parameters.cat_emb_size": 8,
        "hyper_parameters.max_len": 4,  # one of them is always empty
    }

    # Steps of old values, and halves of deltas, want more of them and a lower rate.
    fresh = {"runner.epochs": 5, "hyper_parameters.optimizer.learning_rate": 0.03}

    learns(jobs, "rank/din", options, "auc", above=0.75, in_lockstep=fresh)


def write_queries(path: Path, *, rows: int, seed: int) -> None:
    """Write queries of one of five subjects, a document of it and two of others.

    A document's trigrams are others than those of a query of its subject.
    """
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        subject, *others = random.permutation(5)[:3]
        texts = []
        for place, about in enumerate((subject, subject, *others)):
            trigrams = np.zeros(60, np.int64)
            first = 6 * about + (30 if place else 0)
            trigrams[first + random.integers(0, 6, 3)] = 1
            trigrams[random.integers(0, 60, 2)] = 1
            texts.append(",".join(map(str, trigrams)))
        lines.append("\t".join(texts) + "\n")
    path.write_text("".join(lines))


def test_dssm_learns_which_documents_go_with_a_query_alone_and_in_every_mode(
    jobs: Any, tmp_path: Path
) -> None:
    for name, rows, seed in (("train", 600, 1), ("test", 300, 2)):
        write_queries(tmp_path / name, rows=rows, seed=seed)
    options = {
        "runner.train_data_dir": tmp_path / "train",
        "runner.test_data_dir": tmp_path / "test",
        "runner.model_save_path": "",
        "runner.epochs": 5,
        "hyper_parameters.optimizer.learning_rate": 0.005,
        "hyper_parameters.trigram_d": 60,
        "hyper_parameters.fc_sizes": "[32, 16]",
        "hyper_parameters.gamma": 5.0,
    }

    learns(jobs, "match/dssm", options, "auc", above=0.9)


def test_mind_recalls_what_users_take_next_alone_and_in_every_mode(
    jobs: Any, tmp_path: Path
) -> None:
    random = np.random.default_rng(1)
    rows, judged = [], []
    for user in range(300):  # each takes items of two of six kinds, of ten items each
        kinds = random.choice(6, 2, replace=False)
        items = 1 + random.choice(kinds, 14) + 6 * random.integers(0, 10, 14)
        if user < 240:
            rows += [f"{user},{item},{time}\n" for time, item in enumerate(items)]
        else:
            past, then = items[:10], items[10:]
            words_of = [f"hist_item:{i}" for i in past] + [f"eval_item:{i}" for i in then]
            judged.append(" ".join([f"user_id:{user}", *words_of]) + "\n")
    random.shuffle(rows)
    (tmp_path / "train").write_text("".join(rows))
    (tmp_path / "test").write_text("".join(judged))
    options = {
        "runner.train_data_dir": tmp_path / "train",
        "runner.test_data_dir": tmp_path / "test",
        "runner.model_save_path": "",
        "runner.train_batch_size": 64,
        "runner.batches_per_epoch": 120,
        "runner.epochs": 2,
        "hyper_parameters.optimizer.learning_rate": 0.01,
        "hyper_parameters.item_count": 61,
        "hyper_parameters.embedding_dim": 16,
        "hyper_parameters.hidden_size": 16,
        "hyper_parameters.neg_samples": 20,
        "hyper_parameters.maxlen": 10,
        "hyper_parameters.top_n": 20,
    }

    learns(jobs, "recall/mind", options, "recall", above=0.7)  # 0.33 by chance


def test_sync_with_shared_batches_equals_one_process(
    jobs: Any, clicks: Options, tmp_path: Path
) -> None:
    uneven = {"runner.train_batch_size": 91, "runner.epochs": 2}  # the last one has 3 rows
    single = jobs.local(SCRIPT, *words("rank/dnn", clicks, SMALL, uneven))
    shared = {"runner.sync_mode": "sync", "runner.split_batches": True}

    both = first(jobs.run(SCRIPT, *words("rank/dnn", clicks, SMALL, uneven, shared)))

    assert both["auc"] == pytest.approx(single["auc"], abs=1e-6)


def test_a_batch_of_fewer_rows_than_workers_is_a_step_of_all(
    jobs: Any, clicks: Options
) -> None:
    keys = {"runner.train_batch_size": 639, "runner.epochs": 3}  # and one row is left
    single = jobs.local(SCRIPT, *words("rank/dnn", clicks, SMALL, keys))
    shared = {"runner.sync_mode": "sync", "runner.split_batches": True}

    both = first(jobs.run(SCRIPT, *words("rank/dnn", clicks, SMALL, keys, shared)))

    assert both["auc"] == pytest.approx(single["auc"], abs=1e-6)


@pytest.mark.parametrize("reader", ["DataLoader", "QueueDataset"])
def test_every_reader_gives_the_same_training(jobs: Any, clicks: Options, reader: str) -> None:
    keys = {"runner.epochs": 1}
    piped = {
        **keys,
        "runner.reader_type": reader,
        "runner.pipe_command": "python pipe_reader.py",
    }
    plain = jobs.local(SCRIPT, *words("rank/dnn", clicks, SMALL, keys))

    other = jobs.local(SCRIPT, *words("rank/dnn", clicks, SMALL, piped))

    assert other["auc"] == pytest.approx(plain["auc"], abs=1e-6)


def test_samples_in_memory_are_shuffled_among_workers_and_learned_from(
    jobs: Any, clicks: Options
) -> None:
    piped = {
        "runner.reader_type": "InmemoryDataset",
        "runner.infer_reader_type": "RecDataset",
        "runner.pipe_command": "python pipe_reader.py",
        "runner.split_file_list": True,
        "runner.sync_mode": "geo",
        "runner.geo_step": 5,
    }

    result = first(jobs.run(SCRIPT, *words("rank/dnn", clicks, SMALL, piped), servers=1))

    assert result["auc"] > 0.7


def test_fewer_files_than_workers_end_the_job(jobs: Any, clicks: Options) -> None:
    train = Path(str(clicks["runner.train_data_dir"]))
    keys = {"runner.split_file_list": True, "runner.train_data_dir": train / "a.txt"}

    ended = jobs.run(SCRIPT, *words("rank/dnn", clicks, SMALL, keys), servers=1)

    assert all(ended.codes.values()), ended.story()
    found = [ended.logs[worker] for worker in ("worker0", "worker1")]
    refused = [log for log in found if "1 files for 2 workers" in log]
    assert refused, ended.story()
    assert "Traceback" not in "".join(refused)
    for late in set(found) - set(refused):  # it learns of the first one's end
        assert "its script ended without fleet.stop_worker()" in late, ended.story()


def test_the_slot_text_of_paddlerec_trains(jobs: Any, tmp_path: Path) -> None:
    folder = read_environment().get("PARAMFLEET_DATA")
    if not folder:
        pytest.skip("PARAMFLEET_DATA names no folder of real data")
    file = Path(folder) / "tiny" / "paddlerec_dnn_slot_80.txt"
    keys = {
        "runner.train_data_dir": file,
        "runner.test_data_dir": file,
        "runner.model_save_path": "",
        "runner.reader_type": "QueueDataset",
        "runner.pipe_command": "python pipe_reader.py",
        "runner.train_batch_size": 2,
        "runner.epochs": 3,
    }

    result = jobs.local(SCRIPT, *words("rank/dnn", keys))

    assert result["auc"] > 0.9


@pytest.mark.parametrize("mode", ["local", "geo", "sync", "async"])
def test_a_saved_epoch_scores_as_it_did(
    jobs: Any, clicks: Options, mode: str, tmp_path: Path
) -> None:
    saved = {"runner.model_save_path": tmp_path / "saved", "runner.epochs": 2}
    keys = words("rank/dnn", clicks, SMALL, saved)
    if mode == "local":
        trained = jobs.local(SCRIPT, *keys)
    else:
        trained = first(jobs.run(SCRIPT, *keys, f"-orunner.sync_mode={mode}", workers=1))

    scored = jobs.local(
        SCRIPT, "infer", *keys[1:], "-orunner.infer_load_path=" + str(tmp_path / "saved")
    )

    assert scored["mode"] == "infer"
    assert scored["epochs"] == 2
    assert scored["auc"] == pytest.approx(trained["auc"], abs=1e-6)


@pytest.mark.parametrize(
    "data",
    [
        {"runner.split_batches": True},
        IN_MEMORY,
    ],
    ids=["shared batches", "shuffled in memory"],
)
def test_workers_go_on_inside_an_epoch_where_a_checkpoint_was_taken(
    jobs: Any, clicks: Options, tmp_path: Path, data: Options
) -> None:
    shared = {**data, "runner.sync_mode": "sync", "runner.epochs": 2}
    step = 13 if "runner.split_batches" in data else 8  # of the first epoch 20, or about 10
    often = f"{{every_steps: {step}, keep: 100, dir: {tmp_path}}}"
    by_step = {"runner.checkpoint_configs": often}
    whole = first(jobs.run(SCRIPT, *words("rank/dnn", clicks, SMALL, shared, by_step)))
    (saved,) = tmp_path.glob(f"*-step-{step}")

    resumed = {"runner.model_init_path": saved}
    ended = jobs.run(SCRIPT, *words("rank/dnn", clicks, SMALL, shared, resumed))

    assert first(ended)["auc"] == pytest.approx(whole["auc"], abs=1e-6)
    assert "position_not_taken" not in ended.story()


def epochs_of(checkpoint: Path) -> set[int]:
    """Return in which epochs workers were."""
    progress = read_progress(checkpoint, read_manifest(checkpoint))
    assert progress is not None
    return {states["runner_batches"]["epoch"] for states in progress.positions.values()}


@pytest.mark.parametrize(
    ("data", "workers"),
    [({"runner.split_batches": True}, 2), (IN_MEMORY, 1)],
    ids=["inside the epoch", "the epoch begins anew"],
)
def test_a_resumed_job_begins_with_the_epoch_of_its_checkpoint(
    jobs: Any, clicks: Options, tmp_path: Path, data: Options, workers: int
) -> None:
    shared = {**data, "runner.sync_mode": "sync", "runner.epochs": 3}
    often = f"{{every_steps: 3, keep: 1000, dir: {tmp_path}}}"
    by_step = {"runner.checkpoint_configs": often}
    whole = first(jobs.run(SCRIPT, *words("rank/dnn", clicks, SMALL, shared, by_step)))
    third = [each for each in tmp_path.glob("0*-step-*") if epochs_of(each) == {2}]
    saved = max(third, key=lambda each: int(each.name.split("-")[-1]))

    resumed = {
        "runner.model_init_path": tmp_path / "is-not-read",
        "runner.model_save_path": tmp_path / "epochs",
    }
    given = words("rank/dnn", clicks, SMALL, shared, resumed)
    again = jobs.run(SCRIPT, *given, workers=workers, PARAMFLEET_WORKER__RESUME_FROM=str(saved))

    result = first(again)
    assert [each.name for each in (tmp_path / "epochs").iterdir()] == ["2"]
    assert ("worker.not_resumed" in again.story()) == (workers != 2)
    if workers == 2:
        assert result["auc"] == pytest.approx(whole["auc"], abs=1e-6)


def test_a_job_that_resumes_behind_its_last_epoch_scores_and_ends(
    jobs: Any, clicks: Options, tmp_path: Path
) -> None:
    keys = {"runner.epochs": 1, "runner.model_save_path": tmp_path}
    given = words("rank/dnn", clicks, SMALL, keys)
    whole = first(jobs.run(SCRIPT, *given, workers=1))

    again = first(
        jobs.run(SCRIPT, *given, workers=1, PARAMFLEET_WORKER__RESUME_FROM=str(tmp_path / "0"))
    )

    assert again["auc"] == pytest.approx(whole["auc"], abs=1e-6)
    assert again["examples_per_s"] == 0


def test_a_profile_says_where_the_time_went(jobs: Any, clicks: Options) -> None:
    keys = {"runner.dataset_debug": True, "runner.epochs": 1}

    profile = jobs.local(SCRIPT, *words("rank/dnn", clicks, SMALL, keys))["profile"]

    assert list(profile) == ["data", "pull", "forward", "backward", "push"]
    assert all(phase["mean_ms"] > 0 for phase in profile.values())
    assert sum(phase["share"] for phase in profile.values()) == pytest.approx(1, abs=0.01)


@pytest.mark.forked
def test_launch_trains_a_model_folder_from_any_folder(clicks: Options, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paramfleet_worker", "launch"]
    command += ["--worker_num=1", "--server_num=1", "--log_dir", str(tmp_path / "log")]
    few = {**clicks, **SMALL, "runner.epochs": 1}
    keys = [f"{key}={value}" for key, value in few.items()]
    config = MODELS / "rank/dnn/config.yaml"

    ended = subprocess.run(
        tied([*command, "-m", str(config), "-o", "runner.sync_mode=geo", *keys]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1])["mode"] == "geo"
