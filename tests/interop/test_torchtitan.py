"""Files of torchtitan mean what they mean there, by its own formulas."""

import math
from pathlib import Path
from typing import Any

import pytest

from setpoint.cli.main import main
from setpoint.config.files.write import write_toml
from setpoint.interop.dialect import ConvertedDocument, read_foreign, recognize, split_dialect
from setpoint.interop.torchtitan_registry import FLAVORS, PRESETS
from setpoint.model.config import TransformerConfig
from setpoint.model.parameters import count_parameters_of
from setpoint.train.config import Job

from ..support.snapshots import compare_problems
from .converting import assert_rates, job_of, kinds

BASE: dict[str, dict[str, Any]] = {
    "job": {"dump_folder": "out", "description": "a test"},
    "model": {"name": "llama3", "flavor": "debugmodel", "hf_assets_path": "tokenizer"},
    "training": {"local_batch_size": 4, "seq_len": 128, "steps": 60, "dataset": "c4"},
    "lr_scheduler": {"warmup_steps": 10},
    "parallelism": {"data_parallel_shard_degree": -1},
}


def read(folder: Path, **sections: dict[str, Any]) -> ConvertedDocument:
    """Convert a file with other values in some tables."""
    path = folder / "job.toml"
    data = {name: {**BASE.get(name, {}), **sections.get(name, {})} for name in BASE | sections}
    path.write_text(write_toml(data))
    return read_foreign("torchtitan", str(path))


def converted(folder: Path, ranks: int = 1, **sections: dict[str, Any]) -> Job:
    return job_of(read(folder, **sections), ranks)


def factor(step: int, total: int, warmup: int, config: dict[str, Any]) -> float:
    """Torchtitan's factor of the peak rate at a step, counted from 0."""
    ratio = config.get("decay_ratio")
    decay = total - warmup if ratio is None else min(round(total * ratio), total - warmup)
    stable = total + 1 - warmup - decay
    if step < warmup:
        return (step + 1) / warmup
    if step < warmup + stable:
        return 1.0
    progress = (step + 1 - warmup - stable) / decay
    shapes = {"linear": 1 - progress, "sqrt": 1 - math.sqrt(progress),
              "cosine": (1 + math.cos(math.pi * progress)) / 2}  # fmt: skip
    least = config.get("min_lr_factor", 0.0)
    return least + (1 - least) * shapes[config.get("decay_type", "linear")]


@pytest.mark.parametrize("config", [
    {}, {"decay_type": "cosine", "min_lr_factor": 0.1}, {"decay_ratio": 0.5},
    {"decay_ratio": 0.25, "decay_type": "sqrt"}, {"decay_type": "sqrt", "min_lr_factor": 0.2},
    {"decay_ratio": 0.9, "decay_type": "cosine"}, {"warmup_steps": 0},
])  # fmt: skip
def test_rates_are_those_of_its_formula(tmp_path: Path, config: dict[str, Any]) -> None:
    job = converted(tmp_path, lr_scheduler=config)
    warmup = config.get("warmup_steps", 10)
    assert_rates(job, lambda step: factor(step, 60, warmup, config))


def test_ranks_and_batch_are_its_own(tmp_path: Path) -> None:
    mesh = {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 2,
            "context_parallel_degree": 2}  # fmt: skip
    job = converted(tmp_path, 8, parallelism=mesh)
    assert (job.batch.global_size, job.parallel.ring) == (16, 2)
    job = converted(tmp_path, 4, training={"global_batch_size": 64})
    assert (job.batch.accumulation, job.parallel.shard) == (4, -1)
    mesh = {"pipeline_parallel_degree": 2, "pipeline_parallel_microbatch_size": 1}
    job = converted(tmp_path, 4, parallelism=mesh)
    assert (job.batch.micro_size, job.batch.accumulation, job.batch.global_size) == (1, 4, 8)


@pytest.mark.parametrize("flavor", FLAVORS["llama3"])
def test_widths_are_those_of_its_formula(tmp_path: Path, flavor: str) -> None:
    """FFN: 2 / 3 of 4 * dim, times a multiplier, rounded up to a multiple."""
    model = converted(tmp_path, model={"flavor": flavor}).model
    assert isinstance(model, TransformerConfig)
    multiplier, multiple = {"debugmodel": (1.0, 256), "8B": (1.3, 1024), "70B": (1.3, 4096),
                            "405B": (1.2, 4096), "1B": (1.5, 256),
                            "3B": (1.0, 256)}[flavor]  # fmt: skip
    hidden = int(multiplier * int(2 * 4 * model.dim / 3))
    assert model.ffn_dim == multiple * -(-hidden // multiple)


def test_initial_deviations_are_its_own(tmp_path: Path) -> None:
    model = converted(tmp_path, model={"flavor": "8B"}).model
    assert isinstance(model, TransformerConfig)
    stds = (model.init_std_embedding, model.init_std_output, model.hidden_std)
    assert stds == (1.0, 1 / math.sqrt(4096), 0.02)
    assert model.residual_std(7) == 0.02 / math.sqrt(2 * 8)


PARAMETERS = {
    "llama3": {"debugmodel": 6_163_712, "1B": 1_235_814_400, "3B": 3_212_749_824,
               "8B": 8_030_261_248, "70B": 70_553_706_496, "405B": 405_853_388_800},
    "deepseek_v3": {"debugmodel": 33_014_016, "16B": 15_706_484_224, "236B": 235_741_434_880,
                    "671B": 671_026_404_352},
    "kimi_k2_7": {"moonlight-16B-A3B": 15_960_108_544},
    "gpt_oss": {"debugmodel": 81_489_440, "20b": 20_914_757_184, "120b": 116_829_156_672},
}  # fmt: skip
"""Elements of the parameters that torchtitan 0.3.0 builds from its flavors, and transformers for
Moonlight."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_torchtitan(tmp_path: Path, name: str) -> None:
    counts: dict[str, int] = {}
    for flavor in PARAMETERS[name]:
        model = converted(tmp_path, 8, model={"name": name, "flavor": flavor}).model
        assert isinstance(model, TransformerConfig)
        size = model.vocab_size or (2048 if flavor == "debugmodel" else 128_256)
        counts[flavor] = count_parameters_of(model, size).parameters
    assert counts == PARAMETERS[name]


def test_positions_are_scaled_since_release_0_2(tmp_path: Path) -> None:
    """Llama 3 by 8 since 0.2; DeepSeek V3 for long rows in 0.2, for all in 0.3."""

    def scaling(document: ConvertedDocument) -> Any:
        assert document.problems == []
        return document.data["model"].get("rope_scaling", {})

    assert scaling(read(tmp_path))["factor"] == 8.0
    assert scaling(read(tmp_path, model={"tokenizer_path": "tokenizer.model"})) == {}
    assert scaling(read(tmp_path, model={"name": "deepseek_v3", "flavor": "16B"})) == {}
    assert scaling(read_foreign("torchtitan", "deepseek_v3_16b"))["factor"] == 40.0


def test_overrides_of_release_0_3() -> None:
    words = ["--profiler.profiler_repeat=2", "--profiler.profiler_skip_first", "5",
             "--compile.enable", "--compile.enable_async_tensor_parallel",
             "--parallelism.tensor_parallel_degree=2", "--parallelism.spmd_backend=full_dtensor",
             "--validator.enable", "--validator.dataloader.dataset", "c4_validation",
             "--dataloader.num_workers=3", "--debug.detect_anomaly"]  # fmt: skip
    document = read_foreign("torchtitan", "llama3_70b", words)
    for key in ("debug.detect_anomaly", "parallelism.spmd_backend"):
        assert kinds(document)[key] == "without effect"
    job = job_of(document, 8)
    assert job.profiling is not None and job.evaluation is not None
    assert (job.profiling.repeat, job.profiling.skip, job.data.loader.workers) == (2, 5, 3)
    assert job.parallel.async_tensor_parallel and job.parallel.sequence_parallel
    assert str(job.evaluation.every) == "500 steps"
    words = ["--parallelism.tensor_parallel_degree=2", "--parallelism.enable_sequence_parallel=no"]
    document = read_foreign("torchtitan", "llama3_8b", words)
    assert document.data["parallel"]["sequence_parallel"] is False


def test_keys_of_release_0_2(tmp_path: Path) -> None:
    job = converted(
        tmp_path, 8, training={"dtype": "bfloat16", "dataloader": {"num_workers": 2}},
        job={"print_config": False}, profiling={"enable_profiling": True, "profile_freq": 10,
        "profiler_active": 2, "profiler_warmup": 1}, lr_scheduler={"total_steps": 100},
        parallelism={"context_parallel_degree": 2, "context_parallel_load_balancer": "headtail"},
        model={"converters": ["quantize.linear.fp8"]}, compile={"enable": True, "backend": "eager"},
        **{"quantize.linear.fp8": {"filter_fqns": ["output"]}},
        checkpoint={"enable": True, "load_only": True}, fault_tolerance={"group_size": 2},
    )  # fmt: skip
    assert (job.precision.params, job.data.loader.workers) == ("bf16", 2)
    assert job.profiling is not None and job.compile is not None and job.schedule is not None
    assert (job.profiling.wait, job.profiling.warmup, job.profiling.active) == (7, 1, 2)
    assert (job.compile.backend, job.checkpoint.save, job.parallel.ring_split) == (
        "eager", False, "zigzag")  # fmt: skip
    assert_rates(job, lambda step: factor(step, 100, 10, {}))
    assert str(job.duration) == "60 steps"


def test_files_of_releases_before_0_1(tmp_path: Path) -> None:
    """One table for the batch, the ranks and the warm-up; stages by their first layers."""
    path = tmp_path / "old.toml"
    path.write_text(write_toml({
        "metrics": {"enable_color_printing": True},
        "model": {"name": "llama3", "flavor": "debugmodel", "norm_type": "compiled_rmsnorm",
                  "tokenizer_path": "./test/assets/test_tiktoken.model"},
        "training": {"batch_size": 8, "seq_len": 128, "warmup_steps": 2, "steps": 10,
                     "data_parallel_degree": -1, "tensor_parallel_degree": 2, "dataset": "c4",
                     "enable_float8_linear": False, "fp8_linear": ""},
        "experimental": {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "1f1b",
                         "pipeline_parallel_split_points": "layers.3"},
    }))  # fmt: skip
    document = read_foreign("torchtitan", str(path))
    assert document.problems == []
    model, parallel = document.data["model"], document.data["parallel"]
    assert (model["layers"], model["vocab_size"]) == (8, 2256)
    assert (parallel["tensor"], parallel["pipelining"]["schedule"]) == (2, "1f1b")
    assert [len(part) for part in parallel["pipelining"]["split"]] == [4, 6]
    assert (document.data["batch"]["micro_size"], document.data["batch"]["accumulation"]) == (4, 2)
    text = path.read_text()
    path.write_text(text.replace('"llama3"', '"llama"'))  # up to April 2024
    assert read_foreign("torchtitan", str(path)).data["model"]["vocab_size"] == 2256
    path.write_text(text.replace('"layers.3"', '"layers.9"'))
    (problem,) = read_foreign("torchtitan", str(path)).problems
    assert problem.path == "parallelism.pipeline_parallel_split_points"


@pytest.mark.parametrize(("model", "size"), [
    ({"name": "llama3", "flavor": "debugmodel"}, 2048),
    ({"name": "llama3", "flavor": "8B"}, 128_256),
    ({"name": "simple_fsdp.llama3", "flavor": "8B"}, 128_256),
    ({"name": "llama3", "flavor": "8B", "tokenizer_path": "a/tokenizer.model"}, 128_256),
    ({"name": "llama3", "flavor": "8B", "tokenizer_path": "a/folder"}, None),
    ({"name": "llama4", "flavor": "debugmodel", "tokenizer_path": "test_tiktoken.model"}, 2256),
])  # fmt: skip
def test_vocabularies(tmp_path: Path, model: dict[str, Any], size: int | None) -> None:
    """Of the flavor since release 0.2, and of the tokenizer before."""
    assert read(tmp_path, model=model).data["model"].get("vocab_size") == size


@pytest.mark.parametrize(
    "name", ["rl_grpo_qwen3_14b", "flux_dev", "sft_debugmodel", "muse_glimmer_30b", "llama9"]
)
def test_other_configurations_say_why(tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.args"
    path.write_text(f"--config {name}\n")
    (problem,) = read_foreign("torchtitan", str(path)).problems
    compare_problems([problem])
    (named,) = read_foreign(*split_dialect(f"torchtitan:{name}") or ("", "")).problems
    assert (named.value, named.message) == (problem.value, problem.message)


def test_images_are_one_error(tmp_path: Path) -> None:
    tables = {"encoder": {"t5_encoder": "a", "clip_encoder": "b"}, "inference": {"prompts": "c"}}
    model = {"name": "flux", "flavor": "flux-dev"}
    compare_problems(read(tmp_path, model=model, **tables).problems)


def test_masks_of_large_and_named_models_isolate_documents(tmp_path: Path) -> None:
    def isolates(source: ConvertedDocument) -> bool:
        return source.data["data"]["packing"]["isolate"]

    flavors = {"debugmodel": False, "16B": True, "debugmodel_flex_attn": True}
    for flavor, isolated in flavors.items():
        document = read(tmp_path, model={"name": "deepseek_v3", "flavor": flavor})
        assert document.problems == [] and isolates(document) == isolated
    assert not isolates(read(tmp_path, model={"flavor": "8B"}))
    assert isolates(read_foreign("torchtitan", "llama3_8b"))


def test_decisions_and_unknown_flavors(tmp_path: Path) -> None:
    document = read(tmp_path, training={"dataset": "c4_test"}, model={"hf_assets_path": "a.model"})
    for key in ("training.dataset", "model.tokenizer_path"):
        assert kinds(document)[key] == "needs a decision"
    assert recognize(str(tmp_path / "job.toml")) == "torchtitan"
    problems = read(tmp_path, model={"name": "flux", "flavor": "flux-dev"}).problems
    assert [problem.path for problem in problems] == ["model.name"]
    problems = read(tmp_path, model={"name": "qwen3", "flavor": "9B"}).problems
    assert [problem.path for problem in problems] == ["model.flavor"]


def test_chunks_of_llama_4(tmp_path: Path) -> None:
    """The first of four layers has neither chunks nor positions; documents are isolated."""
    document = read(tmp_path, model={"name": "llama4", "flavor": "17bx128e_irope"})
    model, data = (document.data[name] for name in ("model", "data"))
    assert isinstance(model, dict) and isinstance(data, dict)
    assert model["attention_pattern"] == ["full", "chunked", "chunked", "chunked"]
    assert model["rope_pattern"] == [False, True, True, True]
    assert "rope_scaling" not in model and model["moe"]["scale_inputs"]
    assert data["packing"]["isolate"]
    assert any("chunks" in report.text for report in document.reports)
    plain = read(tmp_path, model={"name": "llama4", "flavor": "17bx16e"})
    assert (
        "attention_chunk" not in plain.data["model"]
        and not plain.data["data"]["packing"]["isolate"]
    )


def test_a_command_prints_a_note_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text('[model]\nname = "llama3"\nflavor = "debugmodel"\n')
    assert main(["diff", *["torchtitan:job.toml"] * 2, "--optimizer.lr", "1"]) == 1
    assert capsys.readouterr().err.count("model.flavor: differs") == 1


@pytest.mark.parametrize("name", PRESETS)
def test_named_configurations_are_jobs(name: str) -> None:
    size = 1 if PRESETS[name].get("parallelism.data_parallel_shard_degree") == 1 else 64
    job = job_of(read_foreign("torchtitan", name, ["--training.steps", "700"]), size)
    assert str(job.duration) == "700 steps"
    assert getattr(job.optimizer, "lr", None) == PRESETS[name]["optimizer.lr"]
    ranks = size // PRESETS[name].get("parallelism.tensor_parallel_degree", 1)
    assert job.batch.global_size == PRESETS[name]["training.local_batch_size"] * ranks


@pytest.mark.parametrize(
    ("name", "flavor"), [(name, flavor) for name in ("qwen3", "llama4") for flavor in FLAVORS[name]]
)
def test_parameters_are_those_of_transformers(tmp_path: Path, name: str, flavor: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model = converted(tmp_path, model={"name": name, "flavor": flavor}).model
    assert isinstance(model, TransformerConfig)
    sizes: dict[str, Any] = {
        "hidden_size": model.dim, "num_hidden_layers": model.layers, "head_dim": model.head_dim,
        "num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads,
        "vocab_size": model.vocab_size, "tie_word_embeddings": model.tie_embeddings,
        "intermediate_size": model.ffn_dim,
    }  # fmt: skip
    kind = name
    if name == "llama4":
        assert model.moe is not None
        kind = "llama4_text"
        sizes |= {"num_local_experts": model.moe.experts, "intermediate_size": model.moe.expert_dim,
                  "intermediate_size_mlp": model.ffn_dim,
                  "interleave_moe_layer_step": model.moe.every}  # fmt: skip
    elif model.moe is not None:
        kind = "qwen3_moe"
        sizes |= {"num_experts": model.moe.experts, "moe_intermediate_size": model.moe.expert_dim}
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
    expected = sum(parameter.numel() for parameter in theirs.parameters())
    assert count_parameters_of(model, model.vocab_size or 0).parameters == expected


def test_a_command_line_of_today(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "MODULE=${MODULE:-llama3}\nCONFIG=qwen3_1_7b\n"
        "torchrun --nproc_per_node=8 -m torchtitan.train --module ${MODULE} --config ${CONFIG} \\\n"
        "  --optimizer.lr=1e-4 --parallelism.tensor_parallel_degree 2 --checkpoint.enable\n"
    )
    document = read_foreign("torchtitan", str(path))
    job = job_of(document, 8)
    assert (getattr(job.optimizer, "lr", None), job.parallel.tensor) == (1e-4, 2)
    assert (job.checkpoint.save, getattr(job.model, "layers", None)) == (True, 28)
    assert document.where(("optimizer", "lr")).endswith("run.sh:4:3")
    assert recognize(str(path)) == "torchtitan"
    path.write_text("--config llama9_8b\n")
    paths = {problem.path for problem in read_foreign("torchtitan", str(path)).problems}
    assert paths == {"config"}


@pytest.mark.parametrize("length", [4096, 8192])
def test_latent_attention_of_deepseek(tmp_path: Path, length: int) -> None:
    """Positions are scaled, and the softmax by the square of mscale, beyond 4096 tokens."""
    training = {"seq_len": length}
    model = converted(
        tmp_path, 8, model={"name": "deepseek_v3", "flavor": "671B"}, training=training
    ).model
    assert isinstance(model, TransformerConfig) and model.mla is not None
    scale = (0.1 * math.log(40) + 1) ** 2 / math.sqrt(128 + 64)
    assert model.attention_scale == (pytest.approx(scale) if length > 4096 else None)
    assert (model.rope_scaling is None) == (length == 4096)


def test_products_that_overlap_messages_need_divided_matrices(tmp_path: Path) -> None:
    given = {"enable_async_tensor_parallel": True}
    assert not converted(tmp_path, parallelism=given).parallel.async_tensor_parallel
    (report,) = [r for r in read(tmp_path, parallelism=given).reports if "async" in r.key]
    assert report.kind == "not converted"
    divided = read(tmp_path, parallelism={**given, "tensor_parallel_degree": 2})
    assert divided.data["parallel"]["async_tensor_parallel"]


@pytest.mark.parametrize(("converters", "tables", "expected"), [
    (["mx"], {"mx": {"filter_fqns": ["output"]}}, {"recipe": "mxfp8", "skip": ["output"]}),
    (["quantize.linear.mx", "quantize.grouped_mm.mx"],
     {"quantize.grouped_mm.mx": {"fqns": ["experts"]}}, {"recipe": "mxfp8", "experts": True}),
    (["float8"], {"float8": {"recipe_name": "rowwise", "enable_fsdp_float8_all_gather": True}},
     {"recipe": "rowwise", "gather": True}),
    (["quantize.grouped_mm.float8"], {"quantize.grouped_mm.float8": {"fqns": ["experts"]}},
     {"recipe": "tensorwise", "experts": True}),
])  # fmt: skip
def test_quantized_products(
    tmp_path: Path, converters: list[str], tables: dict[str, Any], expected: dict[str, Any]
) -> None:
    document = read(tmp_path, model={"converters": converters}, **tables)
    assert document.problems == []
    data = document.data
    assert data["precision"]["float8"] == expected
    alone = kinds(document).get("model.converters") == "differs"
    assert alone == (converters == ["quantize.grouped_mm.float8"])


def test_layers_with_two_backward_passes_are_recomputed_whole(tmp_path: Path) -> None:
    axes = {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "ZBVZeroBubble"}
    tables: dict[str, dict[str, Any]] = {
        "parallelism": axes, "training": {"local_batch_size": 4},
        "activation_checkpoint": {"mode": "selective", "selective_ac_option": "op"},
    }  # fmt: skip
    document = read(tmp_path, **tables)
    assert document.data["memory"]["activation_checkpointing"] == {"type": "full"}
    assert any("two backward passes" in report.text for report in document.reports)
    converted(tmp_path, 4, **tables)
    compiled = read(tmp_path, **tables, compile={"enable": True})
    assert compiled.data["memory"]["activation_checkpointing"]["type"] == "operators"


def test_replica_groups_divide_the_micro_batches(tmp_path: Path) -> None:
    groups: dict[str, Any] = {"enable": True, "group_size": 3, "replica_id": 1,
                              "process_group_timeout_ms": 5000}  # fmt: skip
    job = converted(tmp_path, 4, fault_tolerance=groups, training={"seed": 1})
    assert job.parallel.torchft is not None
    assert (job.parallel.torchft.group_size, job.parallel.torchft.timeout) == (3, 5.0)
    assert job.batch.global_size == 4 * 4 * 3
    document = read(tmp_path, fault_tolerance={**groups, "semi_sync_method": "diloco"})
    assert [problem.path for problem in document.problems] == ["fault_tolerance.semi_sync_method"]
    assert {report.key for report in document.reports} >= {"training.seed"}
