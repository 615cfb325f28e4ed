"""What `train.h200` measures: each cell is a job, as changes of a preset."""

from __future__ import annotations

from setpoint.config.composition import compose
from setpoint.train.config import Job

# 8 sequences of 4,096 tokens in an update, of text that can be learnt.
COMMON = (
    "tokenizer=bytes",
    "data.sources=[{type=random, documents=8192, length=1024}]",
    "batch.sequence_length=4096",
    "batch.global_size=8",
    "model.max_sequence_length=4096",
    "optimizer.clip_norm=1.0",
    "checkpoint.every=never",
    "evaluation=null",
    "tracking.every=10 steps",
    "tracking.progress=none",
)
PURE = ("precision.params=bf16", "precision.compute=bf16")
AUTOCAST = ("precision.params=fp32", "precision.compute=bf16")
MASTER = (*PURE, "precision.master=fp32")
FULL = "memory.activation_checkpointing=full"
OPERATORS = "memory.activation_checkpointing=operators"
COMPILED = "compile.scope=block"
CHUNKED = "loss=chunked_cross_entropy"
# By name: the preset, sequences in a micro-batch, and what is changed. The first is the shape of
# the published figure: 10,471 tokens/s (KempnerForge, 2026, one H200, full checkpointing).
CELLS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "8b-full": ("llama3-8b", 2, (*PURE, FULL, COMPILED)),
    "8b-full-chunked": ("llama3-8b", 4, (*PURE, FULL, COMPILED, CHUNKED)),
    "8b-operators": ("llama3-8b", 2, (*PURE, OPERATORS, COMPILED, CHUNKED)),
    "8b-none": ("llama3-8b", 1, (*PURE, COMPILED, CHUNKED)),
    "8b-full-eager": ("llama3-8b", 2, (*PURE, FULL, CHUNKED)),
    "1b-autocast": ("llama3-1b", 4, (*AUTOCAST, COMPILED, CHUNKED)),
    "1b-master": ("llama3-1b", 4, (*MASTER, COMPILED, CHUNKED)),
    "1b-autocast-eager": ("llama3-1b", 4, (*AUTOCAST, CHUNKED)),
}
# The same cells on a CPU in a second, to see that they run.
SMALL = (
    "model.dim=32",
    "model.layers=2",
    "model.heads=4",
    "model.kv_heads=2",
    "model.ffn_dim=64",
    "model.vocab_size=320",
    "batch.sequence_length=32",
    "model.max_sequence_length=32",
    "data.sources=[{type=random, documents=256, length=256}]",
    "parallel.device=cpu",
)


def job_of(cell: str, updates: int, small: bool = False) -> Job:
    """Resolve the job of a cell.

    Arguments:
        cell: one of `CELLS`.
        updates: how many there are.
        small: whether it is to run on a CPU in a second.

    Returns:
        the job.
    """
    preset, micro, changes = CELLS[cell]
    given = [*COMMON, f"batch.micro_size={micro}", f"duration={updates} steps", *changes]
    if small:
        given += SMALL
        if COMPILED in changes:
            given.append("compile.backend=eager")
    return compose(Job, preset, flags=[f"--{flag}" for flag in given]).resolve()
