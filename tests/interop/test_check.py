"""Files of other systems, in the variety that people have, pass the checks at their own size."""

from pathlib import Path
from typing import Any

import pytest

from setpoint.config.files.write import write_toml
from setpoint.interop.dialect import read_foreign, recognize
from setpoint.plan.preflight import preflight

from .converting import job_of

LLAMA = {"dim": 512, "n_layers": 8, "n_heads": 8, "n_kv_heads": 4, "vocab_size": 32_000,
         "max_seq_len": 512}  # fmt: skip
EXPERTS = {"num_experts": 8, "moe_top_k": 2}
LOOP = {"batch_size": 4, "seq_len": 512, "max_steps": 200, "grad_accum_steps": 2}
HUB: dict[str, Any] = {"hf_dataset_name": "a/b", "hf_streaming": True, "tokenizer_path": "gpt2"}
MIXED: dict[str, Any] = {
    "datasets": [{"name": "web", "path": "web", "weight": 0.7}, {"name": "code", "path": "code",
                                                                "weight": 0.3}],
    "phases": [{"start_step": 100, "dataset_weights": {"code": 0.8}, "lr_scale": 0.5}],
    "mix_temperature": 2.0,
}  # fmt: skip
KEMPNER: list[tuple[int, dict[str, Any]]] = [
    (8, {"distributed": {"tp": 2, "pp": 2, "dp_shard": 2}, "data": {"dataset_path": "x"}}),
    (8, {"model": EXPERTS, "distributed": {"ep": 2, "dp_shard": 4}}),
    (2, {"model": {**EXPERTS, "moe_router": "sigmoid_topk", "moe_sequence_aux_loss_weight": 0.1,
                   "moe_bias_schedule": "cosine_decay", "moe_shared_experts": 1}}),
    (2, {"optimizer": {"name": "muon", "lr": 3e-3}, "train": {"z_loss_weight": 1e-4}}),
    (4, {"train": {"mixed_precision": "fp8", "activation_checkpointing": "full"}}),
    (2, {"data": MIXED, "scheduler": {"name": "wsd", "stable_steps": 100, "warmup_steps": 10}}),
    (2, {"data": {**HUB, "pack_sequences": True}, "eval": {
        "enabled": True, "hf_dataset_name": "a/c", "steps": 4}}),
    (2, {"metrics": {"enable_wandb": True, "enable_tensorboard": True}, "profiling": {
        "enable": True}, "checkpoint": {"async_mode": "async", "load_path": "runs/old"}}),
    (1, {"data": {"num_workers": 0, "pin_memory": False}, "optimizer": {
        "name": "schedule_free_adamw", "schedule_free_warmup_steps": 20}, "scheduler": {
            "name": "none"}}),
]  # fmt: skip
ROWS = {"datasets": [{"path": "dummy", "max_seq_len": 500}], "sample_packing_sequence_len": 1024}
XORL: list[tuple[int, dict[str, Any]]] = [
    (8, {"train": {"ulysses_parallel_size": 2, "ringattn_parallel_size": 2,
                   "data_parallel_shard_size": 2, "data_parallel_replicate_size": 1}}),
    (8, {"train": {"pipeline_parallel_size": 2, "pipeline_parallel_virtual_stages": 2,
                   "pipeline_parallel_schedule": "Interleaved1F1B",
                   "gradient_accumulation_steps": 4}}),
    (4, {"train": {"optimizer": "muon", "muon_lr": 1e-3, "enable_compile": True}}),
    (4, {"lora": {"enable_lora": True, "lora_rank": 8, "merge_lora_interval": 10}}),
    (2, {"lora": {"enable_qlora": True, "quant_format": "nf4", "enable_aqn": True}}),
    (2, {"train": {"use_wandb": True, "enable_profiling": True, "save_steps": 10,
                   "load_checkpoint_path": "runs/old"},
         "data": {"dataloader_num_workers": 0, "dataloader_pin_memory": False,
                  "sample_packing_method": "multipack"}}),
    (2, {"train": {"enable_activation_offload": True, "recompute_modules": ["self_attn"],
                   "optimizer": "anyprecision_adamw", "load_weights_mode": "grouped"}}),
    (2, {"train": {"moe_checkpoint_method": "moe_act"}}),
]  # fmt: skip
TITAN: list[tuple[int, dict[str, Any]]] = [
    (8, {"parallelism": {"tensor_parallel_degree": 2, "context_parallel_degree": 2}}),
    (8, {"parallelism": {"pipeline_parallel_degree": 2, "data_parallel_replicate_degree": 2},
         "comm": {"train_timeout_seconds": 50}}),
    (2, {"model": {"converters": ["float8"]}, "compile": {"enable": True},
         "float8": {"enable_fsdp_float8_all_gather": True, "filter_fqns": ["output"]}}),
    (2, {"validation": {"enabled": True, "steps": 5, "freq": 10}, "checkpoint": {
        "enable_checkpoint": True, "async_mode": "async", "export_dtype": "bfloat16",
        "enable_first_step_checkpoint": True}, "metrics": {"enable_tensorboard": True}}),
    (2, {"optimizer": {"name": "Adam", "weight_decay": 0.1}}),
    (2, {"optimizer": {"implementation": "fused_opt_states_bf16"}}),
    (2, {"optimizer": {"name": "Adam", "implementation": "fused_opt_states_bf16"}}),
    (4, {"training": {"enable_cpu_offload": True, "mixed_precision_reduce": "bfloat16"},
         "lr_scheduler": {"decay_ratio": 0.2, "decay_type": "sqrt", "min_lr_factor": 0.1}}),
]  # fmt: skip
DANLING: list[tuple[int, dict[str, Any]]] = [
    (8, {"stack": "parallel", "parallel": {"axes": {"shard": 2, "tensor": 2, "context": 2}},
         "fsdp": {"enabled": True, "reshard_after_forward": False}}),
    (4, {"stack": "parallel", "parallel": {"axes": {"shard": -1, "pipeline": 2},
                                           "pipeline_microbatch_size": 2}}),
    (4, {"stack": "deepspeed", "deepspeed": {"zero_optimization": {"stage": 2}}}),
    (2, {"seed": 3, "ft": {"enabled": True, "group_size": 2},
         "gc": {"interval": 50, "generation": 2}}),
    (2, {"wandb": {"enabled": True, "tags": "a"}, "tensorboard": True, "heartbeat": {
        "enabled": True}, "profiling": {"enabled": True}}),
    (2, {"ckpt": {"interval": 10, "keep_latest_k": 2}, "sched": {"type": "cosine"},
         "max_grad_norm": 1.0, "precision": "bf16", "skip_nonfinite_grad": True}),
    (2, {"compile": {"enable": True, "optimize_ddp": False}}),
    (2, {"ckpt": {"enabled": False}}), (2, {"ckpt": {"load_only": True, "interval": 5}}),
    (1, {"scheduler": {"type": "reduce_on_plateau", "patience": 3}, "epochs": 2, "steps": None}),
]  # fmt: skip
BASES: dict[str, dict[str, Any]] = {
    "kempnerforge": {"model": LLAMA, "train": LOOP, "data": {}, "distributed": {"dp_shard": -1},
                     "scheduler": {"warmup_steps": 20}},
    "xorl": {"model": {"model_path": "a/b"}, "data": ROWS,
             "train": {"output_dir": "out", "data_parallel_mode": "fsdp2", "max_steps": 50,
                       "use_wandb": False}},
    "torchtitan": {"model": {"name": "llama3", "flavor": "debugmodel", "hf_assets_path": "gpt2"},
                   "training": {"dataset": "c4", "steps": 100, "seq_len": 128},
                   "lr_scheduler": {"warmup_steps": 5}},
    "danling": {"stack": "ddp", "steps": 100, "optim": {"type": "adamw", "lr": 1e-3},
                "dataloader": {"batch_size": 4}},
}  # fmt: skip
CASES = [
    (name, ranks, case)
    for name, cases in (("kempnerforge", KEMPNER), ("xorl", XORL), ("torchtitan", TITAN),
                        ("danling", DANLING))
    for ranks, case in cases
]  # fmt: skip


@pytest.mark.parametrize(("name", "ranks", "case"), CASES, ids=lambda value: str(value)[:60])
def test_checks_pass_at_the_size_of_the_file(
    tmp_path: Path, name: str, ranks: int, case: dict[str, Any]
) -> None:
    path, base = tmp_path / "job.toml", BASES[name]
    tables = {
        key: {**base.get(key, {}), **case[key]} if isinstance(case.get(key), dict)
        else case.get(key, base.get(key))
        for key in base | case
    }  # fmt: skip
    # Plain keys stand above tables, and null is left out.
    plain = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    known = {key: value for key, value in (plain | tables).items() if value is not None}
    path.write_text(write_toml(known))
    job = job_of(read_foreign(name, str(path)), ranks)
    assert preflight(job, set()).problems == []
    assert recognize(str(path)) == name
