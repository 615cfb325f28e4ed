"""Expected throughput beside what others have published: `python -m plan.published`.

Each row is a run that its authors describe: model, GPUs, degrees, batch, recomputation. Predicted
is what `check --plan --gpu` would say, with the assumptions of `gpus.toml`, which are one set
for each generation of GPUs. `--write` puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from harness import DOCS, options, write_block
from setpoint.config.composition import compose
from setpoint.plan.gpus import gpu_named
from setpoint.plan.part_time import Kernels
from setpoint.plan.step_time import StepTime, palm_flops, step_time
from setpoint.plan.topology import Topology
from setpoint.plan.workload import Workload
from setpoint.train.config import Job

OWN = Path(__file__).with_name("published.toml")
"""GPUs of the published runs that are not those of the table."""


class Run(NamedTuple):
    """A run that was published.

    Arguments:
        gpu: a GPU of the table, or of `published.toml`.
        flags: beside those of `BASE`.
        figure: tokens per second and GPU, or TFLOP/s of a GPU.
        flops: FLOPs of a token as the authors count them, where they give TFLOP/s.
        reduce: bytes of a number in which gradients are reduced.
        changes: of the topology, where the authors' system does what a job here would refuse.
        fitted: whether the assumptions of its generation were chosen on it.
    """

    name: str
    source: str
    gpu: str
    ranks: int
    preset: str
    flags: tuple[str, ...]
    figure: float
    flops: Callable[[Workload], float] | None = None
    compiled: bool = False
    float8: bool = False
    reduce: int = 4
    changes: Mapping[str, Any] = MappingProxyType({})
    fitted: bool = False


BASE = (
    "parallel.device=cuda", "evaluation=null", "loss=cross_entropy",
    "memory.activation_checkpointing=null", "precision.params=bf16", "precision.compute=bf16",
    "precision.master=fp32", "duration=100 steps",
)  # fmt: skip
SELECTIVE = (
    "memory.activation_checkpointing.type=operators",
    "memory.activation_checkpointing.matmul_every=2",
)
FULL = ("memory.activation_checkpointing.type=full",)


def llama(
    layers: int, dim: int, heads: int, ffn: int, kv: int = 8, vocab: int = 128_256
) -> tuple[str, ...]:
    """A model of the Llama family."""
    return (
        f"model.layers={layers}", f"model.dim={dim}", f"model.heads={heads}",
        f"model.kv_heads={kv}", f"model.ffn_dim={ffn}", f"model.vocab_size={vocab}",
    )  # fmt: skip


def gpt(layers: int, dim: int, heads: int, vocab: int, length: int) -> tuple[str, ...]:
    """A model of the GPT family."""
    return (
        f"model.layers={layers}", f"model.dim={dim}", f"model.heads={heads}",
        f"model.ffn_dim={4 * dim}", f"model.vocab_size={vocab}", "model.dropout=0",
        "model.attention_dropout=0", "model.embedding_dropout=0",
        f"model.max_sequence_length={length}", f"batch.sequence_length={length}",
    )  # fmt: skip


def narayanan(w: Workload) -> float:
    """FLOPs of a token with recomputation: Narayanan et al., 2021, section 5.1."""
    h, s, v, n = w.dim, w.length, w.rows, w.layers
    return 96 * n * h * h * (1 + s / (6 * h) + v / (16 * n * h))


def korthikanti(w: Workload) -> float:
    """FLOPs of a token without recomputation: Korthikanti et al., 2022, appendix A."""
    h, s, v, n = w.dim, w.length, w.rows, w.layers
    return 72 * n * h * h * (1 + s / (6 * h) + v / (12 * n * h))


def batch(each: int, count: int, ranks: int, length: int) -> tuple[str, ...]:
    """Sequences of a micro-batch, micro-batches, and ranks that read different data."""
    return (
        f"batch.micro_size={each}", f"batch.accumulation={count}",
        f"batch.global_size={each * count * ranks}", f"batch.sequence_length={length}",
    )  # fmt: skip


def axes(**degrees: int) -> tuple[str, ...]:
    """Degrees of the axes."""
    return tuple(f"parallel.{axis}={degree}" for axis, degree in degrees.items())


SEQUENCE = ("parallel.sequence_parallel=true",)
DIVIDED = {"sequence_parallel": True}
"""Stages that hand on the tokens that sequence parallelism leaves to each rank."""
LLAMA_STAGES = {**DIVIDED, "stages_per_rank": 8}
"""One layer a stage, and stages of the embedding and of the output alone (section 3.3.2)."""
TITAN = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md (as many micro-batches as stages)"
FOUNDRY = "llm-foundry, scripts/train/benchmarking/README.md"
LLAMA3 = "The Llama 3 Herd of Models, 2024, table 4 (FLOPs as those of PaLM)"
FORGE = "KempnerForge, benchmarks/mfu_scaling"
FMS = "fms-fsdp, README.md"
MEGATRON = "Narayanan et al., 2021, table 1 (FLOPs of section 5.1, with recomputation)"
SELECTED = "Korthikanti et al., 2022, abstract (FLOPs of appendix A)"
L405 = llama(126, 16384, 128, 53248)
MPT7, MPT30, MPT70 = (gpt(32, 4096, 32, 50432, 2048), gpt(48, 7168, 56, 50432, 2048),
                      gpt(80, 8192, 64, 50432, 2048))  # fmt: skip

RUNS = (
    Run("Llama 3.1 8B, FSDP 8", TITAN, "h100-500w", 8, "llama3-8b",
        (*axes(shard=8), *batch(2, 1, 8, 8192), *SELECTIVE), 5762),
    Run("Llama 3.1 8B, FSDP 8, compiled", TITAN, "h100-500w", 8, "llama3-8b",
        (*axes(shard=8), *batch(2, 1, 8, 8192), *SELECTIVE), 6667, compiled=True),
    Run("Llama 3.1 8B, FSDP 8, compiled, float8", TITAN, "h100-500w", 8, "llama3-8b",
        (*axes(shard=8), *batch(2, 1, 8, 8192), *SELECTIVE), 8532, compiled=True,
        float8=True),
    Run("Llama 3.1 8B, FSDP 128, compiled", TITAN, "h100-500w", 128, "llama3-8b",
        (*axes(shard=128), *batch(2, 1, 128, 8192), *SELECTIVE), 6514, compiled=True),
    Run("Llama 3.1 70B, FSDP 32, TP 8, compiled, float8", TITAN, "h100-500w", 256, "llama3-70b",
        (*axes(shard=32, tensor=8), *SEQUENCE, *batch(16, 1, 32, 8192), *FULL), 829,
        compiled=True, float8=True),
    Run("Llama 3.1 405B, FSDP 8, TP 8, PP 8, compiled, float8, async TP", TITAN, "h100-500w",
        512, "llama3-70b",
        (*L405, *axes(shard=8, tensor=8, pipeline=8), *batch(4, 8, 8, 8192), *FULL), 100,
        compiled=True, float8=True, changes=DIVIDED),
    Run("Llama 3.1 405B, the same, interleaved", TITAN, "h100-500w",
        512, "llama3-70b",
        (*L405, *axes(shard=8, tensor=8, pipeline=8), *batch(4, 8, 8, 8192), *FULL,
         "parallel.pipelining.schedule=interleaved_1f1b"), 128, compiled=True, float8=True,
        changes=DIVIDED),
    Run("Llama 3.1 405B, 32,768 tokens, FSDP 8, TP 8, PP 8", TITAN, "h100-500w", 512, "llama3-70b",
        (*L405, *axes(shard=8, tensor=8, pipeline=8), *batch(1, 8, 8, 32768), *FULL), 76,
        compiled=True, float8=True, changes=DIVIDED),
    Run("Llama 3.1 405B, 131,072 tokens, FSDP 2, CP 4, TP 8, PP 8", TITAN, "h100-500w", 512,
        "llama3-70b",
        (*L405, *axes(shard=2, ring=4, tensor=8, pipeline=8), *batch(1, 8, 2, 131072), *FULL), 31,
        compiled=True, float8=True, changes=DIVIDED),
    Run("Llama 3.1 8B, 32,768 tokens, FSDP 8", TITAN, "h100-500w", 8, "llama3-8b",
        (*axes(shard=8), *batch(1, 1, 8, 32768), *FULL), 3890, compiled=True, float8=True),
    Run("Llama 3.1 8B, 131,072 tokens, FSDP 2, CP 4", TITAN, "h100-500w", 8, "llama3-8b",
        (*axes(shard=2, ring=4), *batch(1, 1, 2, 131072), *FULL), 1071, compiled=True,
        float8=True),
    Run("Llama 3.1 405B, FSDP 64, TP 8, PP 16", LLAMA3, "h100-roce", 8192, "llama3-70b",
        (*L405, *axes(shard=64, tensor=8, pipeline=16), *batch(1, 32, 64, 8192),
         "parallel.pipelining.schedule=interleaved_1f1b"), 430, palm_flops, True,
        changes=LLAMA_STAGES, fitted=True),
    Run("Llama 3.1 405B, FSDP 128, TP 8, PP 16", LLAMA3, "h100-roce", 16384,
        "llama3-70b",
        (*L405, *axes(shard=128, tensor=8, pipeline=16), *batch(1, 16, 128, 8192),
         "parallel.pipelining.schedule=interleaved_1f1b"), 400, palm_flops, True,
        changes=LLAMA_STAGES),
    Run("Llama 3.1 405B, 131,072 tokens, FSDP 8, TP 8, CP 16, PP 16", LLAMA3,
        "h100-roce", 16384, "llama3-70b",
        (*L405, *axes(shard=8, tensor=8, ring=16, pipeline=16), *batch(1, 16, 8, 131072),
         "parallel.pipelining.schedule=interleaved_1f1b"), 380, palm_flops, True,
        changes=LLAMA_STAGES),
    Run("MPT 7B, FSDP 8", FOUNDRY, "h100", 8, "gpt2",
        (*MPT7, *axes(shard=8), *batch(6, 1, 8, 2048)), 10643),
    Run("MPT 30B, FSDP 32", FOUNDRY, "h100", 32, "gpt2",
        (*MPT30, *axes(shard=32), *batch(14, 3, 32, 2048), *FULL), 2308, fitted=True),
    Run("MPT 70B, FSDP 64", FOUNDRY, "h100", 64, "gpt2",
        (*MPT70, *axes(shard=64), *batch(8, 4, 64, 2048), *FULL), 1039),
    Run("Llama 3.1 8B, one GPU, pure bf16, compiled", FORGE, "h200",
        1, "llama3-8b",
        (*batch(4, 2, 1, 4096), *FULL, "precision.master=null"), 10471,
        compiled=True, reduce=2),
    Run("MPT 7B, FSDP 8", FOUNDRY, "a100-roce", 8, "gpt2",
        (*MPT7, *axes(shard=8), *batch(6, 2, 8, 2048)), 4641),
    Run("MPT 30B, FSDP 8", FOUNDRY, "a100-roce", 8, "gpt2",
        (*MPT30, *axes(shard=8), *batch(3, 21, 8, 2048), *FULL), 916, fitted=True),
    Run("MPT 70B, FSDP 64", FOUNDRY, "a100-roce", 64, "gpt2",
        (*MPT70, *axes(shard=64), *batch(8, 4, 64, 2048), *FULL), 410, reduce=2),
    Run("Llama 2 7B, HSDP 8 x 16", FMS, "a100", 128, "llama3-8b",
        (*llama(32, 4096, 32, 11008, 32, 32000), *axes(shard=8, replicate=16),
         *batch(2, 1, 128, 4096)), 3760, compiled=True),
    Run("GPT 145.6B, TP 8, PP 8", MEGATRON, "a100", 1536, "gpt2",
        (*gpt(80, 12288, 96, 51200, 2048), *axes(tensor=8, pipeline=8, replicate=24),
         *batch(1, 96, 24, 2048), *FULL), 148, narayanan),
    Run("GPT 529.6B, TP 8, PP 35", MEGATRON, "a100", 2520, "gpt2",
        (*gpt(105, 20480, 128, 51200, 2048), *axes(tensor=8, pipeline=35, replicate=9),
         *batch(1, 280, 9, 2048), *FULL), 163, narayanan, fitted=True),
    Run("GPT 1,008B, TP 8, PP 64", MEGATRON, "a100", 3072, "gpt2",
        (*gpt(128, 25600, 160, 51200, 2048), *axes(tensor=8, pipeline=64, replicate=6),
         *batch(1, 512, 6, 2048), *FULL), 163, narayanan),
    Run("GPT 529.6B, TP 8 with SP, PP 35, interleaved",
        SELECTED, "a100", 2240, "gpt2",
        (*gpt(105, 20480, 128, 51200, 2048), *axes(tensor=8, pipeline=35, replicate=8),
         *batch(1, 280, 8, 2048), "parallel.pipelining.schedule=interleaved_1f1b",
         "parallel.pipelining.stages_per_rank=3"), 0.542 * 312, korthikanti,
        changes=DIVIDED),
)  # fmt: skip


class Compared(NamedTuple):
    """A run with what is expected of it, in the unit of its authors."""

    run: Run
    time: StepTime
    predicted: float

    @property
    def ratio(self) -> float:
        """Predicted by published."""
        return self.predicted / self.run.figure


def compared(run: Run) -> Compared:
    """Predict a run."""
    float8 = ("parallel.device=cuda", "precision.float8={}") if run.float8 else ()
    flags = [*BASE, *run.flags, *float8, f"parallel.world_size={run.ranks}"]
    job = compose(Job, run.preset, flags=flags).resolve()
    workload = Workload.of(job)
    workload = workload._replace(formats=workload.formats._replace(reduce=run.reduce))
    gpu, network = gpu_named(run.gpu, str(OWN))
    kernels = Kernels(run.compiled)
    topology = Topology.of(job)._replace(**run.changes)
    time = step_time(workload, topology, gpu, network, kernels)
    each = time.tokens_per_second / run.ranks
    predicted = each if run.flops is None else each * run.flops(workload) / 1e12
    return Compared(run, time, predicted)


def main(given: list[str] | None = None) -> int:
    """Print all runs."""
    chosen = options(__doc__, given, runs="", parts=False)
    rows = [compared(run) for run in RUNS if chosen.runs in run.name]
    lines = table(rows)
    print("\n".join(lines))
    if chosen.parts:
        for row in rows:
            whole = row.time.seconds
            parts = ", ".join(f"{name} {each / whole:.1%}" for name, each in row.time.parts.items())
            print(f"{row.run.name} ({row.run.gpu}): {whole:.3f} s; {parts}")
    if chosen.write:
        write_block(DOCS / "benchmarks.md", "plan.published", lines)
    return 0


def table(rows: list[Compared]) -> list[str]:
    """The rows as a table of Markdown."""
    sources = list(dict.fromkeys(row.run.source for row in rows))
    lines = ["| run | GPUs | published | predicted | ratio | source |", "|---|---|---|---|---|---|"]
    for row in rows:
        unit = "tokens/s" if row.run.flops is None else "TFLOP/s"
        fitted = ", chosen on it" if row.run.fitted else ""
        lines.append(
            f"| {row.run.name} | {row.run.ranks:,} {row.run.gpu.partition('-')[0].upper()} | "
            f"{row.run.figure:,.0f} {unit} | {row.predicted:,.0f} | {row.ratio:.2f}{fitted} | "
            f"{sources.index(row.run.source) + 1} |"
        )
    lines += ["", "Sources:", ""]
    return lines + [f"{number}. {source}" for number, source in enumerate(sources, 1)]


if __name__ == "__main__":
    sys.exit(main())
