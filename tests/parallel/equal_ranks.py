"""Run by test_equal.py in a process of its own: several ranks train what one rank trains.

Its arguments are the number of ranks, shapes such as `tensor=2,shard=2`, and the cases; all that
the ranks allow without any.

After steps of AdamW, which divides gradients near zero by their own size, weights in fp32 may be
1e-4 apart because sums were formed in another order. Where they are a little too far apart, the
same is trained in fp64: there this comes to 1e-12, and what remains is a fault.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from setpoint.parallel.world import World
from setpoint.parallel.zero import ZeroReplicas
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.placed import whole_of
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.evaluation.scores import evaluate
from setpoint.train.loop import Callback, Loop
from setpoint.train.open import settings_of
from setpoint.train.position import Position
from setpoint.train.verdict import StepResult
from setpoint.units.dtype import DType

from ..support.ranks import fork_group, rejoin
from ..train.small import small_job

STEPS = 5
ROUNDING = 100
"""Times the tolerance: up to there fp64 decides whether it is rounding."""
WORLD = int(sys.argv[1]) if __name__ == "__main__" and len(sys.argv) > 1 else 2

COMMON = (
    f"duration={STEPS} steps", "model.dropout=0", "model.layers=2", "evaluation=null",
    "batch.micro_size=1", "batch.accumulation=2",
)  # fmt: skip
# The load of experts is counted over parts of the same size, whatever the micro-batch is.
MOE = ("model.moe.experts=4", "model.moe.load_sequences=1")
# Softmax and sigmoid routers, drops, gradients by load, a dense layer and shared experts.
EXPERTS = {
    "divided experts": (*MOE, "model.moe.router_z_loss=1e-3"),
    "divided experts with their own biases": (*MOE, "model.moe.bias=true"),
    "divided experts, scaled inputs": (
        *MOE, "model.moe.scale_inputs=true",
        "model.moe.router={type: sigmoid_top_k, bias_rate: null, normalize: false}",
    ),
    "divided experts, biases": (
        *MOE, "model.moe.router=sigmoid_top_k", "model.moe.shared_experts=1", "model.moe.top_k=1",
        "model.moe.sequence_balance_loss=0.01",
    ),
    "divided experts, capacity": (
        *MOE, "model.moe.capacity_factor=0.6", "model.moe.first_dense=1", "optimizer.clip_norm=0.1",
        "model.moe.gradient_scale=true",
    ),
}  # fmt: skip
MIXED = (
    "data.sources=[{type: random, documents: 40, length: 200, alphabet: 8, name: a, weight: 2}, "
    "{type: random, documents: 40, length: 200, alphabet: 8, name: b, weight: 1}]"
)
# What each asks of the ranks: name to overrides.
CASES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "one backward pass a step": ("batch.accumulation=1",),
    "batches that grow": (
        "batch.accumulation=4",
        f"batch.ramp={{start: {WORLD}, increment: {WORLD}, over: {48 * WORLD} tokens}}",
    ),
    "clipping, z-loss, label smoothing": (
        "optimizer.clip_norm=0.1", "loss.z_loss=1e-3", "loss.label_smoothing=0.1",
    ),
    "tied embeddings": ("model.tie_embeddings=true",),
    "uneven rows": ("data.packing.method=none", "data.packing.pad_to_multiple_of=8",
                    "batch.sequence_length=256"),
    "packed documents": ("data.packing.method=first_fit_decreasing", "batch.sequence_length=512"),
    "experts with auxiliary losses": (*MOE, "model.moe.balance_loss=0.01",
                                      "model.moe.router_z_loss=1e-3"),
    "experts with biases": (*MOE, "model.moe.router=sigmoid_top_k"),
    "muon": ("optimizer=muon",),
    "lion": ("optimizer=lion",),
    "schedule-free": ("optimizer=schedule_free_adamw", "schedule=none"),
    "sgd": ("optimizer=sgd",),
    "adafactor": ("optimizer=adafactor", "optimizer.lr=1e-2"),
    "documents of several sources": (MIXED,),
    "one worker": ("data.loader.workers=1",),
    # Each rank tokenizes a part of what all of them read.
    "a stream in the order of its file": (
        f'data.sources=[{{type: text, paths: ["{__file__}"], separator: "\\n", streaming: true}}]',
        "data.shuffle=false", "data.held_out=0",
    ),
    "compiled": ("compile={}",),
    "compiled by aot_eager": ("compile={backend: aot_eager}", "precision.compute=bf16",
                              "memory.activation_checkpointing=full"),
    "whole graph": ("compile={scope: graph, backend: aot_eager}",),
    "chunked loss": ("loss=chunked_cross_entropy", "loss.chunk_size=7"),
    "recomputed activations": ("memory.activation_checkpointing=full",),
    "query and key norms": ("model.qk_norm=true", "model.qkv_bias=true", "model.ffn_bias=true",
                            "model.attention_output_bias=true", "model.norm_placement=both"),
    "norms over all heads, partial RoPE": (
        "model.qk_norm=true", "model.qk_norm_across_heads=true", "model.norm_placement=post",
        "model.rope_dim=4", "model.rope_pattern=[true, false]",
    ),
    "chunks, a temperature, unweighted norms": (
        "model.attention_pattern=[full, chunked]", "model.attention_chunk=20",
        "model.rope_pattern=[false, true]", "model.qk_norm=true", "model.qk_norm_weights=false",
        "model.qk_norm_pattern=[false, true]",
        "model.attention_temperature={interval: 10, scale: 0.5}",
    ),
    "merged queries, keys and values": ("model.merge_qkv=true", "model.qkv_bias=true"),
    "attention sinks, clamped SwiGLU": ("model.attention_sinks=true", "model.heads=4",
                                        "model.kv_heads=2", "model.activation=swiglu_clamped"),
    "two key-value heads": ("model.heads=4", "model.kv_heads=2", "optimizer=sgd"),
    "one key-value head": ("model.kv_heads=1", "model.positions=learned"),
    "soft caps and muP": ("model.logit_soft_cap=5", "model.attention_soft_cap=10",
                          "model.mup.base_dim=16"),
    "replicated parameters": ("parallel.sharding.replicated=[embedding, norm, 0.feed_forward]",
                              "optimizer.clip_norm=0.1"),
    "replicated parameters in bf16": (
        "parallel.sharding.replicated=[output, norm]", "precision.params=bf16",
        "precision.compute=bf16", "precision.reduce=fp32", "optimizer=anyprecision_adamw",
    ),
    "replicated parameters with masters": (
        "parallel.sharding.replicated=[output, norm]", "precision.params=bf16",
        "precision.compute=bf16", "precision.master=fp32",
    ),
    "frozen parameters": ('optimizer.frozen=["embedding.*"]',),
    "gradients summed in fp32": ("precision.params=bf16", "precision.compute=bf16",
                                 "precision.reduce=fp32", "optimizer=anyprecision_adamw"),
    "computed in bf16": ("precision.compute=bf16",),
    "recomputed operators": (
        "memory.activation_checkpointing={type: operators, save: [attention]}",
    ),
    "sliding windows": ("model.sliding_window=9", "model.attention_pattern=[sliding, full]",
                        "model.qk_norm=true"),
    "latent attention": ("model.mla={kv_rank: 8, query_rank: 10, rope_head_dim: 4, "
                         "nope_head_dim: 6, value_head_dim: 8}",),
    "capped scores": ("model.attention_soft_cap=5", "model.positions=learned"),
    "experts balanced by sequence": ("model.moe.experts=4", "model.moe.sequence_balance_loss=0.1",
                                     "model.moe.load_sequences=1", "model.moe.balance_loss=0.1",
                                     "model.moe.gradient_scale=true",
                                     "data.packing.method=none", "batch.sequence_length=256"),
    "evaluated": ("evaluation={sequences: 5}", "batch.accumulation=1"),
    "quantized base": ("adapter=qlora", "adapter.rank=2", "adapter.quantize.group_size=8",
                       "adapter.quantize.noise.alpha=0.5"),
    "weights in bf16 with masters": ("precision.params=bf16", "precision.compute=bf16",
                                     "precision.master=fp32"),
    "noise on embeddings": ("model.embedding_noise=5",),
    "noise on embeddings, uneven rows": (
        "model.embedding_noise=5", "model.tie_embeddings=true", "data.packing.method=none",
        "batch.sequence_length=256",
    ),
}  # fmt: skip
ROUTERS = tuple(EXPERTS)
# What changes how weights, gradients or rows of divided experts are treated.
WITH_EXPERTS = (
    "one backward pass a step", "uneven rows", "packed documents", "muon", "lion", "schedule-free",
    "sgd", "compiled", "recomputed activations", "weights in bf16 with masters",
)  # fmt: skip
EXPERTS |= {f"divided experts, {name}": (*MOE, *CASES[name]) for name in WITH_EXPERTS}
EXPERTS["divided experts, recomputed operators"] = (
    *MOE,
    "memory.activation_checkpointing=operators",
)
# Fewer than there are ranks: on four, each is cut by the sides of its matrices.
FEW = ("model.moe.experts=2", "model.moe.load_sequences=1")
EXPERTS["divided experts, two"] = FEW
EXPERTS["divided experts, two, muon"] = (*FEW, "optimizer=muon")
EXPERTS["divided experts, foreach"] = (*MOE, "optimizer.implementation=foreach")
CASES |= EXPERTS
# A base that is not its own start, so that B and A both learn; every kind of layer with an adapter.
ADAPTED = ("optimizer.lr=1e-3", "model.heads=4", "model.kv_heads=2", "model.layers=2")
SPLIT = (*ADAPTED, "model.merge_qkv=true", "model.qkv_bias=true",
         "model.attention_output_bias=true")  # fmt: skip
ADAPTERS = {
    "lora": (*ADAPTED, "adapter={type: lora, rank: 2, b_std: 0.1, exclude: [], train: [norm], "
             "targets: [layers, embedding, output]}"),
    "dora": (*SPLIT, "adapter={type: dora, rank: 2, b_std: 0.1, targets: [layers, embedding]}"),
    "merged again and again": (
        *ADAPTED, "adapter={type: dora, rank: 2, b_std: 0.1, merge: {every: 4 steps}, "
        "targets: [layers, embedding]}",
    ),
    "fused projections split": (
        *SPLIT, "adapter={type: lora, rank: 2, b_std: 0.1, fused_projections: split}",
    ),
}  # fmt: skip
CASES |= ADAPTERS
EXPERTS |= {
    "divided experts, lora": (*MOE, "adapter={type: lora, rank: 2, b_std: 0.1}"),
    "divided experts, merged again": (*MOE, "adapter={type: relora, rank: 2, merge: {every: 4}}"),
    "divided experts, quantized": (
        *MOE, "adapter={type: relora, rank: 2, b_std: 0.1, merge: {every: 4}, "
        "quantize: {type: nvfp4, group_size: 8, noise: {alpha: 0.5}}}",
    ),
    "divided experts, two, quantized": (
        *FEW, "adapter={type: dora, rank: 2, b_std: 0.1, quantize: {type: nf4, group_size: 8}}",
    ),
    "divided experts, two, dora": (*FEW, "adapter={type: dora, rank: 2, b_std: 0.1}"),
}  # fmt: skip
CASES |= EXPERTS
# What the schedules of a pipeline of two or four ranks need.
STAGED = ("model.layers=4", "batch.accumulation=4")
# How the ranks may be divided.
SHAPES = {2: ["shard=1", "shard=2"], 4: ["shard=1", "shard=2", "shard=4"]}
EXPERT_SHAPES = {
    2: ["shard=2,expert=2", "tensor=2,expert=2", "ring=2,expert=2"],
    4: ["shard=4,expert=2", "shard=4,expert=4", "shard=4,expert=2,expert_mesh_order=expert_major",
        "replicate=2,shard=2,expert=2", "shard=2,tensor=2,expert=4",
        "shard=2,tensor=2,expert=2,expert_tensor=2"],
}  # fmt: skip
# Refused: drops look at whole sequences, and FSDP2 works within layers where it shards experts.
NOT_FOR = {
    "divided experts, capacity": "ring=",
    "attention sinks, clamped SwiGLU": "ring=",
    "divided experts with their own biases": "expert_tensor=",
}
REPLICATED = [name for name in CASES if name.startswith("replicated parameters")]
NOT_FOR |= dict.fromkeys(REPLICATED, "shard=1")  # nothing is sharded
# What rounds more than fp32 does. Muon orthogonalizes in bf16, where the last bit of a sum may
# decide how a number is rounded; of the others much is in bf16, and fp64 would decide nothing.
LOOSE = {
    "weights in bf16 with masters": 2e-2, "gradients summed in fp32": 2e-2,
    "computed in bf16": 5e-2, "replicated parameters in bf16": 2e-2,
    "replicated parameters with masters": 2e-2, "compiled by aot_eager": 5e-2, "muon": 5e-3,
}  # fmt: skip
LOOSE |= {"divided experts, two, muon": LOOSE["muon"]}
LOOSE |= {f"divided experts, {name}": rtol for name, rtol in LOOSE.items()}
# What FSDP2 refuses.
WHOLE_ONLY = ("whole graph",)


Trained = tuple[list[Any], dict[str, Tensor]]
"""The loss and the norm of each step, and the weights at the end, whole."""


class Seen(Callback):
    """Keeps what a tracker would get."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float]] = []

    def after_step(self, loop: Loop, result: StepResult) -> None:
        self.rows.append((result.loss, result.grad_norm))


def trained(job: Job, world: World | None = None) -> Trained:
    """Train to the end, and evaluate where the job does."""
    with settings_of(job):
        return trained_so(job, world)


def trained_so(job: Job, world: World | None) -> Trained:
    """The same, under the settings of the job."""
    components: Components = build_components(job, world=world)
    seen = Seen()
    Loop(job, components, [seen], StopRequest(), Position()).run()
    if job.evaluation is not None:
        scores = evaluate(job, components).values()
        seen.rows += [(score.loss, score.accuracy or 0.0) for score in scores]
        seen.rows += [(score.bits_per_byte, score.tokens) for score in scores]
    held = {name: whole_of(value) for name, value in components.model.state_dict().items()}
    if isinstance(components.replicas, ZeroReplicas):
        held = {name: value.clone() for name, value in components.replicas.tensors()}
    weights: dict[str, Tensor] = {}
    for part in components.world.all_of(held) if components.pipeline is not None else [held]:
        weights |= part
    return seen.rows, weights


@contextmanager
def float64() -> Iterator[None]:
    """Let fp32 mean fp64, from the first weights to the optimizer."""
    named = DType.torch
    DType.torch = lambda self: torch.float64 if self.name == "float32" else named(self)
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        DType.torch = named


def compare(
    folder: Path, name: str, flags: tuple[str, ...], shapes: list[str], store: str | None = None
) -> None:
    """One rank, and all of them in each shape; with a store, ranks meet anew for each."""
    rtol = LOOSE.get(name, 1e-5)
    known: dict[tuple[int, bool, bool], Trained] = {}
    for shape in shapes[:1] if name in WHOLE_ONLY else shapes:
        what = f"{name}, {shape}"
        if store is not None:
            rejoin(f"{store} {what}".replace(" ", "-"))
        found, expected = both(folder, flags, shape, known)
        try:
            assert_equal(found, expected, rtol, what)
            apart = False
        except AssertionError:
            assert_equal(found, expected, ROUNDING * rtol, what)
            apart = True
        # All ranks of this shape train again, or none.
        if World(torch.device("cpu"), size=WORLD).any(apart):
            in_bf16 = name in LOOSE and not name.endswith("muon")
            assert not in_bf16, f"{what}: more than {rtol} apart"
            with float64():
                found, expected = both(folder, flags, shape, known)
            assert_equal(found, expected, 1e-10, f"{what} in fp64")
            print(f"{what}: equal in fp64")
        print(f"{what}: equal over {len(found[0])} steps")


def both(
    folder: Path, flags: tuple[str, ...], shape: str, known: dict[tuple[int, bool, bool], Trained]
) -> tuple[Trained, Trained]:
    """What all ranks train, and what one does."""
    degrees = [f"parallel.{degree}" for degree in shape.split(",")]
    is_cut = "pipeline" in shape
    common = (*COMMON, *flags, *(STAGED if is_cut else ()))
    job = small_job(folder, *common, f"parallel.world_size={WORLD}", *degrees)
    ranks = job.parallel.data_ranks
    key = (ranks, is_cut, torch.get_default_dtype() is torch.float64)
    if key not in known:
        # The same global batch, in micro-batches of as many rows on one rank as on all.
        alone = small_job(folder, *common, f"batch.micro_size={ranks}")
        assert job.batch.global_size == alone.batch.global_size
        told: list[Any] = [None]
        if dist.get_rank() == 0:
            told = [trained(alone, World(torch.device("cpu")))]
        dist.broadcast_object_list(told)
        known[key] = told[0]
    return trained(job), known[key]


def assert_equal(found: Trained, expected: Trained, rtol: float, what: str) -> None:
    """Losses and norms of all steps, and weights."""
    ours, theirs = (torch.tensor(each[0], dtype=torch.float64) for each in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol, msg=lambda m: f"{what}: {m}")
    for key, value in expected[1].items():
        torch.testing.assert_close(
            found[1][key].double(),
            value.double(),
            rtol=rtol,
            atol=10 * rtol,
            msg=lambda m, what=f"{what}, {key}": f"{what}: {m}",
        )


def one_rank(rank: int, store: str) -> None:
    shapes = [each for each in sys.argv[2:] if "=" in each]
    wanted = [each for each in sys.argv[2:] if "=" not in each] or list(CASES)
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            usual = SHAPES.get(WORLD, [])
            if name in EXPERTS:  # in every shape with three routers, and in one with all else
                usual = EXPERT_SHAPES.get(WORLD, [])[: None if name in ROUTERS else 1]
            fit = [each for each in shapes or usual if NOT_FOR.get(name, "?") not in each]
            compare(Path(folder), name, CASES[name], fit, store)


if __name__ == "__main__":
    sys.exit(fork_group(one_rank, WORLD))
