"""Effects of the fields of `[memory]`, `[precision]` and `[compile]`.

A CPU stands in for what needs a GPU; offloads move tensors within the host.
"""

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

from setpoint.compile.compile_model import CACHE
from setpoint.compile.internals import dynamo_config
from setpoint.compile.watch import Watch
from setpoint.memory import checkpointing, host_memory, usage
from setpoint.memory.activation_offload import Offload
from setpoint.model.build import skeleton
from setpoint.model.config import TransformerConfig
from setpoint.precision.config import converted
from setpoint.precision.float8 import why_not
from setpoint.precision.mixed_precision import shard_dtypes
from setpoint.shapes.placed import ShardedWeight
from setpoint.track.jsonl import NoEvents
from setpoint.track.progress import Progress
from setpoint.train.build.components import Components, build_components
from setpoint.train.callbacks.upkeep import CompileCallback, EmptyCacheCallback
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.open import settings_of
from setpoint.train.rules.model_rules import linear_layers
from setpoint.train.run import train

from ...memory.meter import Meter
from ...memory.spared import spared_device
from ...precision.gpu_stand_in import gpu_stand_in
from ..small import PRINTING, loop_of, stepped
from .observations import Row


def computed(job: Job) -> Counter[str]:
    """Number of calls of each operator in an update."""
    components = build_components(job)
    components.model.train()
    loop = loop_of(job, components=components)
    with Meter() as meter:
        loop.step()
    return meter.calls


def implementation(job: Job) -> set[str]:
    """The implementations of activation checkpointing that ran."""
    seen: set[str] = set()

    def reentrant(*args: Any, real: Any = checkpointing._reentrant) -> Any:
        seen.add("reentrant")
        return real(*args)

    checkpointing._recomputed_class.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointing, "_reentrant", reentrant)
        computed(job)
    checkpointing._recomputed_class.cache_clear()
    return seen


def moved(job: Job) -> list[int]:
    """The sizes of the activations that went to the host in an update."""
    sizes: list[int] = []

    def to_host(self: Offload, data: Tensor, real: Any = Offload.to_host) -> Tensor:
        sizes.append(data.numel())
        return real(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Offload, "to_host", to_host)
        computed(job)
    return sizes


def emptied(job: Job) -> list[int]:
    """The steps at which the cache of the allocator was emptied."""
    steps: list[int] = []

    def after(self: EmptyCacheCallback, loop: Loop, update: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "empty_cache", lambda: steps.append(loop.position.step))
            real(self, loop, update)

    real = EmptyCacheCallback.after_step
    with pytest.MonkeyPatch.context() as patch, spared_device():
        patch.setattr(EmptyCacheCallback, "after_step", after)
        train(job, directory=Path(job.workspace) / "emptied")
    return steps


class Library:
    """A C library that notes what its allocator is set to."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def mallopt(self, name: int, value: int) -> None:
        self.seen.append((name, value))

    def malloc_trim(self, pad: int) -> None:
        pass


def retained(job: Job) -> list[tuple[int, int]]:
    """Calls of `mallopt` while the job runs."""
    library = Library()
    with pytest.MonkeyPatch.context() as patch:
        for variable in (*host_memory.MALLOC_VARIABLES, "GLIBC_TUNABLES"):
            patch.delenv(variable, raising=False)
        patch.setattr(host_memory, "_glibc", lambda: library)
        with settings_of(job):
            return [*library.seen]


def segments(job: Job) -> tuple[str, str]:
    """Settings of PyTorch's allocator while the job runs, without and with the user's own."""
    read: Any = vars(torch._C).get("_accelerator_getAllocatorSettings")
    if read is None:
        pytest.skip("this torch does not tell them")
    with pytest.MonkeyPatch.context() as patch:
        for variable in usage.ALLOCATOR_VARIABLES:
            patch.delenv(variable, raising=False)
        with settings_of(job):
            alone = read()
        before = read()
        patch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
        with settings_of(job):
            assert read() == before, "the user's settings were replaced"
        return alone, before


BELOW = "memory.activation_checkpointing"
TWO = ("model.layers=2",)
FULL, PARTS, OPERATORS = ((*TWO, f"{BELOW}={name}") for name in ("full", "parts", "operators"))
ACTIVATIONS = (*TWO, "memory.activation_offload.limit=0", "memory.activation_offload.smallest=0")


def run(job: Job) -> Components:
    if job.precision.float8 is not None:
        pytest.importorskip("torchao")
    with gpu_stand_in():
        components = stepped(job)
    return components


def learned(job: Job) -> list[bytes]:
    """The parameters after four updates."""
    return [p.detach().float().numpy().tobytes() for p in run(job).model.parameters()]


def scale(job: Job) -> float:
    """The loss scale after four updates."""
    return run(job).scaler.get_scale()


def fp32_products(job: Job) -> tuple[str, bool]:
    """TF32 settings while the job runs."""
    with gpu_stand_in(), settings_of(job):
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


def gathered(job: Job) -> dict[str, tuple[torch.dtype, torch.dtype]]:
    """Dtypes of FSDP2's all-gathers and reduce-scatters."""
    model: Any = skeleton(job.model, 257)
    choose = shard_dtypes(job.precision, model)
    parts = {"norm": model.norm, "linear": model.layers["0"].attention.output}
    found = {
        name: choose(ShardedWeight([(module, "weight")], module.weight))
        for name, module in parts.items()
    }
    return {name: dtypes[:2] for name, dtypes in found.items()}


def gathers_float8(job: Job) -> bool:
    """True if sharded weights are gathered in float8; see tests/precision/float8_ranks.py."""
    assert job.precision.float8 is not None
    return job.precision.float8.gathers(job.parallel.reshard)


def in_float8(job: Job) -> set[str]:
    """The kinds of layers that multiply in float8."""
    assert job.precision.float8 is not None and isinstance(job.model, TransformerConfig)
    names = converted(job.precision.float8, linear_layers(job.model))
    return {name.rpartition(".")[2] for name in names}


def runs_anywhere(job: Job) -> bool:
    """True if the products run on a CPU."""
    assert job.precision.float8 is not None
    return why_not(job.precision.float8, torch.device("cpu")) is None


BF16 = ("precision.compute=bf16",)
SHORT = (*BF16, "precision.params=bf16")
FLOAT8 = (*SHORT, "precision.float8.emulate=true")
FP16 = ("precision.compute=fp16", "parallel.device=cuda")


def called(job: Job) -> tuple[Components, Watch | None]:
    """The parts after one call of the model, and what tells of compiling."""
    components = build_components(job)
    watch = None if components.compiled is None else Watch(components.compiled, 0)
    components.model(torch.arange(64, 80)[None])
    return components, watch


def graphs(job: Job) -> int:
    """Number of compiled graphs of two layers."""
    _, watch = called(job)
    return 0 if watch is None else watch.news().graphs


def operations(job: Job) -> int:
    """Number of operations in the last compiled graph."""
    called(job)
    return get_compilation_metrics()[-1].graph_op_count or 0


def backward_graphs(job: Job) -> bool:
    """True if the backend compiles the backward pass, as aot_eager does and eager does not."""
    components, _ = called(job)
    clear_compilation_metrics()
    components.model(torch.arange(64, 80)[None]).sum().backward()
    return any(record.is_forward is False for record in get_compilation_metrics())


def graphs_of_three_sizes(job: Job) -> int:
    """Number of compiled graphs for three sequence lengths."""
    components, watch = called(job)
    assert watch is not None
    for length in (8, 12):
        components.model(torch.arange(64, 64 + length)[None])
    return watch.news().graphs


def fallbacks(job: Job) -> int:
    """Number of eager fallbacks after three sequence lengths."""
    with settings_of(job):
        components, watch = called(job)
        assert watch is not None
        for length in (8, 12):
            components.model(torch.arange(64, 64 + length)[None])
        return len(watch.news().fallbacks)


def asked(job: Job) -> list[dict[str, Any]]:
    """Arguments of `torch.compile`."""
    seen: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda function, **rest: seen.append(rest) or function)
        build_components(job)
    return seen


def folder(job: Job) -> str | None:
    """Inductor's cache folder."""
    with settings_of(job):
        found = os.environ.get(CACHE)
    return found and os.path.basename(found)


def artifacts_of(job: Job) -> str | None:
    """The folder of the artifacts of a run."""
    assert job.compile is not None
    parts = build_components(job)
    run: Any = SimpleNamespace(
        job=job, components=parts, world=parts.world, events=NoEvents(), progress=Progress()
    )
    found = CompileCallback(job.compile, run).artifacts
    return found and found.path.parent.name


def ends_at_buckets(job: Job) -> Any:
    """True if graphs break at DDP's buckets."""
    with settings_of(job):
        return dynamo_config().optimize_ddp


def status(job: Job) -> int:
    """The exit status of a run."""
    return train(job).status


# The last of two layers alike is compiled with the first.
COMPILED = ("compile={}", "compile.backend=eager", "model.layers=1")
FIXED = (*COMPILED, "compile.dynamic=false")
INDUCTOR = ("compile={}",)
EAGER = (*PRINTING, "compile={backend: eager, scope: model}", "evaluation=null")
RANKS = ("compile={}", "parallel.world_size=2", "batch.accumulation=1")


ROWS: dict[str, Row] = {
    "Memory.activation_checkpointing": (f"{BELOW}=full", computed, TWO),
    "Memory.activation_offload": (ACTIVATIONS[-1], moved, ()),
    "Memory.empty_cache": ("memory.empty_cache=2 steps", emptied, ()),
    "Memory.expandable_segments": ("memory.expandable_segments=false", segments, ()),
    "Memory.malloc_retain": ("memory.malloc_retain=false", retained, ()),
    "Full.every": (f"{BELOW}.every=2", computed, FULL),
    "Full.reentrant": (f"{BELOW}.reentrant=true", implementation, FULL),
    "CheckpointedParts.every": (f"{BELOW}.every=2", computed, PARTS),
    "CheckpointedParts.parts": (f"{BELOW}.parts=[feed_forward]", computed, PARTS),
    "CheckpointedParts.reentrant": (f"{BELOW}.reentrant=true", implementation, PARTS),
    "Operators.every": (f"{BELOW}.every=2", computed, OPERATORS),
    "Operators.save": (f"{BELOW}.save=[matmul]", computed, OPERATORS),
    "Operators.matmul_every": (f"{BELOW}.matmul_every=2", computed, OPERATORS),
    "ActivationOffload.limit": ("memory.activation_offload.limit=20 KiB", moved, ACTIVATIONS),
    "ActivationOffload.smallest": ("memory.activation_offload.smallest=4 KiB", moved, ACTIVATIONS),
    "Precision.params": ("precision.params=bf16", learned, BF16),
    "Precision.compute": ("precision.compute=bf16", learned, ()),
    "Precision.reduce": ("precision.reduce=bf16", learned, ()),
    "Precision.master": ("precision.master=fp32", learned, SHORT),
    "Precision.optimizer_state": ("precision.optimizer_state=bf16", learned, ("optimizer=sgd",)),
    "Precision.gather": ("precision.gather=fp32", gathered,
        (*BF16, "parallel.world_size=2", "parallel.shard=2"),
        dict.fromkeys(("norm", "linear"), (torch.float32, torch.float32))),
    "Precision.tf32": ("precision.tf32=true", fp32_products, ("parallel.device=cuda",),
        ("high", True)),
    "Precision.float8": (FLOAT8[-1], learned, SHORT),
    "Precision.loss_scale": ("precision.loss_scale.initial=4", scale, FP16, 4.0),
    "Float8.recipe": ("precision.float8.recipe=rowwise", learned, FLOAT8),
    "Float8.gather": ("precision.float8.gather=false", gathers_float8,
        (*FLOAT8, "parallel.world_size=2", "parallel.shard=2"), False),
    "Float8.skip_small": ("precision.float8.skip_small=true", in_float8,
        (*FLOAT8, "model={dim: 4096, heads: 32, kv_heads: 8}"),
        {"query", "output", "gate", "up", "down"}),
    "Float8.experts": ("precision.float8.experts=true", learned,
        (*FLOAT8, "precision.float8.recipe=rowwise", "model.moe={experts: 4}")),
    "Float8.emulate": ("precision.float8.emulate=true", runs_anywhere,
        (*SHORT, "parallel.device=cuda", "precision.float8={}"), True),
    "Float8.skip": ('precision.float8.skip=["^output$", "query"]', learned, FLOAT8),
    "LossScale.initial": ("precision.loss_scale.initial=4", scale, FP16, 4.0),
    "LossScale.growth": ("precision.loss_scale.growth=4", scale,
        (*FP16, "precision.loss_scale={initial=1, growth_interval=2}"), 16.0),
    "LossScale.backoff": ("precision.loss_scale.backoff=0.125", scale,
        (*FP16, f"precision.loss_scale.initial={2.0**127}"), 2.0**115),
    "LossScale.growth_interval": ("precision.loss_scale.growth_interval=2", scale, FP16, 2.0**18),
    "Job.compile": ("compile={backend: eager}", graphs, (), 1),
    "Compile.scope": ("compile.scope=model", operations, COMPILED, None),
    "Compile.backend": ("compile.backend=aot_eager", backward_graphs, COMPILED, True),
    "Compile.mode": ("compile.mode=max-autotune", asked, INDUCTOR, None),
    "Compile.options": ("compile.options.epilogue_fusion=false", asked, INDUCTOR, None),
    "Compile.fullgraph": ("compile.fullgraph=true", status, EAGER, "refused: RunError"),
    "Compile.dynamic": ("compile.dynamic=false", graphs_of_three_sizes, COMPILED, 3),
    "Compile.cache": ("compile.cache={tmp}/kept", folder, INDUCTOR, "kept"),
    "Compile.artifacts": ("compile.artifacts={tmp}/kept", artifacts_of, INDUCTOR, "kept"),
    "Compile.optimize_ddp": ("compile.optimize_ddp=false", ends_at_buckets, RANKS, False),
    "Compile.recompile_limit": ("compile.recompile_limit=1", fallbacks, FIXED, 2),
    "Compile.fallback": ("compile.fallback=fail", status, EAGER, "refused: RunError"),
}  # fmt: skip
