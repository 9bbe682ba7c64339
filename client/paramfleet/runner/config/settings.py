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
    """Module of the model, given as train_reader_path is."""

    train_batch_size: int = 512
    """Examples of a step, of each worker; with split_batches in sync and gpubox those of all
    workers together."""

    test_data_dir: str = ""
    """Folder of the test files, or one file. Training ends with their score; infer needs it."""

    infer_reader_path: str = ""
    """The reader of the test files; empty is that of the training."""

    infer_batch_size: int = 0
    """Examples scored at once; 0 is train_batch_size."""

    infer_reader_type: ReaderType | None = None
    """As reader_type, for the test files; empty is the same."""

    reader_type: ReaderType = "RecDataset"
    """RecDataset: the reader's class of that name, an iterable of samples. DataLoader: the
    same in torch's DataLoader with num_workers processes. QueueDataset: pipe_command's
    output as it comes. InmemoryDataset, or InMemoryDataset: the same, loaded once, shuffled
    among the workers (unless they share batches), and shuffled again before each epoch."""

    pipe_command: str = "cat"
    """QueueDataset and InmemoryDataset: reads a file on its standard input and writes
    MultiSlot text. Runs in the model's folder; a Python script gets the path of the YAML
    and of a folder of helpers as its last arguments, as PaddleRec's readers expect. A script
    that isn't found from there is looked for from the working folder, then by its own name in
    the model's folder."""

    pipe_timeout_s: float = 300.0
    """Seconds a pipe_command may say nothing while a reader waits for it."""

    on_bad_line: OnBadLine = "raise"
    """QueueDataset and InmemoryDataset: raise ends the training at a line of text that is no
    sample, skip leaves it out, quarantine keeps it with its reason."""

    quarantine_dir: str = "quarantine"
    """Folder of the lines that on_bad_line keeps."""

    dataset_debug: bool = False
    """Measure where each batch's time goes: data, pull, forward, backward, push."""

    split_file_list: bool = False
    """Give each worker its part of the training files. Set it where every machine has all
    of them; without it every worker reads all that it finds."""

    split_batches: bool = False
    """Every worker reads all training files, and they share the batches: in sync and gpubox
    each takes its part of every batch of train_batch_size, so that the job equals one process
    of that size; else every n-th batch, whole."""

    num_workers: int = 0
    """DataLoader: processes that read; 0 reads in the training process."""

    example_count_method: Literal["example"] = "example"
    """What examples_per_s counts."""

    epochs: int = 1
    """Passes over the training files; not read in a training by days."""

    print_interval: int = 100
    """Steps between two lines of progress; 0 is silence."""

    seed: int = 12345
    """Seeds the dense parameters, the first values of rows, and shuffles."""

    use_gpu: bool = False
    """Compute on the worker's CUDA device. Rows stay where they are, but in gpubox, whose
    passes have them there, too. Without such a device it is an error; in gpubox a warning, and
    the CPU computes."""

    use_gloo: bool = True
    """Accepted: workers meet at the coordinator."""

    use_fleet: bool = True
    """PaddleRec's word for a job. Whether there is one is decided by the command: launch or
    train."""

    thread_num: int = 1
    """Threads that compute; for QueueDataset and InmemoryDataset also threads that read."""

    infer_thread_num: int = 0
    """Threads that read test files; 0 is thread_num."""

    sync_mode: Literal[
        "sync", "async", "geo", "gpubox", "localsgd", "adaptive_localsgd", "diloco"
    ] = "async"
    """How a job trains. One process without servers trains the same way in all of them. gpubox:
    an epoch is a pass, whose batches are read first, and its rows are on the device while it is
    trained. The last three are LocalSGD's, for models without embeddings."""

    device_budget: int = 0
    """gpubox: bytes that the rows of a pass with their optimizer states may take; an epoch that
    needs more is split into several passes. 0 is no limit."""

    geo_step: int = 400
    """geo: steps between two exchanges, once the period is grown. The default is that of
    PaddleRec's guide; accuracy was measured with 20."""

    a_sync_configs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """More keys of the strategy, as max_staleness or wire_dtype."""

    localsgd_configs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """localsgd, adaptive_localsgd and diloco: the keys of the strategy's, as k_steps."""

    checkpoint_configs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Checkpoints by time, beside those of the epochs: every_s, keep and dirname, as the
    strategy's. In gpubox one that is due during a pass is written at its end."""

    guard_configs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Steps out of range, as the strategy's: action, loss_max, and others."""

    eviction_configs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Rows that go, as the strategy's: max_rows, unseen_steps, and others."""

    model_save_path: str = ""
    """Folder that gets a checkpoint after each epoch, named by its number; empty saves none."""

    model_init_path: str = ""
    """Checkpoint to start from."""

    last_epoch: int = -1
    """Number of the epoch after which model_init_path was saved; training goes on behind it.
    A checkpoint of the middle of an epoch (paramfleet checkpoint) takes the number before: its
    epoch goes on behind the batches that were used."""

    infer_load_path: str = ""
    """infer: folder of the checkpoints; empty is model_save_path."""

    infer_start_epoch: int = 0
    """infer: number of the first checkpoint to score."""

    infer_end_epoch: int | None = None
    """infer: number after the last checkpoint to score; empty is epochs."""

    use_inference: bool = False
    """Save beside each checkpoint what inference needs, in files that load without
    paramfleet."""

    save_inference_feed_varnames: tuple[str, ...] = ()
    """Names of variables of a Paddle program; a torch module has none, so they aren't read."""

    save_inference_fetch_varnames: tuple[str, ...] = ()
    """The same of its outputs."""

    use_auc: bool = True
    """Compute the model's metrics while training; they are always computed on test files."""

    auc_num: int = 1
    """Accepted: a model has the metrics that its create_metrics returns."""

    use_visual: bool = False
    """Write loss, metrics and speed for TensorBoard, below visual_path."""

    visual_path: str = "visualDL_log"
    """Folder of the TensorBoard files."""

    fs_name: str = ""
    """File system of paths of data that name none, as hdfs://host:port or s3://bucket, for
    QueueDataset and InmemoryDataset."""

    fs_ugi: str = ""
    """User and password there, as user,password."""

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
                f"given{_BY_DAYS}: it goes on from there",
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
