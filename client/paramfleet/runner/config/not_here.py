"""PaddleRec's keys that ask for something that isn't here, each with what to do instead.

And those of its files that no code reads, its own neither.
"""

__all__ = ["NOT_HERE", "NOT_READ", "SYNC_MODES_NOT_HERE"]

_DUMP = "dumping is not available: leave it out"
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
    "parse_ins_id": "ids of instances are not available: leave it and them out",
    "parse_content": "contents of instances are not available: leave it and them out",
    "warmup_model_path": "use model_init_path",
    "use_save_data": "saving what was read is not available: leave it out",
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
)  # fmt: skip

NOT_READ: frozenset[str] = frozenset({
    "runner.batch_size", "runner.candidate_size", "runner.data_dir", "runner.is_train",
    "runner.model_mode", "runner.need_prune", "runner.runner_result_dump_path",
    "runner.shots_shuffle_list", "runner.test_batch_size", "runner.test_thread_num",
    "hyper_parameters.base_optimizer.class", "hyper_parameters.base_optimizer.strategy",
    "hyper_parameters.distributed_embedding", "hyper_parameters.gate_num",
    "hyper_parameters.id_slot", "hyper_parameters.imgsize", "hyper_parameters.k_query",
    "hyper_parameters.k_spt", "hyper_parameters.l2_weight",
    "hyper_parameters.meta_optimizer.class", "hyper_parameters.meta_optimizer.strategy",
    "hyper_parameters.mode", "hyper_parameters.n_col", "hyper_parameters.n_way",
    "hyper_parameters.neg_num", "hyper_parameters.neg_sample_type",
    "hyper_parameters.num_devices", "hyper_parameters.num_emb_part",
    "hyper_parameters.optimizer.lazy_mode", "hyper_parameters.preprocess_cmd",
    "hyper_parameters.sample_workers", "hyper_parameters.walk_len",
    "hyper_parameters.win_size", "hyper_parameters.x_bert_embed__size",
})  # fmt: skip
"""Each is left out with a warning, unless the model or a module of its folder reads it."""
