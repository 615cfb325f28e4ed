"""Files of xorl mean what they mean there, by its own formulas."""

import math
from pathlib import Path
from typing import Any, cast

import pytest

from setpoint.interop.dialect import read_foreign, recognize
from setpoint.train.config import Job

from ..support.snapshots import compare_problems
from .converting import assert_rates, job_of, kinds

BASE: dict[str, dict[str, Any]] = {
    "model": {"model_path": "Qwen/Qwen3-8B", "attn_implementation": "flash_attention_3"},
    "data": {"datasets": "[{path: dummy, type: tokenized, max_seq_len: 512}]",
             "sample_packing_method": "sequential", "sample_packing_sequence_len": 1024},
    "train": {"output_dir": "out", "data_parallel_mode": "fsdp2", "max_steps": 100, "lr": "1e-4",
              "gradient_accumulation_steps": 3, "micro_batch_size": 2, "use_wandb": "false"},
}  # fmt: skip


def write(folder: Path, **sections: dict[str, Any]) -> str:
    """A file with other values in some sections."""
    path = folder / "job.yaml"
    merged = {name: {**BASE.get(name, {}), **sections.get(name, {})} for name in BASE | sections}
    lines = [
        line
        for name, section in merged.items()
        for line in (f"{name}:", *(f"  {key}: {value}" for key, value in section.items()))
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def converted(folder: Path, ranks: int, **sections: dict[str, Any]) -> Job:
    return job_of(read_foreign("xorl", write(folder, **sections)), ranks)


def factor(train: dict[str, Any], total: int, step: int) -> float:
    """Factor of the peak rate at a step of xorl, counted from 0."""
    warmup, end = int(total * train["lr_warmup_ratio"]), int(total * train.get("lr_decay_ratio", 1))
    start, least = train.get("lr_start", 0.0) / 1e-4, train["lr_min"] / 1e-4
    if step < warmup:
        return start + (1 - start) * step / warmup
    p = min(1.0, (step - warmup) / max(1, end - warmup))
    shapes = {"linear": 1 - p, "cosine": (1 + math.cos(math.pi * p)) / 2, "constant": 1.0}
    style = train["lr_decay_style"]
    return 1.0 if style == "constant" else least + (1 - least) * shapes[style]


@pytest.mark.parametrize("train", [
    {"lr_decay_style": "cosine", "lr_warmup_ratio": 0.1, "lr_min": 1e-6},
    {"lr_decay_style": "linear", "lr_warmup_ratio": 0.0, "lr_min": 0.0},
    {"lr_decay_style": "cosine", "lr_warmup_ratio": 0.2, "lr_min": 1e-5, "lr_decay_ratio": 0.8},
    {"lr_decay_style": "constant", "lr_warmup_ratio": 0.05, "lr_min": 1e-6, "lr_start": 5e-5},
])  # fmt: skip
def test_rates_are_those_of_its_formula(tmp_path: Path, train: dict[str, Any]) -> None:
    job = converted(tmp_path, 1, train=train)
    assert_rates(job, lambda step: factor(train, 100, step))


def test_ranks_and_batch_are_its_own(tmp_path: Path) -> None:
    degrees = {"ulysses_parallel_size": 2, "ringattn_parallel_size": 2, "pipeline_parallel_size": 2,
               "data_parallel_shard_size": 2, "data_parallel_replicate_size": 1}  # fmt: skip
    job = converted(tmp_path, 16, train=degrees)
    # 16 ranks: 2 data ranks of 2 * 3 rows each.
    assert (job.batch.global_size, job.batch.sequence_length) == (12, 1024)
    assert (job.parallel.ring, job.parallel.ulysses, job.parallel.pipeline) == (2, 2, 2)
    automatic = converted(tmp_path, 8)
    assert (automatic.parallel.shard, automatic.batch.global_size) == (-1, 48)


def test_muon_and_adapters_keep_their_rates(tmp_path: Path) -> None:
    job = converted(tmp_path, 1, train={"optimizer": "muon", "muon_lr": 3e-4})
    assert (job.optimizer.lr, getattr(job.optimizer, "adamw_lr", None)) == (3e-4, 1e-4)
    lora = {"enable_qlora": "true", "quant_format": "nf4", "lora_rank": 8, "lora_alpha": 32}
    adapter = converted(tmp_path, 1, lora=lora).adapter
    assert adapter is not None
    assert (adapter.rank, adapter.alpha) == (8, 32.0)


def test_recognition_and_unknown_keys(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert recognize(path) == "xorl"
    document = read_foreign("xorl", write(tmp_path, train={"lr_warmup": 0.1}))
    compare_problems(document.problems)
    media = read_foreign("xorl", write(tmp_path, model={"encoders": "{image: {model_path: x}}"}))
    compare_problems(media.problems)


def test_values_in_lists_and_nulls_are_read(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: {model_path: m, attn_implementation: null}\n"
        "data: {datasets: [{path: dummy, max_seq_len: many}]}\ntrain: {output_dir: out}\nlora:\n"
    )
    document = read_foreign("xorl", str(path))
    model = cast("dict[str, object]", document.data["model"])
    assert model["attention_backend"] == "auto"
    compare_problems(document.problems)


def test_loaders_without_workers_and_deepep(tmp_path: Path) -> None:
    """What has no effect without workers is left out; DeepEP takes no model of transformers."""
    data = {"dataloader_num_workers": 0, "dataloader_pin_memory": "false"}
    model, train = {"ep_dispatch": "deepep"}, {"expert_parallel_size": 2}
    assert converted(tmp_path, 2, data=data).data.loader.workers == 0
    document = read_foreign("xorl", write(tmp_path, model=model, train=train))
    assert kinds(document)["model.ep_dispatch"] == "refused"


def test_schedules_rows_and_routers_of_published_files(tmp_path: Path) -> None:
    train: dict[str, Any] = {"pipeline_parallel_size": 2, "pipeline_parallel_virtual_stages": 2}
    job = converted(tmp_path, 2, train=train | {"pipeline_parallel_schedule": "ZBVZeroBubble"})
    assert job.parallel.pipelining.schedule == "zbv_zero_bubble"
    assert job.parallel.reshard is False  # xorl's default with a pipeline
    job = converted(
        tmp_path, 8, data={"sample_packing_sequence_len": 4097},
        model={"moe_implementation": "triton"},
        train={"ulysses_parallel_size": 8, "expert_parallel_size": 8},
    )  # fmt: skip
    assert job.batch.sequence_length == 4104
    assert list(job.optimizer.frozen) == ["router"]
    assert list(converted(tmp_path, 1).optimizer.frozen) == []


def test_fused_targets_and_files_of_other_programs(tmp_path: Path) -> None:
    lora = {"enable_lora": True, "lora_target_modules": ["qkv_proj", "o_proj"]}
    document = read_foreign("xorl", write(tmp_path, lora=lora))
    assert document.data["adapter"]["targets"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert kinds(document)["lora.lora_target_modules"] == "differs"
    path = tmp_path / "export.yaml"
    path.write_text("input_dir: a\noutput_dir: b\nfmt: e4m3\n")
    compare_problems(read_foreign("xorl", str(path)).problems)
