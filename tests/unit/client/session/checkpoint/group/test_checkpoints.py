"""Checkpoints of a collective job of one worker, in this process."""

import json
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.distributed.tensor import DTensor

from paramfleet.config.errors import CallOrderError
from paramfleet.config.roles import PaddleCloudRoleMaker, RoleMaker
from paramfleet.config.strategy import DistributedStrategy
from paramfleet.session.checkpoint.group.part import StateNotSavedError
from paramfleet.session.checkpoint.group.putting import OtherTrainingError
from paramfleet.session.checkpoint.saving import KeepError, Saving
from paramfleet.session.session import Session
from paramfleet_shared.checkpoint.manifest import (
    CheckpointDamagedError,
    CheckpointWriteError,
    ManifestError,
)
from paramfleet_shared.files.folders import FolderNameError


class Training:
    """One worker that trains."""

    def __init__(self, session: Session, width: int = 4, adam: bool = True, **flags: Any):
        self.session, self.saving = session, Saving(session)
        torch.manual_seed(3)
        layers = [torch.nn.Linear(width, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.4)]
        module = torch.nn.Sequential(*layers, torch.nn.Linear(3, 1))
        strategy = DistributedStrategy()
        for name, value in flags.items():
            setattr(strategy, name, value)
        self.model = session.distributed_model(module)
        kind: Any = torch.optim.AdamW if adam else torch.optim.SGD
        options = {"lr": 0.1} if adam else {"lr": 0.1, "momentum": 0.9}
        inner = kind(self.model.parameters(), **options)
        self.optimizer: Any = session.distributed_optimizer(inner, strategy)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)
        session.register_for_checkpointing(schedule=self.schedule)
        self.width = width

    def steps(self, count: int) -> None:
        for _ in range(count):
            scale = random.random() + float(np.random.rand())
            inputs = torch.randn(8, self.width) * scale
            self.optimizer.minimize(self.model(inputs).square().mean() + 1e-3)
            self.schedule.step()

    def values(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


@contextmanager
def trained(**options: Any) -> Iterator[Training]:
    session = Session()
    session.init(PaddleCloudRoleMaker(True, environment={}), is_collective=True)
    try:
        yield Training(session, **options)
    finally:
        distributed.destroy_process_group()


LOCAL = {"localsgd": True, "localsgd_configs": {"k_steps": 3, "begin_step": 1}}
DILOCO = {
    "diloco": True,
    "diloco_configs": {"k_steps": 4, "fragments": 2, "overlap_steps": 1, "wire_dtype": "int8"},
}
KINDS: list[dict[str, Any]] = [
    {},
    {"adam": False},
    {"lamb": True},
    {"adam": False, "dgc": True, "dgc_configs": {"rampup_begin_step": 2}},
    {"adam": False, "amp": True, "amp_configs": {"dtype": "float16"}},
    {"sharding": True, "sharding_configs": {"stage": 3}},
    {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 1}},
    LOCAL,
    {"adaptive_localsgd": True, "adaptive_localsgd_configs": {"init_k_steps": 2}},
    DILOCO,
]


@pytest.mark.parametrize("options", KINDS, ids=lambda each: "-".join(each) or "plain")
def test_a_job_goes_on_to_the_bit_where_it_was_saved(
    options: dict[str, Any], tmp_path: Path
) -> None:
    with trained(**options) as training:
        training.steps(5)
        cut = training.saving.save_persistables(tmp_path / "saved")
        training.steps(6)
        expected, rate = training.values(), training.schedule.get_last_lr()
    assert cut is not None
    assert cut.consistent
    random.seed(1), np.random.seed(1), torch.manual_seed(1)

    with trained(**options) as training:
        training.steps(1)
        assert training.saving.load_model(tmp_path / "saved") == []
        assert training.optimizer.num_steps == 5
        training.steps(6)

        for name, value in training.values().items():
            assert torch.equal(_whole(value), _whole(expected[name])), name
        assert training.schedule.get_last_lr() == rate


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def test_the_newest_are_kept_and_found(tmp_path: Path) -> None:
    with trained() as training:
        assert training.saving.newest_checkpoint(tmp_path / "kept") is None
        for _ in range(3):
            training.steps(2)
            training.saving.save_persistables(tmp_path / "kept", keep=2)

        newest = training.saving.newest_checkpoint(tmp_path / "kept")

        assert newest == tmp_path / "kept" / "000003-step-6"
        names = sorted(path.name for path in (tmp_path / "kept").iterdir())
        assert names == ["000002-step-4", "000003-step-6", "latest"]
        training.saving.load_model(tmp_path / "kept" / "latest")
        assert training.optimizer.num_steps == 6


def test_a_checkpoint_of_the_same_name_is_replaced_and_strangers_stay(tmp_path: Path) -> None:
    with trained() as training:
        training.saving.save_persistables(tmp_path / "saved")
        training.steps(1)
        training.saving.save_persistables(tmp_path / "saved")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["saved"]
        (tmp_path / "saved" / "notes.txt").write_text("mine", encoding="utf-8")

        with pytest.raises(FolderNameError, match=r"notes\.txt"):
            training.saving.save_persistables(tmp_path / "saved")


@pytest.mark.parametrize("keep", [0, -1, True, 1.5])
def test_a_number_to_keep_that_is_none_is_refused(keep: Any, tmp_path: Path) -> None:
    with trained() as training, pytest.raises(KeepError, match="at least 1"):
        training.saving.save_persistables(tmp_path / "saved", keep=keep)


def test_before_there_is_anything_to_save_it_is_refused(tmp_path: Path) -> None:
    session = Session()
    session.init(PaddleCloudRoleMaker(True, environment={}), is_collective=True)
    try:
        for function in (Saving(session).save_persistables, Saving(session).load_model):
            with pytest.raises(CallOrderError, match="distributed_model"):
                function(tmp_path / "saved")
    finally:
        distributed.destroy_process_group()


def test_after_the_end_nothing_is_saved(tmp_path: Path) -> None:
    session = Session()
    session.init(PaddleCloudRoleMaker(True, environment={}), is_collective=True)
    training = Training(session)
    session.stop_worker()
    for function in (training.saving.save_persistables, training.saving.load_model):
        with pytest.raises(CallOrderError, match=r"before fleet\.stop_worker"):
            function(tmp_path / "saved")


def test_between_batches_that_are_merged_nothing_is_saved(tmp_path: Path) -> None:
    configs = {"k_steps": 2}
    with trained(gradient_merge=True, gradient_merge_configs=configs) as training:
        training.steps(1)
        with pytest.raises(CallOrderError, match="every 2 batches"):
            training.saving.save_persistables(tmp_path / "saved")
        training.steps(1)
        training.saving.save_persistables(tmp_path / "saved")


def test_a_state_that_is_not_plain_is_refused_by_name(tmp_path: Path) -> None:
    with trained() as training:
        training.steps(1)
        first = training.optimizer.inner.param_groups[0]
        first["owner"] = object()
        with pytest.raises(StateNotSavedError, match=r"'owner'.* is a object"):
            training.saving.save_persistables(tmp_path / "saved")
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"width": 5}, "list of parameters"),
        ({"adam": False}, "SGD"),
        (LOCAL, "localsgd"),
        ({"lamb": True}, "lamb"),
    ],
    ids=["width", "optimizer", "strategy", "feature"],
)
def test_another_training_is_refused_and_unchanged(
    options: dict[str, Any], what: str, tmp_path: Path
) -> None:
    with trained() as training:
        training.steps(1)
        training.saving.save_persistables(tmp_path / "saved")
    with trained(**options) as training:
        before = training.values()
        with pytest.raises(OtherTrainingError, match=what):
            training.saving.load_model(tmp_path / "saved")
        assert all(torch.equal(v, before[n]) for n, v in training.values().items())
        training.steps(1)


def _cut_short(folder: Path) -> None:
    path = folder / "worker0.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def _other_bit(folder: Path) -> None:
    path = folder / "worker0.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _gone(folder: Path) -> None:
    (folder / "worker0.safetensors").unlink()


def _edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "manifest.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        change(document)
        path.write_text(json.dumps(document), encoding="utf-8")

    return edit


def _chunk(document: dict[str, Any]) -> list[Any]:
    found: list[Any] = document["tensors"]["model/0.weight"]["chunks"]
    return found


def _half(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:200])


def _pickle(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")


@pytest.mark.parametrize(
    ("damage", "error", "match"),
    [
        (_cut_short, CheckpointDamagedError, r"worker0\.safetensors: its length is another"),
        (_other_bit, CheckpointDamagedError, r"worker0\.safetensors: its SHA-256"),
        (_gone, CheckpointDamagedError, r"worker0\.safetensors.*use another checkpoint"),
        (_half, ManifestError, r"manifest\.json: can't be read.*another checkpoint"),
        (_pickle, ManifestError, r"manifest\.json: can't be read"),
        (_edited(lambda d: d.update(format="paramfleet-checkpoint")), ManifestError, "servers"),
        (_edited(lambda d: d.update(version=2)), ManifestError, "version 1"),
        (_edited(lambda d: d.pop("workers")), ManifestError, "malformed"),
        (_edited(lambda d: d.update(workers=[])), ManifestError, "names no file"),
        (_edited(lambda d: d.update(steps=-1)), ManifestError, "steps = -1"),
        (_edited(lambda d: d.update(common=7)), ManifestError, "malformed"),
        (_edited(lambda d: d["workers"][0].update(file="../x")), ManifestError, "leads out"),
        (_edited(lambda d: d["workers"][0]["extra"].clear()), ManifestError, "malformed"),
        (_edited(lambda d: _chunk(d).clear()), ManifestError, "each of its numbers once"),
        (_edited(lambda d: _chunk(d).append(_chunk(d)[0])), ManifestError, "once"),
        (_edited(lambda d: _chunk(d)[0].__setitem__(2, 4)), ManifestError, "isn't there"),
        (_edited(lambda d: _chunk(d)[0].__setitem__(0, [1, 0])), ManifestError, "once"),
        (_edited(lambda d: _chunk(d)[0].__setitem__(0, [9**9, 1])), ManifestError, "dimension"),
        (
            _edited(lambda d: _chunk(d)[0].__setitem__(3, "x")),
            CheckpointDamagedError,
            "missing",
        ),
        (
            _edited(lambda d: d["tensors"].pop("model/0.weight")),
            OtherTrainingError,
            "'0.weight' of the model is nothing",
        ),
        (
            _edited(lambda d: d["tensors"]["model/0.weight"].update(dtype="load")),
            OtherTrainingError,
            "is load",
        ),
        (
            _edited(lambda d: d["tensors"]["optimizer/0/exp_avg"].update(dtype="save")),
            ManifestError,
            "malformed",
        ),
    ],
)
def test_a_damaged_or_hostile_checkpoint_is_an_error_that_names_the_file(
    damage: Callable[[Path], None], error: type[Exception], match: str, tmp_path: Path
) -> None:
    with trained() as training:
        training.steps(1)
        training.saving.save_persistables(tmp_path / "saved")
        damage(tmp_path / "saved")
        training.steps(1)
        before = training.values()

        with pytest.raises(error, match=match) as raised:
            training.saving.load_model(tmp_path / "saved")

        assert str(tmp_path / "saved") in str(raised.value)
        assert all(torch.equal(v, before[n]) for n, v in training.values().items())
        training.steps(1)


def test_random_states_of_another_kind_are_refused(tmp_path: Path) -> None:
    with trained() as training:
        training.saving.save_persistables(tmp_path / "saved")
        generator = {"dict": {"python": 1, "numpy": 2, "torch": 3}}
        change: Callable[[dict[str, Any]], object] = lambda d: d["workers"][0]["extra"].update(  # noqa: E731
            random=generator
        )
        _edited(change)(tmp_path / "saved")

        with pytest.raises(ManifestError, match="random generators don't fit"):
            training.saving.load_model(tmp_path / "saved")


def test_a_checkpoint_of_one_process_without_a_job_is_refused_by_name(tmp_path: Path) -> None:
    alone = Session()
    alone.init(RoleMaker(distributed=False))
    model = alone.distributed_model(torch.nn.Linear(2, 1))
    alone.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    saving = Saving(alone)
    for _ in range(3):
        saving.save_persistables(tmp_path / "kept", keep=2)
    assert saving.newest_checkpoint(tmp_path / "kept") == tmp_path / "kept" / "000003-step-0"
    assert alone.restart_count() == 0
    with trained() as training:
        with pytest.raises(ManifestError, match="is that of a job with servers"):
            training.saving.load_model(tmp_path / "kept" / "latest")
        training.saving.save_persistables(tmp_path / "group")

    with pytest.raises(ManifestError, match="is that of a job without servers"):
        saving.load_model(tmp_path / "group")


def test_a_write_that_fails_leaves_the_former_checkpoint(tmp_path: Path) -> None:
    with trained() as training:
        training.saving.save_persistables(tmp_path / "saved")
        training.steps(1)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with pytest.raises(CheckpointWriteError, match=str(tmp_path / "saved")):
                training.saving.save_persistables(tmp_path / "saved")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert [path.name for path in tmp_path.iterdir()] == ["saved"]
        training.saving.load_model(tmp_path / "saved")
        assert training.optimizer.num_steps == 0


def test_a_folder_without_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    with trained() as training, pytest.raises(ManifestError, match="is missing"):
        training.saving.load_model(tmp_path / "none")
