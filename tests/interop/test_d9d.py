"""Files of d9d mean what they mean there, by its own formulas."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from setpoint.cli.main import main
from setpoint.config import compose
from setpoint.infer.config import Inference
from setpoint.interop.dialect import ConvertedDocument, read_foreign, recognize

from .conftest import Refuses
from .converting import assert_rates, job_of, kinds

BASE: dict[str, dict[str, Any]] = {
    "mesh": {"pipeline_parallel": 2, "data_parallel_replicate": 2},
    "data": {"dataset": "text", "split": "train", "text_column": "body", "use_samples": 100,
             "tokenizer": "tokenizer.json", "max_length": 64},
    "auto_data": {"global_batch_size": 16, "microbatch_size": 4, "num_workers": 2},
    "model_provider": {
        "model": {"model": {
            "layer": {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
                      "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "head_dim": 16},
            "num_hidden_layers": 4, "rope_base": 1e6, "max_position_ids": 128,
            "split_vocab_size": {"regular": 500, "special": 12},
            "split_vocab_order": ["regular", "special"]}},
        "checkpointing": True},
    "trainer": {
        "run": {"name": "a-run", "description": None, "hparams": {"note": "kept"}},
        "schedule": {"total_steps": 100},
        "logging": {"period_steps": 5, "tracker": {"provider": "null"}},
        "pipelining": {"schedule": {"schedule": "looped_bfs", "num_stages_per_rank": 2}},
        "model_stage_factory": {"source_checkpoint": None,
                                "checkpoint_only_trainable_parameters": False},
        "determinism": {"base_seed": 7}, "gc": {"period_steps": "disable"},
        "checkpointing": {"save_dir": "out", "period_steps": "last_step", "num_to_keep": None},
        "gradient_manager": {"grad_dtype": "float32", "bucket_size_mb": 16},
        "gradient_clipping": {"max_norm": None}},
    "optimizer": {"name": "stochastic_adamw", "lr": 1e-3, "state_dtype": "bfloat16"},
    "lr_scheduler": {"name": "piecewise", "scheduler": {"initial_multiplier": 0.0, "phases": [
        {"mode": "percentage", "percentage": 0.1, "target_multiplier": 1.0,
         "curve": {"type": "linear"}},
        {"mode": "steps", "steps": 50, "target_multiplier": 0.5, "curve": {"type": "poly",
                                                                          "power": 3.0}},
        {"mode": "rest", "target_multiplier": 0.1, "curve": {"type": "cosine"}}]}},
}  # fmt: skip


def read(folder: Path, **sections: dict[str, Any]) -> ConvertedDocument:
    """Convert the file above with other sections."""
    path = folder / "job.json"
    path.write_text(json.dumps({**BASE, **sections}))
    return read_foreign("d9d", str(path))


def test_a_job_of_its_examples(tmp_path: Path) -> None:
    job = job_of(read(tmp_path), 4)
    assert (job.name, job.seed, job.user["note"]) == ("a-run", 7, "kept")
    assert (job.batch.global_size, job.batch.micro_size, job.batch.accumulation) == (16, 4, 2)
    assert (job.parallel.pipeline, job.parallel.replicate) == (2, 2)
    assert job.parallel.pipelining.stages_per_rank == 2
    assert (job.optimizer.clip_norm, job.precision.params) == (None, "bf16")
    assert getattr(job.model, "vocab_size", None) == 512


def test_buckets_are_those_of_replicas_alone(tmp_path: Path) -> None:
    job = job_of(read(tmp_path, mesh={"data_parallel_replicate": 2}), 2)
    assert job.parallel.bucket_size == 16.0
    assert kinds(read(tmp_path))["gradient_manager.bucket_size_mb"] == "not converted"


def test_rates_are_those_of_its_phases(tmp_path: Path) -> None:
    def factor(step: int) -> float:
        """Phases of 10, 50 and the other 40 of 100 steps."""
        if step < 10:  # a rising step has the factor of its end
            return (step + 1) / 10
        if step < 60:
            return 1.0 + (0.5 - 1.0) * ((step - 10) / 50) ** 3
        share = (step - 60) / 40
        return 0.1 + (0.5 - 0.1) * (1 + math.cos(math.pi * share)) / 2

    assert_rates(job_of(read(tmp_path), 4), factor)


def test_what_it_leaves_to_python_needs_a_decision(tmp_path: Path) -> None:
    document = read(tmp_path, model_provider={}, optimizer={}, data={}, lr_scheduler={})
    kinds = {report.key for report in document.reports if report.kind == "needs a decision"}
    assert {"optimizer.name", "data.dataset", "lr_scheduler.name"} <= kinds
    assert recognize(str(tmp_path / "job.json")) == "d9d"
    both = read(tmp_path, inference={"determinism": {"base_seed": 1}}).problems
    assert "run.name" in {problem.path for problem in both}


@pytest.mark.parametrize(("pattern", "targets"), [
    (r".*self_attn\.(q|v)_proj", [r"attention\.query$", r"attention\.value$"]),
    (r".*(gate|down)_proj", [r"feed_forward\.gate$", r"feed_forward\.down$"]),
    (r".*layers\.1\..*q_proj", None), ("(", None),
])  # fmt: skip
def test_patterns_of_modules_are_those_of_the_same_layers(
    tmp_path: Path, pattern: str, targets: list[str] | None
) -> None:
    document = read(tmp_path, lora={"module_name_pattern": pattern, "params": {"r": 8}})
    adapter = document.data["adapter"]
    assert adapter.get("targets") == targets
    is_decision = "lora.module_name_pattern" in {report.key for report in document.reports}
    is_problem = [problem.path for problem in document.problems] == ["lora.module_name_pattern"]
    assert (targets is None) == (is_decision or is_problem)


INFERENCE: dict[str, Any] = {
    "mesh": {"data_parallel_replicate": 2},
    "inference": {
        "batching": {"global_batch_size": 16, "microbatch_size": 4},
        "data_loading": {"num_workers": 2, "pin_memory": False, "persistent_workers": False},
        "model_stage_factory": {"source_checkpoint": "weights"},
        "determinism": {"base_seed": 5}, "gc": {"period_steps": 10},
        "checkpointing": {"save_dir": "out", "period_steps": "disable", "num_to_keep": None},
        "profiling": {"enabled": True, "traces_dir": "t", "period_steps": 10, "warmup_steps": 2,
                      "active_steps": 3},
        "schedule": {"total_steps": None},
        "timeout": {"init_timeout": 1000, "step_timeout": 50}},
    "data": {"dataset": "text", "split": "test", "text_column": "body", "max_length": 64},
}  # fmt: skip


def test_inference_is_a_job_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refuses: Refuses
) -> None:
    path = tmp_path / "inference.json"
    path.write_text(json.dumps(INFERENCE))
    document = read_foreign("d9d", str(path))
    assert document.problems == []
    draft: Any = compose(Inference, None, files=[document]).draft
    assert (draft.weights.path, draft.seed, draft.batch.sequence_length) == ("weights", 5, 64)
    assert (draft.batch.global_size, draft.data.loader.workers) == (16, 2)
    assert (draft.parallel.replicate, draft.parallel.step_timeout) == (2, 50.0)
    assert (draft.profiling.wait, draft.profiling.active, draft.profiling.warmup) == (5, 3, 2)
    assert str(draft.resilience.gc.every) == "10 steps"
    assert draft.evaluation.sets[0].sources[0].split == "test"
    refused = {report.key for report in document.reports if report.kind == "refused"}
    assert refused == {"checkpointing.save_dir", "checkpointing.period_steps"}
    assert main(["convert", f"d9d:{path}"]) == 0
    assert '[weights]\npath = "weights"' in capsys.readouterr().out
    # Without the section, a file is one of inference if it has nothing of a training.
    path.write_text(json.dumps({**INFERENCE.pop("inference"), **INFERENCE, "data": {}}))
    assert kinds(read_foreign("d9d", str(path)))["data.dataset"] == "needs a decision"
    refuses("train", f"d9d:{path}")


def test_decay_of_adam_is_in_the_gradient(tmp_path: Path) -> None:
    adam: dict[str, Any] = {"name": "adam", "lr": 1e-3, "weight_decay": 0.1}
    optimizer = read(tmp_path, optimizer=adam).data["optimizer"]
    assert (optimizer["type"], optimizer["target"]) == ("import", "torch.optim.Adam")
    decoupled = {**adam, "decoupled_weight_decay": True}
    optimizer = read(tmp_path, optimizer=decoupled).data["optimizer"]
    assert (optimizer["type"], optimizer["weight_decay"]) == ("adamw", 0.1)
    optimizer = read(tmp_path, optimizer={"name": "adam", "lr": 1e-3}).data["optimizer"]
    assert (optimizer["type"], optimizer["weight_decay"]) == ("adamw", 0.0)


@pytest.mark.parametrize(("tracker", "expected"), [
    ({"provider": "wandb", "project": "p", "tags": ["a"]},
     {"type": "wandb", "project": "p", "tags": ["a"], "mode": "online"}),
    ({"provider": "mlflow", "experiment": "e"}, {"type": "mlflow", "experiment": "e"}),
    ({"provider": "tensorboard", "log_dir": "tb"}, {"type": "tensorboard", "directory": "tb"}),
    ({"provider": "log"}, None), ({"provider": "null"}, None),
])  # fmt: skip
def test_trackers_and_profiles_of_release_0_24(
    tmp_path: Path, tracker: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    profile = {"traces_dir": "t", "period_steps": 9, "warmup_steps": 2, "active_steps": 3,
               "with_stack": False}  # fmt: skip
    trainer = {**BASE["trainer"], "logging": {"period_steps": 2, "tracker": tracker}}
    del trainer["pipelining"]
    document = read(tmp_path, trainer={**trainer, "profiling": profile})
    assert document.problems == []
    data = document.data
    assert data["tracking"]["trackers"][1:] == ([expected] if expected else [])
    assert (data["profiling"]["wait"], data["profiling"]["stacks"]) == (4, False)
    assert data["parallel"]["pipelining"]["schedule"] == "gpipe"
