"""What `gpu.bench` measures: each case is a job, as changes of a preset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from setpoint.config.composition import compose
from setpoint.model.config import TransformerConfig
from setpoint.train.config import Job

Values = Mapping[str, Any]

CHUNK = 5
"""Steps between two rows of metrics: what is timed."""
PROFILED = 2
"""Steps in the profile, amid a chunk of their own."""
PURE = {"precision": {"params": "bf16", "compute": "bf16"}}
AUTOCAST = {"precision": {"params": "fp32", "compute": "bf16"}}
COMPILED = {"compile": {"scope": "block"}, "loss": {"type": "chunked_cross_entropy"}}
FULL = {"memory": {"activation_checkpointing": {"type": "full"}}}
PACKED = {"data": {"packing": {"method": "first_fit_decreasing"}}}


class Case(NamedTuple):
    """A job and how long it is measured.

    Arguments:
        meaning: for the reader of the table.
        changes: of the preset, layer by layer.
        micro: sequences in a micro-batch.
        accumulation: micro-batches in a step.
        chunks: timed ones, after one that warms up.
        beside: whether a bare loop runs the same.
    """

    preset: str
    meaning: str
    changes: Sequence[Values]
    micro: int
    accumulation: int
    chunks: int = 2
    beside: bool = True

    @property
    def timed(self) -> int:
        """The last step that is timed."""
        return (1 + self.chunks) * CHUNK

    @property
    def steps(self) -> int:
        """All of them: what warms up, what is timed, and the chunk of the profile."""
        return self.timed + CHUNK


def _float8(precision: Values) -> Values:
    return {"precision": {**precision["precision"], "float8": {"recipe": "tensorwise"}}}


EXPERTS = {"model": {"layers": 4, "moe": {"experts": 64}}}
CASES = {
    "1b": Case("llama3-1b", "autocast over fp32 weights", (AUTOCAST, COMPILED), 4, 2),
    "8b": Case(
        "llama3-8b",
        "all layers; weights, gradients and AdamW's moments in bf16 (60 GiB); full recompute",
        (PURE, COMPILED, FULL), 2, 1, chunks=1,
    ),
    "1b-float8": Case("llama3-1b", "as 1b, tensorwise", (_float8(AUTOCAST), COMPILED), 4, 2),
    "8b-float8": Case(
        "llama3-8b", "as 8b, tensorwise", (_float8(PURE), COMPILED, FULL), 2, 1, 1, beside=False
    ),
    "1b-packed": Case(
        "llama3-1b", "as 1b, rows of isolated documents", (AUTOCAST, COMPILED, PACKED), 4, 2,
        beside=False,
    ),
    "moe": Case(
        "qwen3-30b-a3b", "4 of 48 layers, 64 of 128 experts, 8 a token",
        (AUTOCAST, EXPERTS, COMPILED), 4, 2,
    ),
    "moe-eager": Case(
        "qwen3-30b-a3b", "as moe, without the compiler",
        (AUTOCAST, EXPERTS, COMPILED, {"compile": None}), 4, 2, 1, beside=False,
    ),
}  # fmt: skip
"""By name, the most telling first: where time is over, the others are left out."""
SMALL = {
    "model": {
        "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "vocab_size": 320,
        "max_sequence_length": 32,
    },
    "batch": {"sequence_length": 32},
    "data": {"loader": {"workers": 0}},
    "compile": None,
}  # fmt: skip
SMALL_DENSE = {"model": {"ffn_dim": 64}}
SMALL_EXPERTS = {"model": {"head_dim": 8, "moe": {"experts": 4, "top_k": 2, "expert_dim": 32}}}
LENGTH = 4096


def values_of(
    name: str, device: str, tokens: Path, workspace: Path, peak: float | None, small: bool
) -> dict[str, Any]:
    """The configuration of a case, as a file may hold it."""
    case = CASES[name]
    values: dict[str, Any] = {
        "extends": case.preset,
        "name": name,
        "experiment": None,
        "workspace": str(workspace),
        "duration": f"{case.steps} steps",
        "tokenizer": {"type": "bytes"},
        "data": {"sources": [{"type": "tokens", "paths": [str(tokens)]}]},
        "model": {"max_sequence_length": LENGTH},
        "batch": {
            "sequence_length": LENGTH,
            "micro_size": case.micro,
            "global_size": case.micro * case.accumulation,
        },
        "evaluation": None,
        "checkpoint": {"save": False, "mode": "sync"},
        "memory": {"activation_checkpointing": None},
        "tracking": {
            "every": f"{CHUNK} steps", "progress": "none", "report": False, "peak_flops": peak,
        },
        # The first step of the chunk is neither timed nor profiled, as the profiler starts in it.
        "profiling": {
            "skip": case.timed + 1, "wait": 0, "warmup": 1, "active": PROFILED, "top": 0,
        },
        "parallel": {"device": device},
    }  # fmt: skip
    for change in case.changes:
        merge(values, change)
    if small:
        merge(values, SMALL)
        merge(values, SMALL_EXPERTS if EXPERTS in case.changes else SMALL_DENSE)
        if "float8" in name:
            merge(values, {"precision": {"float8": {"emulate": True}}})
    return values


def merge(values: dict[str, Any], change: Values) -> None:
    """Put values over those of a mapping, section by section."""
    for key, value in change.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            merge(values[key], value)
        else:
            values[key] = dict(value) if isinstance(value, Mapping) else value


def resolved(file: Path) -> Job:
    """The job of a file."""
    return compose(Job, str(file)).resolve()


def shape_of(job: Job, name: str, device: str) -> dict[str, Any]:
    """What the bare loop is told: sizes, and no word of Setpoint."""
    model, case = job.model, CASES[name]
    assert isinstance(model, TransformerConfig)
    moe = model.moe
    return {
        "device": device,
        "vocab_size": model.vocab_size,
        "dim": model.dim,
        "layers": model.layers,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn_dim": model.ffn_dim,
        "qk_norm": model.qk_norm,
        "tied": model.tie_embeddings,
        "eps": model.norm_eps,
        "base": model.rope_base,
        "experts": 0 if moe is None else moe.experts,
        "top_k": 0 if moe is None else moe.top_k,
        "expert_dim": 0 if moe is None else moe.width(model.ffn_dim),
        "length": job.batch.sequence_length,
        "micro": case.micro,
        "accumulation": case.accumulation,
        "params": job.precision.params,
        "float8": job.precision.float8 is not None,
        "compile": job.compile is not None,
        "recompute": FULL in case.changes,
        "chunk": CHUNK,
        "timed": case.timed,
        "profiled": PROFILED,
    }


def flops_per_token(shape: Mapping[str, Any]) -> float:
    """Operations to train on a token (PaLM, appendix B): 6 N + 12 L H Q S."""
    s = shape
    heads, width = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    attention = s["dim"] * (2 * heads + 2 * width)
    if s["experts"]:
        inner = s["top_k"] * 3 * s["dim"] * s["expert_dim"] + s["dim"] * s["experts"]
    else:
        inner = 3 * s["dim"] * s["ffn_dim"]
    products = s["layers"] * (attention + inner) + s["dim"] * s["vocab_size"]
    return 6 * products + 12 * s["layers"] * heads * s["length"]
