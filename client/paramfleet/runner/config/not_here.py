"""PaddleRec's keys that ask for something that isn't here, each with what to do instead."""

__all__ = ["NOT_HERE", "SYNC_MODES_NOT_HERE"]

_DUMP = "dumping is not available yet"
_DEVICE = "there are CPU and CUDA: use_gpu"

SYNC_MODES_NOT_HERE = {
    "heter": "heter stages don't exist here; use sync, async, geo or gpubox",
}

NOT_HERE: dict[str, str] = {
    "use_xpu": _DEVICE,
    "use_npu": _DEVICE,
    "with_coordinator": "the coordinator is always there; federated mode isn't",
    "local_sparse": "every sparse table is on the servers",
    "remote_sparse": "every sparse table is on the servers; leave it out",
    "batch_generator": "a reader yields samples; RecDataset makes the batches",
    "user_define_reader": "write a reader with a class RecDataset",
    "parse_ins_id": "ids of instances are not available yet",
    "parse_content": "contents of instances are not available yet",
    "warmup_model_path": "use model_init_path",
    "use_save_data": "saving what was read is not available yet",
    "inference": "readers would leave out the labels; use_inference saves what inference needs",
    "fs_client": "use fs_name and fs_ugi",
    "init_model_path": "use model_init_path",
    "use_out_vec": "use paramfleet export",
    "out_vec_path": "use paramfleet export",
    "emb_weight_name": "use paramfleet export",
} | dict.fromkeys(
    (
        "need_dump", "dump_fields", "dump_param", "dump_fields_path", "need_train_dump",
        "need_infer_dump",
    ),
    _DUMP,
) | dict.fromkeys(
    ("candidate_size", "shots_shuffle_list", "model_mode"),
    "nothing reads it here: leave it out",
)  # fmt: skip
