"""Files of DanLing mean what they mean there, by its own formulas, under names of 0.3 and 0.4."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.interop.dialect import ConvertedDocument, read_foreign, recognize
from setpoint.train.config import Job

from ..support.snapshots import compare_problems
from .converting import assert_rates, job_of, kinds

BASE: dict[str, Any] = {
    "stack": "parallel", "steps": 200, "accum_steps": 3, "seed": 7,
    "network": {"type": "llama"}, "optim": {"type": "adamw", "lr": 1e-3},
    "dataloader": {"batch_size": 4, "num_workers": 2, "train": {"shuffle": False}},
    "parallel": {"axes": {"shard": 4, "replicate": 2}}, "fsdp": {"enabled": True},
}  # fmt: skip
RENAMED: dict[str, Any] = {
    "stack": "parallel", "steps": 200, "accum_steps": 3, "max_grad_norm": 0.5, "precision": "bf16",
    "optim": {"type": "adamw", "lr": 1e-3}, "sched": {"type": "constant", "warmup_steps": 10},
    "dataloader": {"batch_size": 4}, "dist": {"train_timeout_seconds": 60},
    "workspace": {"root": "w", "lineage": "l", "experiment": "e"}, "logging": {"interval": 5},
    "ckpt": {"interval": 50, "keep_latest_k": 3, "async_mode": "disabled"}, "resume": True,
    "checkpoint": "runs/before", "compile": {"enabled": True}, "score": {"metric": "loss"},
    "parallel": {"axes": {"shard": -1}},
    "fsdp": {"mixed_precision_policy": {"reduce_dtype": "fp32"}},
}  # fmt: skip


def read(folder: Path, data: dict[str, Any] | None = None, **others: Any) -> ConvertedDocument:
    path = folder / "job.json"
    path.write_text(json.dumps({**(BASE if data is None else data), **others}, indent=1))
    return read_foreign("danling", str(path))


def converted(
    folder: Path, ranks: int = 8, data: dict[str, Any] | None = None, **others: Any
) -> Job:
    return job_of(read(folder, data, **others), ranks, "--batch.sequence_length=64")


def rate(step: int, total: int, **options: Any) -> float:
    """DanLing's scheduler in its own words: the rate of a peak of 1e-3 at step s, from 1."""
    peak, least = 1e-3, options.get("min_lr", 1e-9)
    final = options.get("final_lr", peak * options.get("final_lr_ratio", 1e-3))
    numerical = "final_lr" in options or options.get("scaling") == "numerical"
    warmup, cooldown = (
        options.get("warmup_steps", total // 20),
        options.get("cooldown_steps", total // 5),
    )
    progress = step / total
    ratio = {"linear": progress, "constant": 0.0,
             "cosine": 1 - (1 + math.cos(math.pi * progress)) / 2}[options["type"]]  # fmt: skip
    value = (1 - ratio) * (peak - final) + final if numerical else peak * (final / peak) ** ratio
    if warmup > step:
        value = step / warmup * (value - least) + least
    elif cooldown and step > total - cooldown:
        value = (1 - (step - (total - cooldown)) / cooldown) * (value - least) + least
    return max(least, value)


@pytest.mark.parametrize("options", [
    {"type": "cosine"}, {"type": "linear", "final_lr_ratio": 0.1}, {"type": "constant"},
    {"type": "linear", "final_lr": 1e-5, "warmup_steps": 0, "cooldown_steps": 0},
    {"type": "cosine", "final_lr": 1e-4, "warmup_steps": 30, "min_lr": 1e-5},
])  # fmt: skip
def test_rates_are_those_of_its_schedules(tmp_path: Path, options: dict[str, Any]) -> None:
    job = converted(tmp_path, scheduler=options)
    assert_rates(job, lambda step: rate(step + 1, 200, **options) / 1e-3, 6e-4)


@pytest.mark.parametrize("options", [
    {"type": "step", "step_size": 60, "gamma": 0.5}, {"type": "cosine_annealing", "T_max": 200},
    {"type": "multistep", "milestones": [50, 120]}, {"type": "exponential", "gamma": 0.99},
    {"type": "cosine_warm_restarts", "T_0": 40, "T_mult": 2, "eta_min": 1e-4},
])  # fmt: skip
def test_rates_are_those_of_torchs_schedules(tmp_path: Path, options: dict[str, Any]) -> None:
    names = {"step": "StepLR", "multistep": "MultiStepLR", "exponential": "ExponentialLR",
             "cosine_annealing": "CosineAnnealingLR",
             "cosine_warm_restarts": "CosineAnnealingWarmRestarts"}  # fmt: skip
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
    own = {name: value for name, value in options.items() if name != "type"}
    scheduler = getattr(torch.optim.lr_scheduler, names[options["type"]])(optimizer, **own)
    expected: list[float] = []
    for _ in range(200):
        expected.append(optimizer.param_groups[0]["lr"] / 1e-3)
        optimizer.step()
        scheduler.step()
    job = converted(tmp_path, data={**BASE, "scheduler": options})
    assert_rates(job, lambda step: expected[step], 6e-4)


def test_ranks_and_batch_are_its_own(tmp_path: Path) -> None:
    job = converted(tmp_path)
    # 2 * 4 data ranks, each with 3 batches of 4 rows.
    assert (job.batch.global_size, job.batch.micro_size) == (96, 4)
    assert (job.parallel.shard, job.parallel.replicate, job.data.shuffle) == (4, 2, False)
    stages = {"axes": {"shard": -1, "pipeline": 2}, "pipeline_n_microbatches": 2,
              "pipeline_schedule": "GPipe"}  # fmt: skip
    job = converted(tmp_path, parallel=stages)
    assert (job.batch.micro_size, job.batch.accumulation, job.batch.global_size) == (2, 6, 48)
    experts = read(tmp_path, parallel={"axes": {"shard": 2, "expert": 2}}).data
    assert experts["parallel"]["shard"] == 4 and experts["batch"]["micro_size"] == 2
    ddp = read(tmp_path, stack="ddp")
    assert ddp.data["parallel"]["replicate"] == -1
    for key in ("parallel.axes.shard", "fsdp.enabled"):
        assert kinds(ddp)[key] == "without effect"


def test_names_of_both_releases(tmp_path: Path) -> None:
    job = converted(tmp_path, data=RENAMED)
    assert (job.seed, str(job.workspace), job.experiment, str(job.tracking.every)) == (
        1016, "w/l", "e", "5 steps")  # fmt: skip
    assert (job.checkpoint.load, job.checkpoint.resume, job.checkpoint.keep) == (
        "runs/before", "auto", 3)  # fmt: skip
    assert (job.precision.compute, job.precision.reduce) == ("bf16", "fp32")
    assert (job.optimizer.clip_norm, job.parallel.step_timeout) == (0.5, 60)
    assert recognize(str(tmp_path / "job.json")) == "danling"
    old = read(tmp_path, resume="runs/a", checkpoint={"exclude_from_loading": "lr_scheduler"}).data
    assert old["checkpoint"]["load"] == "runs/a" and old["checkpoint"]["exclude"] == ["schedule"]
    assert read(tmp_path, data={"epochs": 2}).data["seed"] is None


def test_a_configuration_written_out_with_its_defaults(tmp_path: Path) -> None:
    """Values at their defaults are no decisions, and a patience without end is none."""
    path = tmp_path / "config.yaml"
    path.write_text("stack: auto\nsteps: 9\noptim: {type: adamw, lr: 0.1}\n"
                    "score: {metric: loss, split: null, patience: .inf}\n"
                    "ckpt: {dataloader_checkpoint: {prefix: dataloader-replica}}\n")  # fmt: skip
    document = read_foreign("danling", str(path))
    assert document.problems == []
    assert "early_stopping" not in document.data.get("evaluation", {})
    assert not kinds(document).keys() & {"score_name", "checkpoint.ft_dataloader_checkpoint_prefix"}


def test_groups_and_optimizers(tmp_path: Path) -> None:
    groups = [{"pattern": "norm", "weight_decay_multiplier": 0.0, "beta2": 0.9, "eps": 1e-6}]
    optim = {"type": "adamw", "lr": 2e-4, "betas": [0.8, 0.95], "param_groups": groups}
    optimizer = converted(tmp_path, optim=optim).optimizer
    assert optimizer.groups[0].weight_decay_multiplier == 0.0
    assert optimizer.groups[0].options.dump() == {"eps": 1e-6, "betas": [0.8, 0.9]}
    assert converted(tmp_path, optim={"type": "adam", "lr": 1e-3}).optimizer.lr == 1e-3
    compare_problems(read(tmp_path, optim={"type": "adamz"}).problems)


def test_own_keys_and_misspelt_ones(tmp_path: Path) -> None:
    document = read(tmp_path, my_dataset={"path": "x"})
    assert document.problems == [] and document.data["user"]["my_dataset"] == {"path": "x"}
    compare_problems(read(tmp_path, epoch=3).problems)
    compare_problems(read(tmp_path, epochs=3).problems)


def test_values_that_another_one_replaces_are_reported(tmp_path: Path) -> None:
    values = {
        "stack": "parallel",
        "precision": "fp16",
        "fsdp": {"mixed_precision_policy": {"param_dtype": "bfloat16"}},
        "activation_checkpoint": {"enabled": True, "module_classes": ["Block"]},
        "ckpt": {"interval": 10},
        "checkpoint": {"interval": 20},
    }
    path = tmp_path / "job.json"
    path.write_text(json.dumps(values))
    document = read_foreign("danling", str(path))
    for key in ("precision", "activation_checkpoint.module_classes"):
        assert kinds(document)[key] == "differs"
    compare_problems(document.problems)
