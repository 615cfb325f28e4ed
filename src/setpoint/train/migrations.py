"""What changed between the schemas of a training job; see `setpoint.config.migration`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from setpoint.config import RUNTIME, Added, Converted, Kept, Merged, Operation, Renamed, migration
from setpoint.data.migrations import mixtures, sources_of_many_kinds
from setpoint.units import Length


@migration(to=2)
def cautions() -> Iterable[Operation]:
    """Findings that are legal but suspicious are shown, and can be silenced by name."""
    return [Added("silence", [], role=RUNTIME)]


# What a transformer was before schema 3 gave it a choice.
TRANSFORMER: dict[str, Any] = {
    "ffn_multiplier": 1.0,
    "activation": "swiglu",
    "ffn_bias": False,
    "positions": "rotary",
    "rope_base_sliding": None,
    "rope_scaling": None,
    "attention_pattern": ["full"],
    "sliding_window": None,
    "attention_scale": None,
    "attention_soft_cap": None,
    "logit_soft_cap": None,
    "qk_norm": False,
    "qkv_bias": False,
    "attention_output_bias": False,
    "merge_qkv": False,
    "mla": None,
    "moe": None,
    "norm": {"type": "rms_norm", "zero_centered": False},
    "norm_placement": "pre",
    "residual_init": "depth_scaled",
    "mup": None,
    "vocab_size": None,
    "vocab_multiple_of": 1,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "attention_dropout": 0.0,
    "embedding_dropout": 0.0,
}
CROSS_ENTROPY: dict[str, Any] = {
    "ignore_index": None,
    "token_weights": None,
    "label_smoothing": 0.0,
}


@migration(to=3)
def architectures() -> Iterable[Operation]:
    """Models, losses and experts have many forms; pretrained weights can be started from."""
    fields = [Added(f"model.{name}", old, of="transformer") for name, old in TRANSFORMER.items()]
    fields += [
        Added(f"loss.{name}", old, of="cross_entropy") for name, old in CROSS_ENTROPY.items()
    ]
    backend = Added("model.attention_backend", "auto", role=RUNTIME, of="transformer")
    return [Added("model.pretrained", None), backend, *fields]


# What trained a run before schema 4 gave it a choice.
OPTIMIZER: dict[str, Any] = {
    "no_decay": ["norm", "bias", "vector"],
    "no_decay_patterns": [],
    "groups": [],
    "clip_value": None,
}
PRECISION: dict[str, Any] = {
    "params": "fp32",
    "reduce": None,
    "master": None,
    "optimizer_state": None,
    "float8": None,
    "loss_scale": None,
}
BEST = {"data": "held_out", "metric": "loss", "direction": "min"}
EVALUATION: dict[str, Any] = {
    "datasets": [],
    "before_training": False,
    "accuracy": False,
    "best": BEST,
    "early_stopping": None,
}
MEMORY = {
    "activation_checkpointing": None,
    "activation_offload": None,
    "optimizer_offload": None,
    "empty_cache": "never",
}


@migration(to=4)
def training() -> Iterable[Operation]:
    """Optimizers, schedules, formats and evaluations vary; memory, compile and profiles are new."""
    fields = [Added(f"optimizer.{name}", old) for name, old in OPTIMIZER.items()]
    fields += [
        Added("optimizer.amsgrad", False, of="adamw"),
        Added("optimizer.implementation", "auto", role=RUNTIME, of="adamw"),
    ]
    for tag in ("constant", "cosine"):
        fields += [
            Added("schedule.warmup_from", 0.0, of=tag),
            Added("schedule.by", "step", of=tag),
        ]
    fields += [Added(f"precision.{name}", old) for name, old in PRECISION.items()]
    fields += [Added(f"evaluation.{n}", old, role=RUNTIME) for n, old in EVALUATION.items()]
    fields += [
        Added("tracking.flops", "palm", role=RUNTIME),
        Added("tracking.peak_flops", None, role=RUNTIME),
        Added("memory", MEMORY, role=RUNTIME),
        Added("compile", None, role=RUNTIME),
        Added("profiling", None, role=RUNTIME),
        Added("resilience", {"gc": None}, role=RUNTIME),
    ]
    return fields


def _steps(count: Any) -> Any:
    return f"{count} steps" if type(count) is int else count


def _length_of_phase(steps: int | None, share: float | None) -> str | None:
    if share is not None:
        return str(Length.of_share(share))
    return None if steps is None else f"{steps} steps"


def _not_the_duration(data: dict[str, Any]) -> bool:
    """Whether a horizon is another than what is derived today, the duration in its own unit."""
    return data["schedule"]["horizon"] not in (None, data["duration"])


@migration(to=5)
def first_week() -> Iterable[Operation]:
    """Schedules run over any unit, held-out text has sources, runs answer signals within a time."""
    return [
        Added("data.validation", []),
        Added("resilience.grace_period", 120.0, role=RUNTIME),
        Added("checkpoint.at_start", True, role=RUNTIME),
        Added("checkpoint.last", "full", role=RUNTIME),
        Renamed("schedule.horizon_steps", "schedule.horizon", convert=_steps),
        Kept("schedule.horizon", _not_the_duration),
        Renamed("schedule.warmup_steps", "schedule.warmup", convert=_steps),
        Renamed("schedule.decay_steps", "schedule.decay_length", of="wsd", convert=_steps),
        Converted("schedule.timescale", _steps, "", of="inverse_sqrt"),
        Merged(
            ("schedule.phases.*.steps", "schedule.phases.*.share"),
            "schedule.phases.*.length",
            _length_of_phase,
            (None, None),
        ),
        *(
            Added("schedule.horizon", None, derived=True, of=tag)
            for tag in ("constant", "inverse_sqrt", "plateau")
        ),
    ]


@migration(to=6)
def speed_of_a_step() -> Iterable[Operation]:
    """Freed CPU memory stays in the process; experts are balanced over a size of their own."""
    return [
        Added("memory.keep_freed", False, role=RUNTIME),
        Added("model.moe.load_sequences", None),
    ]


# Codes of cautions with another name since schema 7.
CODES = {"judged-but-not-saved": "evaluated-but-not-saved"}


def _codes(silenced: Any) -> Any:
    if not isinstance(silenced, list):
        return silenced
    return [CODES.get(code, code) for code in silenced]


# The lists of a job that hold sources.
SOURCES = ("data.sources", "data.validation", "evaluation.datasets.*.sources")


SHARDING = {"units": [], "layers_per_unit": 1, "forward_prefetch": None,
            "backward_prefetch": None, "offload": False}  # fmt: skip
RANKS = {"replicate": None, "shard": 1, "pipeline": 1, "tensor": 1, "ring": 1, "ulysses": 1,
         "ring_split": "zigzag", "context_in_shard": "all", "expert": 1, "expert_tensor": 1,
         "expert_outside": False, "dispatch": {"type": "all_to_all"}, "sequence_parallel": False,
         "engine": {"type": "torch"},
         "loss_parallel": None, "reshard": None, "timeout": 600.0,
         "sharding": SHARDING, "bucket_size": 25.0, "init_device": "device",
         "read_weights": "every_rank",
         "step_timeout": 300.0, "backend": None, "torchft": None,
         "pipelining": {"schedule": "1f1b", "stages_per_rank": None, "split": None}}  # fmt: skip

SAVES = {"mode": "sync", "in_flight": 1, "wait_timeout": None, "at": None, "last_dtype": None,
         "keep_every": None, "write": True, "frozen": True}  # fmt: skip

HEALTH: dict[str, Any] = {
    "spike": None,
    "bad_batches": 4,
    "time_limit": "never",
    "deadline": "auto",
    "stop_file": "STOP",
    "stragglers": None,
    "gpu_health": None,
}


METRICS = {"step_time": "host", "memory": True, "ema": None, "grad_norms": [],
           "param_norms": [], "update_ratios": []}  # fmt: skip


@migration(to=7)
def plain_names() -> Iterable[Operation]:
    """Names are plain, steps that are not finite may be passed over; data has more forms."""
    return [
        *sources_of_many_kinds(*SOURCES),
        Renamed("schedule.judged_on", "schedule.evaluated_on", of="plateau"),
        Converted("silence", _codes, ""),
        Added("adapter", None),
        Added("model.adapters", [], of="transformer"),
        Added("optimizer.frozen", []),
        Added("optimizer.frozen_spans", []),
        Added("resilience.non_finite", {"type": "fail"}, role=RUNTIME),
        *mixtures(*SOURCES),
        *(Added(f"parallel.{name}", value, role=RUNTIME) for name, value in RANKS.items()),
        Added("checkpoint.remote", None, role=RUNTIME),
        *(Added(f"resilience.{name}", old, role=RUNTIME) for name, old in HEALTH.items()),
        Added("resilience.heartbeat", None, role=RUNTIME),
        Added("resilience.liveness_every", "never", role=RUNTIME),
        Added("checkpoint.load", None),
        Added("checkpoint.exclude", []),
        Added("checkpoint.division", "any", role=RUNTIME),
        *(Added(f"checkpoint.{name}", value, role=RUNTIME) for name, value in SAVES.items()),
        Added("tracking.report", False, role=RUNTIME),
        Added("tracking.metrics", METRICS, role=RUNTIME),
        Added("tracking.system", None, role=RUNTIME),
        Added("tracking.prometheus", None, role=RUNTIME),
        Added("tracking.alerts", [], role=RUNTIME),
        Added("compile.artifacts", None, role=RUNTIME),
        Added("compile.optimize_ddp", True, role=RUNTIME),
    ]
