"""The keys of a configuration: PaddleRec's ``runner.*`` and ``hyper_parameters.*``.

Fields are keys; the sentence under each is what ``docs/configuration.md`` says of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from paramfleet.data.parsing.bad_lines import OnBadLine
from paramfleet.runner.config.online_settings import OnlineSettings
from paramfleet_shared.settings.config import SettingError, check_ranges
from paramfleet_shared.values.bounds import MAX_LEARNING_RATE

__all__ = ["CtrParameters", "HyperParameters", "OptimizerSettings", "RunnerSettings"]

_STEPS, _EPOCHS, _THREADS, _MAX_WIDTH, _MAX_LAYERS = 2**31 - 1, 1_000_000, 1024, 1 << 20, 1000

_RUNNER: dict[str, tuple[float, float]] = {
    "train_batch_size": (1, _STEPS),
    "infer_batch_size": (0, _STEPS),
    "pipe_timeout_s": (0.001, 1e7),
    "num_workers": (0, _THREADS),
    "epochs": (1, _EPOCHS),
    "print_interval": (0, _STEPS),
    "seed": (0, 2**63 - 1),
    "thread_num": (1, _THREADS),
    "infer_thread_num": (0, _THREADS),
    "geo_step": (1, _STEPS),
    "device_budget": (0, 2**63 - 1),
    "last_epoch": (-1, _EPOCHS),
    "infer_start_epoch": (0, _EPOCHS),
    "infer_end_epoch": (0, _EPOCHS),
    "auc_num": (0, _EPOCHS),
}

_OPTIMIZER: dict[str, tuple[float, float]] = {
    "learning_rate": (0.0, MAX_LEARNING_RATE),
    "momentum": (0.0, 1.0),
    "reg": (0.0, 1e6),
    "decay_steps": (0, _STEPS),
    "decay_rate": (0.0, 1e6),
}

_CTR: dict[str, tuple[float, float]] = {
    "sparse_inputs_slots": (0, 1_000_000),
    "sparse_feature_number": (0, 2**63 - 1),
    "sparse_feature_dim": (1, _MAX_WIDTH),
    "dense_input_dim": (0, _MAX_WIDTH),
    "distributed_embedding": (0, 1_000_000),
}

ReaderType = Literal[
    "RecDataset", "DataLoader", "QueueDataset", "InmemoryDataset", "InMemoryDataset"
]


_IN_MEMORY = frozenset({"InmemoryDataset", "InMemoryDataset"})
_ONLINE_MODES = frozenset({"sync", "async", "geo"})
_BY_DAYS = " in a training by days"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerSettings(OnlineSettings):
    """How a model is trained: the keys below ``runner``.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    train_data_dir: str = ""
    """Folder of the training files, or one file; all files in it, by name. It may lie on a
    file system of fsspec's, as s3://bucket/train; RecDataset is then given such addresses."""

    train_reader_path: str = "reader"
    """Module of the reader, without .py, in the model's folder or by a path from it."""

    model_path: str = "model"
    """Module of the model, given in the same way as train_reader_path."""

    train_batch_size: int = 512
    """Examples in a step of each worker; with split_batches in sync and gpubox, of all workers
    together."""

    test_data_dir: str = ""
    """Folder of the test files, or one file. The training ends with an evaluation on them;
    infer needs it."""

    infer_reader_path: str = ""
    """Reader of the test files; by default the reader of the training files."""

    infer_batch_size: int = 0
    """Examples in a batch of an evaluation; 0 means train_batch_size."""

    infer_reader_type: ReaderType | None = None
    """reader_type for the test files; by default the same."""

    reader_type: ReaderType = "RecDataset"
    """RecDataset: the reader's class with this name, an iterable of examples. DataLoader: the
    same in torch's DataLoader with num_workers processes. QueueDataset: the output of
    pipe_command as a stream. InmemoryDataset (or InMemoryDataset): the same, loaded once,
    shuffled among the workers (unless they share batches), and shuffled again before each
    epoch."""

    pipe_command: str = "cat"
    """For QueueDataset and InmemoryDataset: command that reads a file on its standard input and
    writes MultiSlot text. It runs in the model's folder. A Python script gets the path of the
    YAML file and of a folder of helpers as its last arguments, as PaddleRec's readers expect.
    If the script isn't found from there, it is looked for from the working folder, then by its
    name in the model's folder."""

    pipe_timeout_s: float = 300.0
    """Seconds that a pipe_command may write nothing while a reader waits for it."""

    on_bad_line: OnBadLine = "raise"
    """For QueueDataset and InmemoryDataset, what happens with a damaged line: raise ends the
    training, skip leaves the line out, quarantine also writes it to quarantine_dir."""

    quarantine_dir: str = "quarantine"
    """Folder for damaged lines and the reasons."""

    dataset_debug: bool = False
    """Measure where each batch's time goes: data, pull, forward, backward, push."""

    split_file_list: bool = False
    """Give each worker its part of the training files. Set it if every machine has all files;
    without it every worker reads all files that it finds."""

    split_batches: bool = False
    """Every worker reads all training files, and the workers share the batches. In sync and
    gpubox each takes its part of every batch of train_batch_size, so that the job equals one
    process with this batch size; in other modes each takes every n-th batch."""

    num_workers: int = 0
    """For DataLoader: number of processes that read; with 0 the training process reads."""

    example_count_method: Literal["example"] = "example"
    """What examples_per_s counts."""

    epochs: int = 1
    """Number of passes over the training files; not used in a training by days."""

    print_interval: int = 100
    """Steps between two lines of progress; 0 prints none."""

    seed: int = 12345
    """Seed of the dense parameters, the first values of rows, and shuffles."""

    use_gpu: bool = False
    """Compute on the worker's CUDA device. Rows stay on the servers and the host; only in
    gpubox the rows of a pass are on the device, too. Without a device this is an error; in
    gpubox a warning, and the CPU computes."""

    use_gloo: bool = True
    """Accepted, without effect: the coordinator synchronizes the workers."""

    use_fleet: bool = True
    """PaddleRec's switch for a job. Here the command decides: launch starts a job, train
    doesn't."""

    thread_num: int = 1
    """Threads that compute; for QueueDataset and InmemoryDataset also threads that read."""

    infer_thread_num: int = 0
    """Threads that read test files; 0 means thread_num."""

    sync_mode: Literal[
        "sync", "async", "geo", "gpubox", "localsgd", "adaptive_localsgd", "diloco"
    ] = "async"
    """Training mode of a job. One process without servers trains the same way with each. In
    gpubox an epoch is a pass: its batches are read first, and its rows are on the device during
    the pass. The last three are LocalSGD's, for models without embeddings."""

    device_budget: int = 0
    """For gpubox: bytes that the rows of a pass and their optimizer states may take; an epoch
    that needs more is split into several passes. 0 means no limit."""

    geo_step: int = 400
    """For geo: steps between two exchanges, once the period has grown. The default is that of
    PaddleRec's guide; accuracy was measured with 20."""

    a_sync_configs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Further keys of the strategy's a_sync_configs, as max_staleness or wire_dtype."""

    localsgd_configs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """For localsgd, adaptive_localsgd and diloco: keys of the strategy, as k_steps."""

    checkpoint_configs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Checkpoints by time, in addition to those of the epochs: every_s, keep and dirname, as in
    the strategy. In gpubox a checkpoint that is due during a pass is written at its end."""

    guard_configs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Checks of steps, as in the strategy: action, loss_max, and others."""

    eviction_configs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Rows to evict, as in the strategy: max_rows, unseen_steps, and others."""

    model_save_path: str = ""
    """Folder for a checkpoint after each epoch, with the epoch's number as its name; by default
    none is saved."""

    model_init_path: str = ""
    """Checkpoint to start from."""

    last_epoch: int = -1
    """Number of the epoch after which model_init_path was saved; the training continues after
    it. For a checkpoint from the middle of an epoch (paramfleet checkpoint) give the number
    before: that epoch continues after the batches that were used."""

    infer_load_path: str = ""
    """For infer: folder of the checkpoints; by default model_save_path."""

    infer_start_epoch: int = 0
    """For infer: number of the first checkpoint to evaluate."""

    infer_end_epoch: int | None = None
    """For infer: number after the last checkpoint to evaluate; by default epochs."""

    use_inference: bool = False
    """Also save, with each checkpoint, a model for inference, in files that load without
    paramfleet."""

    save_inference_feed_varnames: tuple[str, ...] = ()
    """Names of variables of a Paddle program; a torch module has none, so they aren't read."""

    save_inference_fetch_varnames: tuple[str, ...] = ()
    """The same for its outputs."""

    use_auc: bool = True
    """Compute the model's metrics during training; on test files they are always computed."""

    auc_num: int = 1
    """Accepted, without effect: the metrics are those that create_metrics returns."""

    use_visual: bool = False
    """Write loss, metrics and speed for TensorBoard to visual_path."""

    visual_path: str = "visualDL_log"
    """Folder for the TensorBoard files."""

    fs_name: str = ""
    """For QueueDataset and InmemoryDataset: file system for data paths without one, as
    hdfs://host:port or s3://bucket."""

    fs_ugi: str = ""
    """User and password for it, as user,password."""

    @property
    def shares_steps(self) -> bool:
        """Whether the workers of a job take every step together."""
        return self.sync_mode in {"sync", "gpubox"}

    def __post_init__(self) -> None:
        OnlineSettings.__post_init__(self)
        check_ranges(self, _RUNNER)
        if self.split_batches and self.split_file_list:
            rule = "false where split_file_list is true: files or batches are shared, not both"
            raise SettingError(name="split_batches", value=True, rule=rule)
        if self.is_online:
            self._check_online()

    @property
    def is_in_memory(self) -> bool:
        """Whether training files are loaded into memory, by either name of that."""
        return self.reader_type in _IN_MEMORY

    def _check_online(self) -> None:
        for name, is_right, rule in (
            ("reader_type", self.is_in_memory, f"InMemoryDataset{_BY_DAYS}"),
            ("sync_mode", self.sync_mode in _ONLINE_MODES, f"sync, async or geo{_BY_DAYS}"),
            ("split_batches", not self.split_batches, f"false{_BY_DAYS}: samples are shared"),
            ("last_epoch", self.last_epoch == -1, f"left out{_BY_DAYS}: there are no epochs"),
            ("train_data_dir", self.train_data_dir, f"given{_BY_DAYS}: it has their folders"),
            (
                "model_save_path",
                self.model_save_path,
                f"given{_BY_DAYS}: the training continues from there",
            ),
        ):
            if not is_right:
                raise SettingError(name=name, value=getattr(self, name), rule=rule)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSettings:
    """The keys below ``hyper_parameters.optimizer``.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    # "class" is no name for a field: see CLASS_KEY in paramfleet.runner.config.configuration

    name: str = "Adam"
    """Adam, SGD, Momentum, Adagrad, AdamW, FTRL, RowwiseAdagrad, or a class of torch.optim,
    which in geo and in one process may be any."""

    learning_rate: float = 0.001
    """Of every parameter."""

    strategy: str = ""
    """Accepted and not read, as in PaddleRec: runner.sync_mode says how a job trains."""

    momentum: float = 0.9
    """Momentum: its factor."""

    adam_lazy_mode: bool = True
    """Accepted: rows that no batch touches are always left alone."""

    reg: float = 0.0
    """Weight decay of the dense parameters."""

    decay_steps: int = 0
    """Steps between two decays of the learning rate; 0 keeps it."""

    decay_rate: float = 1.0
    """Factor of the learning rate every decay_steps steps."""

    def __post_init__(self) -> None:
        check_ranges(self, _OPTIMIZER)
        if not self.adam_lazy_mode:
            rule = "true: rows that no batch touches are always left alone"
            raise SettingError(name="adam_lazy_mode", value=False, rule=rule)


@dataclass(frozen=True, kw_only=True, slots=True)
class HyperParameters:
    """The keys below ``hyper_parameters`` that every model has."""

    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    """What learns, and how fast."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CtrParameters(HyperParameters):
    """Those of models of clicks, with PaddleRec's benchmark as defaults."""

    sparse_inputs_slots: int = 27
    """Slots with ids, the label counted as one."""

    sparse_feature_number: int = 1_000_001
    """What ids are hashed to. A table grows as it needs; this is no limit of it."""

    sparse_feature_dim: int = 9
    """Floats in the vector of an id."""

    dense_input_dim: int = 13
    """Numbers of an example."""

    fc_sizes: tuple[int, ...] = (512, 256, 128, 32)
    """Width of each hidden layer."""

    distributed_embedding: int = 0
    """Accepted: embeddings of fleet.nn are always on the servers of a job."""

    def __post_init__(self) -> None:
        check_ranges(self, _CTR)
        widths: Any = self.fc_sizes
        is_list = isinstance(widths, tuple) and len(widths) <= _MAX_LAYERS
        if not is_list or not all(type(n) is int and 1 <= n <= _MAX_WIDTH for n in widths):
            rule = f"up to {_MAX_LAYERS} whole numbers from 1 to {_MAX_WIDTH}"
            raise SettingError(name="fc_sizes", value=widths, rule=rule)
