"""Rows of the table of effects: the fields of the section `compile`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

from setpoint.compile.apply import CACHE
from setpoint.compile.internals import dynamo_config
from setpoint.compile.watch import Watch
from setpoint.config.values.user_code import allow_imports
from setpoint.track.jsonl import NoEvents
from setpoint.track.progress import Progress
from setpoint.train.build.components import Components, build_components
from setpoint.train.callbacks.profile import watch_compiler
from setpoint.train.config import Job
from setpoint.train.opening import settings_of
from setpoint.train.run import train


class Printing(torch.nn.Module):
    """A model of the user's own that prints, which no graph can hold."""

    def __init__(self, vocab_size: int, dropout: float) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(vocab_size, vocab_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up logits."""
        logits = self.table(tokens)
        print(end="")
        return logits * 2


def called(job: Job) -> tuple[Components, Watch | None]:
    """The parts after one call of the model, and what tells of compiling."""
    components = build_components(job)
    watch = None if components.compiled is None else Watch(components.compiled, 0)
    components.model(torch.arange(64, 80)[None])
    return components, watch


def graphs(job: Job) -> int:
    """How many graphs two layers became."""
    _, watch = called(job)
    return 0 if watch is None else watch.news().graphs


def operations(job: Job) -> int:
    """How many operations the graph holds that was compiled last."""
    called(job)
    return get_compilation_metrics()[-1].graph_op_count or 0


def backward_graphs(job: Job) -> bool:
    """Whether the backend compiles the backward pass, as aot_eager does and eager does not."""
    components, _ = called(job)
    clear_compilation_metrics()
    components.model(torch.arange(64, 80)[None]).sum().backward()
    return any(record.is_forward is False for record in get_compilation_metrics())


def graphs_of_three_sizes(job: Job) -> int:
    """How many graphs three lengths of sequences became."""
    components, watch = called(job)
    assert watch is not None
    for length in (8, 12):
        components.model(torch.arange(64, 64 + length)[None])
    return watch.news().graphs


def fallbacks(job: Job) -> int:
    """What ran as it is written after three lengths of sequences."""
    with settings_of(job):
        components, watch = called(job)
        assert watch is not None
        for length in (8, 12):
            components.model(torch.arange(64, 64 + length)[None])
        return len(watch.news().fallbacks)


def asked(job: Job) -> list[dict[str, Any]]:
    """What torch.compile is asked for."""
    seen: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda function, **rest: seen.append(rest) or function)
        build_components(job)
    return seen


def folder(job: Job) -> str | None:
    """Where inductor keeps its code."""
    with settings_of(job):
        found = os.environ.get(CACHE)
    return found and os.path.basename(found)


def kept(job: Job) -> str | None:
    """Where the artifacts of a run are kept."""
    found = watch_compiler(job, build_components(job), NoEvents(), Progress()).artifacts
    return found and found.path.parent.name


def ends_at_buckets(job: Job) -> Any:
    """Whether graphs end where a bucket of DDP does."""
    with settings_of(job):
        return dynamo_config().optimize_ddp


def status(job: Job) -> int:
    """How a run ends."""
    return train(job).status


allow_imports(__name__)
See = Callable[[Job], Any]
# The last of two layers alike is compiled with the first.
COMPILED = ("compile={}", "compile.backend=eager", "model.layers=2")
FIXED = (*COMPILED, "compile.dynamic=false")
INDUCTOR = ("compile={}",)
PRINTING = (
    "model=import",
    f"model.target={__name__}.Printing",
    "compile={backend: eager, scope: model}",
    "evaluation=null",
)
RANKS = ("compile={}", "parallel.world_size=2", "batch.accumulation=1")
# By the name of a field: the change, where it is seen, what is set on both sides, what it gives.
ROWS: dict[str, tuple[str, See, tuple[str, ...], Any]] = {
    "Job.compile": ("compile={backend: eager}", graphs, (), 1),
    "Compile.scope": ("compile.scope=model", operations, COMPILED, None),
    "Compile.backend": ("compile.backend=aot_eager", backward_graphs, COMPILED, True),
    "Compile.mode": ("compile.mode=max-autotune", asked, INDUCTOR, None),
    "Compile.options": ("compile.options.epilogue_fusion=false", asked, INDUCTOR, None),
    "Compile.fullgraph": ("compile.fullgraph=true", status, PRINTING, "refused: RunError"),
    "Compile.dynamic": ("compile.dynamic=false", graphs_of_three_sizes, COMPILED, 3),
    "Compile.cache": ("compile.cache={tmp}/kept", folder, INDUCTOR, "kept"),
    "Compile.artifacts": ("compile.artifacts={tmp}/kept", kept, INDUCTOR, "kept"),
    "Compile.optimize_ddp": ("compile.optimize_ddp=false", ends_at_buckets, RANKS, False),
    "Compile.recompile_limit": ("compile.recompile_limit=1", fallbacks, FIXED, 2),
    "Compile.fallback": ("compile.fallback=fail", status, PRINTING, "refused: RunError"),
}
