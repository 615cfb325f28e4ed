"""Makes the table of what pieces of a model keep, from runs of their modules.

`python -m tests.plan.activations` writes what is missing in `src/setpoint/plan/activations.json`;
`--only WORD` makes again what has the word in its key. Each piece is run forward and backward at
several draws of sizes. What is alive at each allocation is a sum of products of sizes with whole
coefficients, which the draws give; more draws than coefficients are taken, so that a wrong form is
found.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NamedTuple, cast

from setpoint.train import prepare_threads

prepare_threads()  # before torch is imported

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, distributed, nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.nn import functional  # noqa: E402

import setpoint.presets  # noqa: E402, F401 - registers the presets
from setpoint.config.composition import compose  # noqa: E402
from setpoint.memory.checkpointing import ATTENTION, MATMUL  # noqa: E402
from setpoint.model.attention.attention import attention_context  # noqa: E402
from setpoint.model.attention.backends import SHARE_NO_HEADS  # noqa: E402
from setpoint.model.block_modules import FUSED, build_norm  # noqa: E402
from setpoint.model.build import build_transformer  # noqa: E402
from setpoint.model.config import TransformerConfig  # noqa: E402
from setpoint.plan.dry_run import sinks_in_a_kernel  # noqa: E402
from setpoint.plan.memory import TABLE, value_of  # noqa: E402
from setpoint.plan.meter import Meter, metering  # noqa: E402
from setpoint.plan.pieces import ModelPiece, layer_pieces, outer_pieces  # noqa: E402
from setpoint.precision.mixed_precision import compute_in  # noqa: E402
from setpoint.shapes.batch import Batch, ContextGroups, SequenceParts  # noqa: E402
from setpoint.shapes.outcome import Outcome  # noqa: E402
from setpoint.train.config import Job  # noqa: E402
from setpoint.train.objective import Objective  # noqa: E402
from setpoint.units.dtype import DType  # noqa: E402

MORE = 4
"""Draws beyond the coefficients."""
SAMPLES = 3000
"""Sizes at which a sum of products must be the largest for once to be kept."""
MONOMIALS = {
    "norm": "1 D T TD",
    "dropout": "1 T TD",
    "attention": "1 D H Q HQ KQ DHQ DKQ T TQ TH TK TD THQ TKQ THS TS SS S",
    "latent": "1 D L M DL DR LHN LHW MD MHN MHR DHN DHR DHW S SS"
    " T TR TL TM TH TD THN THR THW THS TS",
    "feed_forward": "1 D F DF T TD TF",
    "experts": "1 B D E BE ED EF EDF DG T TE TU TD TUD TUF TG",
    "embedding": "1 D S Q SQ SD T TQ TD VD PD TS SS",
    "output": "1 D V C VD CD CV T TD TV",
}
"""Products of sizes that what is alive in a piece is made of, by the first word of its key."""


@cache
def monomials_of(key: str) -> tuple[str, ...]:
    """The products of sizes for a piece, as words of letters; 1 for none."""
    first = key.split(" ", 1)[0]
    words = MONOMIALS["norm" if first.endswith("_norm") else first].split()
    if first == "attention" and "shared" not in key.split():
        words = [each for each in words if "K" not in each]
    if first == "attention" and "sinks" not in key.split():
        words = [each for each in words if each != "H"]
    if first == "embedding" and "learned" not in key:
        words = [each for each in words if "P" not in each]
    if first == "latent" and "query" not in key.split():
        words = [each for each in words if "M" not in each]
    if first == "experts" and "shared" not in key.split():
        words = [each for each in words if "G" not in each]
    if first == "experts" and "bias" not in key.split():
        words = [each for each in words if each != "EF"]
    if first == "output" and "chunked_cross_entropy" not in key:
        words = [each for each in words if "C" not in each]
    return tuple(words)


@dataclass(slots=True)
class Trace(Meter):
    """Writes down what is alive at each allocation, and the results of products and attention."""

    alive: list[int] = field(default_factory=list)
    products: list[int] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)
    own: Callable[[], int] = lambda: 0
    """Bytes of gradients of weights, which are counted elsewhere."""

    def _grew(self) -> None:
        self.alive.append(self.now - self.own())

    def count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        name = func._schema.name
        outs = out if isinstance(out, tuple | list) else (out,)
        size = sum(each.nbytes for each in outs if isinstance(each, Tensor))
        if name in MATMUL:
            self.products.append(size)
        elif name in ATTENTION:
            self.kernels.append(size)


class Measured(NamedTuple):
    """Bytes of one run of a piece: kept, alive at each moment, and results of its products."""

    kept: int
    alive: list[int]
    products: list[int]
    kernel: int


FORMATS = (
    ("precision.compute=fp32", "parallel.device=cuda"),
    ("precision.compute=bf16", "parallel.device=cuda"),
    ("precision={compute: bf16, params: bf16}", "parallel.device=cuda"),
    ("precision={compute: bf16, params: bf16}", "parallel.device=cpu"),
)
CENTERED = "model.norm={type: rms_norm, zero_centered: true}"
NORMS = ("model.norm=rms_norm", "model.norm=layer_norm",
         "model.norm={type: layer_norm, bias: false}", CENTERED)  # fmt: skip
QK, GROUPED, ISOLATED = "model.qk_norm=true", "model.kv_heads=OTHER", "data.packing.isolate=true"
CAPPED, DROPPED = "model.attention_soft_cap=5", "model.attention_dropout=0.1"
SDPA, EAGER = "model.attention_backend=sdpa", "model.attention_backend=eager"
MLA = "model.mla={kv_rank: 6, rope_head_dim: 4, nope_head_dim: 4, value_head_dim: 4}"
MLA_Q = MLA.replace("{", "{query_rank: 8, ")
SINKS = "model.attention_sinks=true"
WINDOW = ("model.attention_pattern=[sliding]", "model.sliding_window=8")
BOTH = ("model.attention_pattern=[sliding, full]", "model.sliding_window=8", "model.layers=2")
DIVIDED = (("divided by ring",), ("divided by ulysses",), ("divided by ring", "divided by ulysses"))
MASKS = [
    (*backend, *shown)
    for backend in ((), (CAPPED,))
    for shown in ((), (ISOLATED,), WINDOW, BOTH, (*WINDOW, ISOLATED), (*BOTH, ISOLATED))
]


def variants() -> Iterator[tuple[str, ...]]:
    """What is set in the configurations whose pieces the table has."""
    for base in FORMATS:
        for axes in DIVIDED:
            for more in ((), (QK,), (GROUPED,), (QK, GROUPED)):
                yield (*base, *axes, *more)
        for norm in NORMS:
            for placement in ("pre", "post"):
                yield (*base, norm, f"model.norm_placement={placement}")
        yield (*base, "model.dropout=0.1")
        for attention in _attention_variants():
            yield (*base, *attention)
            differs = {ISOLATED, *WINDOW, DROPPED, SINKS} & {*attention}
            if base in FORMATS[:2] and differs and not {EAGER, CAPPED} & {*attention}:
                yield (base[0], "parallel.device=cpu", *attention)  # whose kernels are others
        for activation in ("swiglu", "swiglu_clamped", "geglu", "geglu_tanh", "reglu",
                           "gelu", "gelu_tanh", "relu", "relu_squared"):  # fmt: skip
            for bias in ("false", "true"):
                yield (*base, f"model.activation={activation}", f"model.ffn_bias={bias}")
        for activation in ("swiglu", "gelu"):
            for shared in ("0", "1"):
                for router in ("softmax_top_k", "sigmoid_top_k"):
                    moe = f"experts: 4, router: {router}, shared_experts: {shared}"
                    yield (*base, f"model.activation={activation}", f"model.moe={{{moe}}}")
        for activation, bias in (("swiglu", "true"), ("swiglu_clamped", "false"),
                                 ("swiglu_clamped", "true")):  # fmt: skip
            moe = f"model.moe={{experts: 4, bias: {bias}}}"
            yield (*base, f"model.activation={activation}", moe)
        for loss in ("cross_entropy", "chunked_cross_entropy"):
            for more in ((), ("model.logit_soft_cap=5",), ("loss.z_loss=0.001",),
                         ("loss.label_smoothing=0.1",)):  # fmt: skip
                for tied in ("false", "true"):
                    for norm in NORMS[: 2 if more else 4]:
                        tie = f"model.tie_embeddings={tied}"
                        yield (*base, f"loss={loss}", *more, norm, tie)
        for more in ((), ("model.embedding_scale=2",), ("model.embedding_dropout=0.1",)):
            for position in ("rotary", "learned", "none"):
                yield (*base, *more, f"model.positions={position}")
                if "model.embedding_dropout=0.1" not in more:
                    yield from (
                        (*base, *more, f"model.positions={position}", *each) for each in MASKS
                    )


def _attention_variants() -> Iterator[tuple[str, ...]]:
    found = [
        (f"model.positions={position}", *merged, *more)
        for merged in ((), ("model.merge_qkv=true",))
        for position in ("rotary", "learned")
        for more in ((), (QK,))
    ]
    for backend in ("model.attention_backend=eager", CAPPED, "model.attention_backend=sdpa_math",
                    ISOLATED, DROPPED):  # fmt: skip
        found += [(backend,), (backend, QK)]
    found += [("model.positions=learned", DROPPED), (EAGER, DROPPED)]
    found += [(SINKS, *more) for more in ((), (ISOLATED,), WINDOW)]
    found += [("model.positions=learned", ISOLATED), WINDOW]
    found += [(*WINDOW, QK), (*WINDOW, CAPPED), (ISOLATED, CAPPED),
              ("model.positions=none",), ("model.norm=layer_norm", QK), (CENTERED, QK),
              (CENTERED, QK, *WINDOW)]  # fmt: skip
    for each in found:
        yield each
        yield (*each, GROUPED)
    yield from ((mla, *more) for mla in (MLA, MLA_Q) for more in ((), (ISOLATED,)))


def draw(flags: tuple[str, ...], seed: int) -> tuple[Job, int]:
    """A job of small sizes, and how many sequences it has."""
    dice = random.Random(seed)
    keys = 2 * dice.choice((2, 3, 4))
    group = dice.choice((2, 3, 4)) if "model.kv_heads=OTHER" in flags else 1
    sizes: dict[str, Any] = {
        "model.dim": dice.randrange(24, 96),
        "model.heads": keys * group,
        "model.kv_heads": keys,
        "model.head_dim": 2 * dice.randrange(3, 14),
        "model.tie_embeddings": "false",
        "model.ffn_dim": dice.randrange(20, 120),
        "model.layers": 1,
        "model.vocab_size": dice.randrange(300, 700),
        "model.max_sequence_length": dice.randrange(100, 200),
        "batch.sequence_length": 2 * dice.randrange(12, 36),
    }
    if sizes["model.head_dim"] == sizes["model.dim"] // sizes["model.heads"]:
        sizes["model.head_dim"] += 2  # else it is taken for a derived one
    rows = dice.randrange(3, 8)
    flags = tuple(each for each in flags if "OTHER" not in each and " by " not in each)
    if SINKS in flags:
        sizes["model.head_dim"] += 16  # for kernels of a GPU
    elif not any("attention_backend" in each for each in flags):
        # What is measured here, as kernels of GPUs cannot be.
        flags = (*flags, EAGER if CAPPED in flags else SDPA)
    if any("model.mla" in each for each in flags):
        del sizes["model.kv_heads"], sizes["model.head_dim"]
        names = ("kv_rank", "query_rank", "rope_head_dim", "nope_head_dim", "value_head_dim")
        values = {
            name: 2 * dice.randrange(2, 20) for name in names if any(name in each for each in flags)
        }
        if values["value_head_dim"] == values["rope_head_dim"] + values["nope_head_dim"]:
            values["value_head_dim"] += 2
        inside = ", ".join(f"{name}: {value}" for name, value in values.items())
        flags = tuple(f"model.mla={{{inside}}}" if "model.mla" in each else each for each in flags)
    if any("model.moe" in each for each in flags):
        top = dice.choice((2, 3))
        flags = tuple(
            each.replace("experts: 4", f"experts: {dice.randrange(4, 9)}, top_k: {top}")
            for each in flags
        )
    if "loss=chunked_cross_entropy" in flags:
        whole = rows * sizes["batch.sequence_length"]
        sizes["loss.chunk_size"] = -(-whole // 3) + dice.randrange(0, 8)
    given = [*(f"{name}={value}" for name, value in sizes.items()), *flags]
    fixed = ("evaluation=null", f"batch.global_size={rows}", f"batch.micro_size={rows}")
    return compose(Job, "tiny", flags=[*fixed, *given]).resolve(), rows


def pieces_of(job: Job) -> list[tuple[ModelPiece, str]]:
    """The pieces of a job of one layer, and by what each is run."""
    model = job.model
    assert isinstance(model, TransformerConfig)
    found = [(piece, piece.role) for piece in layer_pieces(job, model, 0)]
    for name in ("embedding", "output"):
        found += [(piece, name) for piece in outer_pieces(job, model, 257, name)]
    return found


def words_of(flags: tuple[str, ...]) -> str:
    """What flags add to the keys of attention, as the axes of a topology do."""
    words = ["shared"] if "model.kv_heads=OTHER" in flags else []
    words += [each.rpartition(" ")[2] for each in flags if " by " in each]
    return "".join(f" {word}" for word in words)


@contextmanager
def _groups(axes: Sequence[str]) -> Iterator[ContextGroups | None]:
    """This rank of two along each axis that divides sequences; their groups send nothing."""
    if not axes:
        yield None
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    size = 2 ** len(axes)
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        whole = distributed.group.WORLD
        ring = distributed.new_group([0, size // 2]) if "ring" in axes else None
        ulysses = distributed.new_group([0, 1]) if "ulysses" in axes else None
        parts = SequenceParts(ring=2 if ring else 1, ulysses=2 if ulysses else 1)
        yield ContextGroups(parts, cast(Any, ring), cast(Any, ulysses), whole)
    finally:
        distributed.destroy_process_group()


def measure(
    job: Job, rows: int, piece: ModelPiece, words: str = ""
) -> tuple[dict[str, int], Measured]:
    """Run a piece forward and backward."""
    model = job.model
    assert isinstance(model, TransformerConfig)
    length = job.batch.sequence_length
    sizes = {"B": rows, "T": rows * length, "S": length, **dict(piece.sizes)}
    with ExitStack() as stack:
        stack.enter_context(_of_device(job.parallel.device))
        if "kernel" in piece.key.split():
            stack.enter_context(_kernels())
            if "sinks" in piece.key.split():
                stack.enter_context(sinks_in_a_kernel())
        if piece.role == "experts":  # how many tokens each has must not depend on numbers
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stored = DType(job.precision.params).torch()
        axes = [each for each in ("ring", "ulysses") if each in words.split()]
        run = _Run(job, model, rows, piece, stack.enter_context(_groups(axes)))
        trace = Trace(lambda group: ("none", 1))
        weights = [each for each in run.module.parameters() if each.is_floating_point()]
        for weight in weights:
            weight.data = weight.data.to(stored)
        leaf = run.leaf()
        trace.own = lambda: sum(each.grad.nbytes for each in weights if each.grad is not None)
        stack.enter_context(metering(trace))
        for each in (*weights, leaf, *run.module.buffers()):
            trace.hold(each)
        before = trace.now
        trace.alive.clear()
        with compute_in(job.precision.compute, job.precision.params, torch.device("cpu")):
            tail, extra = run.forward(leaf)
        kept = trace.now - before - tail.nbytes
        products = list(trace.products)
        kernel = sum(trace.kernels) + sum(_Kernel.results)
        # What the embedding makes for all layers stays; a tail is the copy of a result.
        grad = torch.ones_like(tail)
        torch.autograd.backward([tail, *extra], [grad, *map(torch.ones_like, extra)])
        alive = [each - before for each in trace.alive]
    return sizes, Measured(kept, alive, products, kernel)


class _Run:
    """A piece, ready to be called."""

    def __init__(
        self,
        job: Job,
        c: TransformerConfig,
        rows: int,
        piece: ModelPiece,
        groups: ContextGroups | None,
    ) -> None:
        self.job, self.c, self.rows, self.piece = job, c, rows, piece
        self.length = job.batch.sequence_length
        role = piece.role
        self.whole: Any = None
        self.module: nn.Module
        if role == "norm":
            self.module = build_norm(c, c.dim)
        elif role == "dropout":
            self.module = nn.Dropout(c.dropout)
        else:
            self.whole = build_transformer(c, vocab_size=257)
            layer: Any = self.whole.layers["0"]
            if role in ("embedding", "output"):
                self.whole.keep_parts([role, *(["embedding"] if c.tie_embeddings else [])])
                self.module = self.whole
            else:
                self.module = layer.attention if role == "attention" else layer.feed_forward
        self.module.train()
        isolate = job.data.packing.isolate
        self.documents = torch.zeros(rows, self.length, dtype=torch.int64) if isolate else None
        self.held: list[Any] = []
        if role in ("attention", "feed_forward", "experts"):
            hidden = torch.empty(rows, self.length, c.dim)
            self.context = attention_context(c, hidden, documents=self.documents, groups=groups)

    def leaf(self) -> Tensor:
        if self.piece.role == "embedding":
            return torch.zeros(self.rows, self.length, dtype=torch.int64)
        precision = self.job.precision
        is_inside = "inside" in self.piece.key
        # Behind a norm under autocast hidden states are in its format.
        format = precision.compute if is_inside else precision.params
        shape = (self.rows, self.length, self.c.dim)
        return torch.zeros(*shape, dtype=DType(format).torch(), requires_grad=True)

    def forward(self, leaf: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The result, copied, and other ends of the graph."""
        extra: list[Tensor] = []
        role = self.piece.role
        if role == "embedding":
            out, context = self.whole.embed(leaf, None, self.documents, None, None)
            self.held.append(context)
        elif role == "output":
            inputs = leaf * 1.0
            model = self.whole

            def runs(hidden: Tensor, head: Any) -> Outcome:
                return Outcome(head(model.norm(hidden), model.projection))

            objective = Objective(model, self.job.loss.build(), runs=runs)
            tokens = torch.zeros(self.rows, self.length, dtype=torch.int64)
            count = self.rows * self.length
            batch = Batch(inputs, tokens, count, count, count)
            del inputs
            outcome = objective(batch)
            del batch
            return outcome.result.total / 7.0, []
        else:
            x = leaf * 1.0
            if role == "attention":
                out = self.module(x, self.context)
            elif role == "experts":
                out, routing = self.module(x, self.context.positions)
                extra = [
                    each for each in routing if isinstance(each, Tensor) and each.requires_grad
                ]
                self.held.append(routing)
            else:
                out = self.module(x)
            del x
        return out * 1.0, extra


class _Kernel(torch.autograd.Function):
    """Attention as one kernel that keeps no scores, where a CPU has none.

    Its own needs queries and values of one size, which those of GPUs do not.
    """

    results: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, heads, length, _ = query.shape
        out = value.new_zeros(rows, length, heads, value.shape[-1]).transpose(1, 2)
        normalizer = query.new_zeros(rows, heads, length, dtype=torch.float32)
        _Kernel.results.append(out.nbytes + normalizer.nbytes)
        ctx.save_for_backward(query, key, value, out, normalizer)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return tuple(torch.zeros_like(each) for each in ctx.saved_tensors[:3])


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **given: Any) -> Tensor:
    if query.shape[-1] == value.shape[-1]:
        return _SDPA(query, key, value, *_, **given)
    if torch.is_autocast_enabled("cpu"):
        wanted = torch.get_autocast_dtype("cpu")
        query, key, value = (each.to(wanted) for each in (query, key, value))
    return cast("Tensor", _Kernel.apply(query, key, value))


_SDPA = functional.scaled_dot_product_attention


@contextmanager
def _kernels() -> Iterator[None]:
    """Let attention be a kernel whatever the sizes of its heads."""
    _Kernel.results.clear()
    functional.scaled_dot_product_attention = _attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = _SDPA


@contextmanager
def _of_device(device: str) -> Iterator[None]:
    """Let norms and attention be computed as the device does it, as a dry run does."""
    before = FUSED[Tensor]
    if device != "cpu":
        FUSED[Tensor] = (torch.float32, torch.bfloat16, torch.float16)
        SHARE_NO_HEADS.add("cpu")
    FUSED[FakeTensor] = FUSED[Tensor]
    try:
        yield
    finally:
        FUSED[Tensor] = before
        SHARE_NO_HEADS.discard("cpu")
        del FUSED[FakeTensor]


def entry_of(key: str, samples: list[tuple[dict[str, int], Measured]]) -> dict[str, Any]:
    """Solve for the coefficients of a piece."""
    names = monomials_of(key)
    matrix = np.array([[value_of(name, sizes) for name in names] for sizes, _ in samples], float)
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1

    def solve(values: list[int]) -> dict[str, float]:
        wanted = np.array(values, float)
        found, *_ = np.linalg.lstsq(matrix / scale, wanted, rcond=1e-12)
        found = np.round(found / scale * 2) / 2
        if np.abs(matrix @ found - wanted).max() > 8:
            raise ValueError(f"{key}: {names} do not give {values[:4]}")
        return {n: _tidy(float(each)) for n, each in zip(names, found, strict=True) if each}

    counts = {len(found.alive) for _, found in samples}
    if len(counts) > 1:
        raise ValueError(f"{key}: {counts} allocations")
    curves = [solve([found.alive[n] for _, found in samples]) for n in range(counts.pop())]
    # The last chunk has what full ones leave, which says nothing of others: full ones are larger.
    curves = [each for each in curves if min(each.get("CV", 0), each.get("CD", 0)) >= 0]
    products = [
        solve([found.products[n] for _, found in samples])
        for n in range(len(samples[0][1].products))
    ]
    entry: dict[str, Any] = {
        "kept": solve([found.kept for _, found in samples]),
        "peaks": _highest(curves, key),
        "products": products,
        "kernel": solve([found.kernel for _, found in samples]),
    }
    return entry


def _tidy(number: float) -> float:
    return int(number) if number == int(number) else number


def _highest(curves: list[dict[str, float]], key: str) -> list[dict[str, float]]:
    """Those that are the largest of all at some sizes."""
    unique = list({json.dumps(each, sort_keys=True): each for each in curves}.values())
    dice, kept = random.Random(0), dict[int, None]()
    for _ in range(SAMPLES):
        sizes = likely(dice)
        values = [sum(c * value_of(n, sizes) for n, c in each.items()) for each in unique]
        kept[int(np.argmax(values))] = None
    return [unique[n] for n in sorted(kept)]


def likely(dice: random.Random) -> dict[str, int]:
    """Sizes that real models have."""
    dim = 2 ** dice.randrange(6, 15)
    heads = 2 ** dice.randrange(1, 8)
    length = 2 ** dice.randrange(5, 18)
    head = max(2, dim // heads)
    return {
        "B": 1, "T": length * dice.choice((1, 1, 2, 8, 64)), "S": length, "D": dim, "H": heads,
        "K": max(1, heads // dice.choice((1, 2, 4, 8))), "Q": head,
        "F": int(dim * dice.choice((0.25, 1, 2.7, 4))), "E": dice.choice((4, 64, 256)),
        "U": dice.choice((1, 2, 8)), "G": dim, "V": dice.choice((257, 32000, 256000)),
        "C": dice.choice((128, 512, 1024)), "N": head, "R": max(2, head // 2), "W": head,
        "L": max(8, dim // 8), "M": max(8, dim // 4), "P": length,
    }  # fmt: skip


def make(
    only: str = "",
    known: dict[str, Any] | None = None,
    write: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measure all keys, or those with a word in them."""
    table: dict[str, Any] = dict(known or {})
    done: set[str] = set()
    for flags in variants():
        try:
            job, _ = draw(flags, 0)
        except Exception as error:
            print("refused", flags, str(error)[:300])
            continue
        words = words_of(flags)
        for piece, role in pieces_of(job):
            key = piece.key + (words if role == "attention" else "")
            if key in done or only not in key or (not only and key in table):
                continue
            done.add(key)
            samples = []
            try:
                for seed in range(len(monomials_of(key)) + MORE):
                    drawn, rows = draw(flags, seed)
                    again = next(p for p, _ in pieces_of(drawn) if p.key == piece.key)
                    samples.append(measure(drawn, rows, again, words))
                table[key] = entry_of(key, samples)
                if write is not None:
                    write(table)
            except Exception as error:
                print("failed", key, flags, type(error).__name__, str(error)[:300])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    known = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    write(make(chosen.only, known, write))


def write(table: dict[str, Any]) -> None:
    """Write the table, a line a key."""
    lines = (f"{json.dumps(key)}: {json.dumps(table[key])}" for key in sorted(table))
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
