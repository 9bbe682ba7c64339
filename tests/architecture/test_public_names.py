"""What training code may import: a name is added or taken away on purpose only."""

import paramfleet as fleet
import paramfleet.data
import paramfleet.nn
import paramfleet.serving
import paramfleet.text

LIFE = ["init", "init_server", "run_server", "init_worker"]
LIFE += ["average_buffers", "finish_training", "stop_worker", "leave"]
PLACE = [
    "Role",
    "PaddleCloudRoleMaker",
    "UserDefinedRoleMaker",
    "is_worker",
    "is_server",
    "is_first_worker",
    "worker_index",
    "worker_num",
    "worker_endpoints",
    "server_index",
    "server_num",
    "server_endpoints",
    "barrier_worker",
    "restart_count",
]
TRAINING = [
    "DistributedStrategy",
    "DistributedOptimizer",
    "distributed_model",
    "distributed_optimizer",
    "ema",
    "clip_grad_norm_",
    "prefetch",
    "prefetch_rows",
    "device_pass",
    "PSGPU",
    "remove_rows",
    "set_date",
    "shrink",
    "report",
    "job_progress",
    "should_stop",
]
READERS = ["MultiSlotDataGenerator", "MultiSlotStringDataGenerator"]
SAVING = [
    "register_for_checkpointing",
    "save_persistables",
    "load_model",
    "save_checkpoint",
    "load_checkpoint",
    "newest_checkpoint",
    "load_rows",
    "save_inference_model",
    "resumed_from",
]
MODULES = ["data", "metrics", "nn", "optim", "serving", "text", "util"]


def test_the_public_names_are_these() -> None:
    assert fleet.__all__ == [*LIFE, *PLACE, *TRAINING, *SAVING, *READERS, *MODULES]
    assert all(getattr(fleet, name) is not None for name in fleet.__all__)


def test_the_public_modules_are_these() -> None:
    assert sorted(paramfleet.nn.__all__) == [
        "AccessorOptionError",
        "CountFilterEntry",
        "CtrAccessor",
        "Embedding",
        "EmbeddingBag",
        "EmbeddingOptionError",
        "EntryOptionError",
        "IdError",
        "ProbabilityEntry",
        "SkipGramRateError",
        "SparseRule",
        "constant",
        "continuous_value_model",
        "normal",
        "skip_gram_loss",
        "uniform",
    ]


def test_the_public_names_of_data_are_these() -> None:
    assert sorted(paramfleet.data.__all__) == [
        "Batch",
        "DistributedSampler",
        "InMemoryDataset",
        "MultiSlotDataGenerator",
        "MultiSlotStringDataGenerator",
        "QueueDataset",
        "Slot",
        "SlotValues",
        "split_files",
    ]
    assert all(getattr(paramfleet.data, name).__doc__ for name in paramfleet.data.__all__)


def test_the_public_names_of_serving_are_these() -> None:
    assert sorted(paramfleet.serving.__all__) == [
        "Client",
        "DenseParameters",
        "ExportDamagedError",
        "ExportError",
        "ExportMismatchError",
        "FoundRows",
        "LookupIdsError",
        "RemoteEmbedding",
        "RemoteEmbeddingBag",
        "RemoteOptionError",
        "Rows",
        "ServedVersion",
        "ServerAnswerError",
        "ServerRefusedError",
        "ServerUnreachableError",
        "UnknownRowError",
        "load",
        "refresh",
        "tables",
    ]
    assert all(getattr(paramfleet.serving, name).__doc__ for name in paramfleet.serving.__all__)


def test_the_public_names_of_text_are_these() -> None:
    assert sorted(paramfleet.text.__all__) == [
        "Pair",
        "Question",
        "SkipGramBatch",
        "SkipGramSettings",
        "SkipGramText",
        "Vocabulary",
        "VocabularyError",
        "WordVectors",
        "read_pairs",
        "read_questions",
    ]
    assert all(getattr(paramfleet.text, name).__doc__ for name in paramfleet.text.__all__)


def test_public_functions_say_what_they_do() -> None:
    silent = [name for name in fleet.__all__ if not getattr(fleet, name).__doc__]

    assert not silent


def test_dir_shows_them_all_and_nothing_else() -> None:
    shown = {name for name in dir(fleet) if not name.startswith("__")}

    assert shown == set(fleet.__all__)
    assert {"__all__", "__doc__", "__file__"} <= set(dir(fleet))
