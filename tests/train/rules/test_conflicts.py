"""The table of settings that do not go together: each row can be met, and reads known names."""

from pathlib import Path

import pytest
import torch

from setpoint.config import ConfigError, Problem
from setpoint.config.resolving.checks import verify
from setpoint.loss.config import ChunkedCrossEntropy
from setpoint.track.config import NORMS
from setpoint.train.rules.conflicts import CONFLICTS, Conflict

from ..small import small_job

FULL, SAVE = "memory.activation_checkpointing=full", "memory.activation_checkpointing.save"
OPERATORS = "memory.activation_checkpointing=operators"
TABLE = ("model=import", "model.target=torch.nn.Embedding", "model.num_embeddings=257")
IMPORTED = "optimizer={type=import, target=torch.optim.Adam}"
TRITON = "{autotune_pointwise: true, autotune_cublasLt: true, multi_kernel: true}"
INDUCTOR = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise")
TIMED = (
    f"compile.options.triton={TRITON}",
    "compile.options.coordinate_descent_tuning=true",
    *(f"compile.options.{name}=true" for name in INDUCTOR),
)
TENSOR = ("parallel.world_size=2", "parallel.tensor=2")
SHARDED = ("parallel.world_size=2", "parallel.shard=2", "batch.accumulation=1")
RING = ("parallel.world_size=2", "parallel.ring=2")
ZERO = ("parallel.world_size=2", "parallel.engine=deepspeed", "batch.accumulation=1")
EXPERT, MOE = (*SHARDED, "parallel.expert=2"), ("model.moe.experts=4",)
CUT = ("parallel.world_size=2", "parallel.pipeline=2", "model.layers=4", "batch.accumulation=4")
BOTH = ("parallel.world_size=4", "parallel.pipeline=2", "parallel.shard=2", *CUT[2:])
PIPELINING = "parallel.pipelining.schedule"
NOISE = ("adapter={type=qlora, rank=2, quantize={type=nf4, group_size=8, noise={}}}",)
MET: tuple[tuple[str, ...], ...] = (
    ("batch.sequence_length=17", "model.max_sequence_length=16"),
    ("loss=chunked_cross_entropy", *TABLE, "model.embedding_dim=257"),
    ("precision.compute=fp16",),
    (*RING, "model.attention_sinks=true"),
    ("parallel.world_size=2", "parallel.expert_tensor=2", *MOE, "model.moe.bias=true"),
    ("precision.tf32=true", "deterministic=true", "parallel.device=cuda"),
    (*ZERO, "resilience.spike={}"),
    (*ZERO, "adapter={type=lora, rank=2}"),
    (*ZERO, "batch.accumulation=2", "batch.ramp={start: 4, increment: 4, over: 9}"),
    ("adapter={type=relora, rank=2}", "checkpoint.save_frozen=false"),
    (*ZERO, "optimizer.frozen_spans=[{pattern=embedding, stop=2}]"),
    ("adapter={type=qlora, rank=2}", "precision.float8={}", "precision.compute=bf16"),
    ("adapter={type=lora, rank=2, dropout=0.1}", *TENSOR, "parallel.sequence_parallel=false"),
    (*NOISE, "compile.fullgraph=true"),
    ("checkpoint.save_frozen=false",),
    ("adapter={type=qlora, rank=2}", "checkpoint.save_frozen=false", *TABLE),
    ("precision.float8={experts: true}", "model={type=huggingface, config=org/theirs}"),
    ("precision.float8={experts: true}", "model.moe={experts: 4, implementation: loop}"),
    (*ZERO, "parallel.torchft={}", "seed=null"),
    (*CUT, "parallel.torchft.process_group=nccl", "parallel.device=cpu"),
    (*NOISE, "compile.scope=graph"),
    ("model.embedding_noise=5", "compile.scope=graph"),
    ("adapter={type=relora, rank=2}", "optimizer=schedule_free_adamw", "schedule=none"),
    ("precision.compute=bf16", "precision.float8={}"),
    ("precision.optimizer_state=fp32", IMPORTED),
    ("precision.optimizer_state=fp32", "optimizer=sgd", "optimizer.momentum=0"),
    ("precision.optimizer_state=bf16",),
    ("schedule=plateau", "evaluation=null"),
    ("schedule=plateau", "evaluation.every=last_step"),
    (FULL, "memory.activation_checkpointing.reentrant=true", "compile.scope=model"),
    (OPERATORS, "memory.activation_offload={}"),
    ("memory.activation_offload={}", "compile.scope=model"),
    ("loss=chunked_cross_entropy", "compile.scope=graph"),
    ("model.moe={experts: 4, packed: false}", "compile.scope=graph"),
    ("model.moe={experts: 4, capacity_factor: 1.5}", "compile.scope=graph"),
    (*SHARDED, "compile.scope=graph"),
    (OPERATORS, f"{SAVE}=[attention]", "model.attention_dropout=0.1"),
    (OPERATORS, f"{SAVE}=[attention]", "model.attention_backend=eager"),
    (OPERATORS, f"{SAVE}=[exchange]"),
    (OPERATORS, f"{SAVE}=[attention]", "model.attention_backend=flash_attention_4",
     "precision.compute=bf16"),
    ("compile.backend=eager", FULL, "model.dropout=0.1"),
    ("compile.backend=eager", FULL, "model.dropout=0", "model.attention_dropout=0.1"),
    ("compile.mode=max-autotune", "deterministic=true"),
    (*TIMED, "deterministic=true"),
    ("data.held_out=0",),
    (*SHARDED, "optimizer=sgd", "optimizer.implementation=fused"),
    (*SHARDED, "parallel.device=cuda", "parallel.sharding.offload=true",
     "parallel.sharding.replicated=[embedding]", "parallel.backend=nccl"),
    (*ZERO, "parallel.shard=2"),
    (*ZERO, "optimizer=muon", "compile={}", "model.moe.experts=4"),
    (*ZERO, "optimizer.clip_norm=null", "optimizer.clip_value=1", "precision.reduce=bf16"),
    (*ZERO, "precision.params=bf16", "precision.compute=bf16", "precision.float8={}"),
    (*ZERO, "precision.compute=fp16", "parallel.device=cuda"),
    (*ZERO, "precision.optimizer_state=bf16", "memory.activation_offload={}"),
    (*ZERO, *(f"tracking.metrics.{name}=[layers]" for name in NORMS)),
    (*SHARDED, "parallel.sharding.replicated=[embedding]", IMPORTED),
    (*SHARDED, "parallel.load_weights=broadcast"),
    (*RING, "model.moe={experts: 4, capacity_factor: 1.0}"),
    (*RING, "model.attention_dropout=0.1", "model.attention_backend=flex"),
    (*RING, "model.attention_backend=flash_attention_2", "model.attention_soft_cap=30",
     "precision.compute=bf16"),
    (*RING, "compile={scope: model, fullgraph: true}"),
    (*EXPERT, "model={type=huggingface, config=org/theirs}", "parallel.dispatch=deepep"),
    EXPERT,
    (*EXPERT, "model.moe={experts: 4, packed: false}"),
    (*EXPERT, *MOE, "parallel.reshard=2", "compile={fullgraph: true}"),
    (*EXPERT, *MOE, "parallel.dispatch=deepep", "model.moe.gradient_scale=true"),
    (*TENSOR, "loss=import", "loss.target=torch.nn.CrossEntropyLoss",
     "parallel.loss_parallel=true"),
    (*TENSOR, *TABLE, "parallel.sequence_parallel=true", "parallel.loss_parallel=true"),
    ("parallel.world_size=4", "parallel.pipeline=2", "parallel.tensor=2",
     "parallel.sequence_parallel=true"),
    (*TENSOR, "parallel.async_tensor_parallel=true", "parallel.sequence_parallel=false"),
    (*TENSOR, "parallel.async_tensor_parallel=true", "compile.backend=aot_eager"),
    (*TENSOR, "model.attention_dropout=0.1", "parallel.sequence_parallel=false"),
    (*CUT, f"{PIPELINING}=zbv_zero_bubble", f"{FULL}",
     "memory.activation_checkpointing.reentrant=true"),
    (*CUT, f"{PIPELINING}=zbv_zero_bubble", OPERATORS),
    (*CUT, "compile.scope=model"),
    (*CUT, "parallel.pipelining.transfer=fp32", "precision={params: bf16, compute: bf16}"),
    (*CUT, "memory.activation_offload={}"),
    (*BOTH, f"{PIPELINING}=zbv_zero_bubble", "model.tie_embeddings=true"),
    ("model={type=huggingface, config=org/theirs, attention_backend=flex_attention}",
     "parallel.device=cpu"),
    ("model={type=huggingface, config=org/theirs, attention_backend=flash_attention_2}",
     "parallel.device=cpu"),
    ("data.packing.isolate=true", "model.attention_backend=sdpa_flash", "parallel.device=auto"),
    ("model.attention_pattern=[sliding]", "model.sliding_window=8",
     "model.attention_backend=sdpa_flash", "parallel.device=auto"),
    ("model.attention_pattern=[chunked]", "model.attention_chunk=8",
     "model.attention_backend=sdpa_flash", "parallel.device=auto"),
)  # fmt: skip
# Refused on a CPU, and with device = auto where there is no GPU.
WITHOUT_GPU: tuple[tuple[str, ...], ...] = (
    ("resilience.gpu_health={}",),
    ("precision.tf32=true",),
    ("memory.activation_offload={}", "memory.empty_cache=9 steps"),
    ("compile.mode=reduce-overhead", "profiling.snapshot=true"),
    ("tracking.metrics.step_time=device",),
    (*SHARDED, "parallel.sharding.offload=true"),
    (*ZERO, "parallel.engine.offload=optimizer"),
    (*TENSOR, "parallel.async_tensor_parallel=true", "compile={}"),
    ("checkpoint.mode=async_pinned",),
    ("optimizer=sgd", "optimizer.implementation=fused", "precision.params=bf16",
     "precision.compute=bf16"),
    (*EXPERT, *MOE, "parallel.dispatch=deepep", "precision.compute=bf16"),
)  # fmt: skip


def refused(folder: Path, flags: tuple[str, ...]) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        small_job(folder, *flags)
    return caught.value.problems


def is_of(row: Conflict, problem: Problem) -> bool:
    """True if a problem is that of a row."""
    fields = [text.partition(" = ")[0] for text in problem.also]
    # A row about all of `parallel` shows the axes that a job has.
    whole = "parallel" in row.also
    named = (f if f in row.also or not whole else f.partition(".")[0] for f in fields)
    wanted = [*row.also, "parallel.device"] if row.on_cpu else list(row.also)
    begins = problem.message.startswith(row.message.partition("{")[0])
    return problem.path == row.path and list(dict.fromkeys(named)) == wanted and begins


def test_every_row_refuses_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [problem for flags in MET for problem in refused(tmp_path, flags)]
    for flags in WITHOUT_GPU:
        found += refused(tmp_path, (*flags, "parallel.device=cpu"))
    # Only a user's own loss can need hidden states and the whole output matrix.
    monkeypatch.setattr(ChunkedCrossEntropy, "takes_columns", False)
    found += refused(tmp_path, (*TENSOR, "loss=chunked_cross_entropy"))
    never = [(row.path, row.also) for row in CONFLICTS if not any(is_of(row, p) for p in found)]
    assert not never


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        ((*CUT, "compile.scope=graph"), "compile.scope"),
        ((*RING, "compile={scope: graph, fullgraph: true}"), "compile.fullgraph"),
        (("parallel.reshard=3",), "parallel.reshard"),
        (
            (*TENSOR, "parallel.ring=2", "parallel.world_size=4", "batch.sequence_length=18",
             "parallel.sequence_parallel=true"),
            "batch.sequence_length",
        ),
    ],
)  # fmt: skip
def test_what_one_value_puts_right_is_refused_once(
    tmp_path: Path, flags: tuple[str, ...], path: str
) -> None:
    assert [each.path for each in refused(tmp_path, flags)].count(path) == 1


def test_many_fields_that_a_value_is_derived_from_are_shown_by_section(tmp_path: Path) -> None:
    flags = (*CUT[:3], "batch.global_size=2", "batch.micro_size=2")
    without = ("micro_size", "accumulation")
    with pytest.raises(ConfigError) as caught:
        small_job(tmp_path, *flags, without=without)
    (problem,) = (p for p in caught.value.problems if p.path == "batch.accumulation")
    assert problem.origin == "derived from batch.global_size, batch.micro_size, parallel.*"


def test_the_axes_that_a_job_has_are_shown(tmp_path: Path) -> None:
    (problem,) = refused(
        tmp_path, (*RING, "parallel.world_size=4", "parallel.shard=2", "compile.scope=graph")
    )
    assert [each.partition(" (")[0] for each in problem.also] == [
        "parallel.shard = 2", "parallel.ring = 2"
    ]  # fmt: skip
    (problem,) = refused(tmp_path, (*TENSOR, "parallel.expert_tensor=2"))
    assert problem.path == "parallel.expert_tensor"
    assert problem.message == "has no effect: the model has no experts"


@pytest.mark.parametrize("flags", WITHOUT_GPU)
def test_auto_is_refused_where_there_is_no_gpu(
    tmp_path: Path, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {problem.path for problem in refused(tmp_path, (*flags, "parallel.device=cpu"))}
    job = small_job(tmp_path, *flags)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    # A package may be missing as well.
    found = [each for each in verify(job, {"torch"}).problems if each.path in wanted]
    assert wanted == {problem.path for problem in found}
    assert all("parallel.device = 'auto' (default)" in problem.also for problem in found)
