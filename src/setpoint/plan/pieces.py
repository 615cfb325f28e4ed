"""Pieces of a model whose activations add up: the key and the sizes of each.

The key of a piece names everything that determines which tensors its code keeps for the backward
pass; the sizes determine how large they are. `setpoint.plan.memory` looks up keys in its table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from setpoint.model.attention.config import Backend
from setpoint.model.attention.selection import LIMITS, chosen, kind_of
from setpoint.model.config import LayerNormConfig, RMSNormConfig
from setpoint.model.parameters import embedding_rows, most_attended
from setpoint.train.build.job_parameters import WIDTHS

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig
    from setpoint.train.config import Job

Role = Literal["norm", "attention", "feed_forward", "experts", "dropout", "embedding", "output"]
COMPOSED = {"eager": "eager", "sdpa_math": "math"}
"""Key words of attention backends that materialize the weights of all pairs of positions."""
REPEATING = ("sdpa", "sdpa_efficient")
"""Backends that repeat shared key-value heads under a mask on a GPU, whose kernels share none."""


class ModelPiece(NamedTuple):
    """Piece of a layer, or of the model around the layers.

    Arguments:
        key: key in the table of activations.
        sizes: by letter: D model dim, H heads, K key-value heads, Q head dim, F inner width,
            E experts, U experts per token, G width of shared experts, V vocabulary rows, P learned
            positions, C tokens per chunk; of latent attention N, R, W head dims without and with
            rotation and of values, L, M ranks of keys and of queries. A rank adds B sequences, S
            their length, T tokens.
    """

    role: Role
    key: str
    sizes: tuple[tuple[str, int], ...]


def layer_pieces(job: Job, c: TransformerConfig, layer: int) -> Iterator[ModelPiece]:
    """Pieces of a layer, in order of computation."""
    before, after = c.norm_placement in ("pre", "both"), c.norm_placement in ("post", "both")
    formats = _formats(job)
    # The part after it gets its result, in the compute format under autocast.
    inner = formats if job.precision.compute == job.precision.params else f"{formats} inside"
    norm = (("D", c.dim),)
    dropout = ModelPiece("dropout", f"dropout {formats}", norm)
    for part in ("attention", "feed_forward"):
        if before:
            yield ModelPiece("norm", f"{_norm(job, c)} {formats}", norm)
        yield _attention(job, c, layer) if part == "attention" else _feed_forward(job, c, layer)
        if after:
            yield ModelPiece("norm", f"{_norm(job, c)} {inner}", norm)
        if c.dropout:
            yield dropout


def outer_pieces(
    job: Job, c: TransformerConfig, vocabulary: int, name: str
) -> Iterator[ModelPiece]:
    """Pieces of the embedding, or of the output with its norm and the loss."""
    formats = _formats(job)
    rows = embedding_rows(c, vocabulary)
    if name == "embedding":
        words = ["embedding", c.positions]
        if c.embedding_scale != 1.0:
            words.append("scaled")
        if c.embedding_dropout:
            words.append("dropout")
        words += _masks(job, c)
        rotated = c.head_dim if c.mla is None else c.mla.rope_head_dim
        sizes = (("D", c.dim), ("P", c.max_sequence_length), ("Q", rotated), ("V", rows))
        yield ModelPiece("embedding", " ".join([*words, formats]), sizes)
        return
    loss, kind = job.loss, type(job.loss)
    words = ["output", str(kind.__setpoint__.tag)]
    extras = ("z_loss", "label_smoothing", "token_weights")
    words += [field for field in extras if getattr(loss, field, None)]
    if c.logit_soft_cap is not None:
        words.append("capped")
    if c.tie_embeddings:
        words.append("tied")
    chunk = getattr(loss, "chunk_size", None) or 1024
    words += [_norm(job, c), formats]
    yield ModelPiece("output", " ".join(words), (("C", chunk), ("D", c.dim), ("V", rows)))


def _masks(job: Job, c: TransformerConfig) -> list[str]:
    """Key words for the masks that all layers share and the embedding creates."""
    backends: list[Backend] = [_backend(job, c, layer) for layer in range(c.layers)]
    words = ["eager"] if "eager" in backends else []
    if any(_holds_documents(job, backend) for backend in backends):
        words.append("documents")
    windows = [
        _has_window(job, c, layer) and _is_dense(backend) for layer, backend in enumerate(backends)
    ]
    words += ["window"] if any(windows) else []
    # Whether there are masks of two kinds.
    return [*words, "both"] if any(windows) and not all(windows) else words


def _backend(job: Job, c: TransformerConfig, layer: int) -> Backend:
    """Attention backend of a layer, on a GPU unless the job sets the CPU."""
    device = "cpu" if job.parallel.device == "cpu" else "cuda"
    masked = bool(job.data.packing.isolate) or _has_window(job, c, layer)
    ring = job.parallel.degrees["ring"] > 1
    return chosen(c, device, job.precision.compute, masked=masked, ring=ring)


def _holds_documents(job: Job, backend: Backend) -> bool:
    """True if documents are isolated by a mask of all pairs of positions."""
    return bool(job.data.packing.isolate) and _is_dense(backend)


def _is_dense(backend: Backend) -> bool:
    """True if any mask other than the causal one covers all pairs of positions."""
    return LIMITS[backend].masks in ("dense", "causal")


def _has_window(job: Job, c: TransformerConfig, layer: int) -> bool:
    length = job.batch.sequence_length
    return most_attended(c, kind_of(c, layer), length) < length


def _formats(job: Job) -> str:
    precision = job.precision
    formats = f"{WIDTHS[precision.params]}/{WIDTHS[precision.compute]}"
    # Norms without their own kernel are composed of others.
    is_plain = precision.params != "fp32" and job.parallel.device == "cpu"
    return f"{formats} plain" if is_plain else formats


def _norm(job: Job, c: TransformerConfig) -> str:
    if isinstance(c.norm, LayerNormConfig):
        return "layer_norm bias" if c.norm.bias else "layer_norm"
    if isinstance(c.norm, RMSNormConfig) and c.norm.zero_centered:
        return "rms_norm centered"
    return "rms_norm"


def _attention(job: Job, c: TransformerConfig, layer: int) -> ModelPiece:
    backend = _backend(job, c, layer)
    words, norms = ["attention" if c.mla is None else "latent"], c.norms_queries(layer)
    sizes = {"D": c.dim, "H": c.heads}
    if c.mla is None:
        sizes |= {"K": c.kv_heads, "Q": c.head_dim}
        words += ["merged"] if c.merge_qkv else []
        words += [_norm(job, c) if c.qk_norm_weights else "rms_norm"] if norms else []
    else:
        m = c.mla
        sizes |= {"N": m.nope_head_dim, "R": m.rope_head_dim, "W": m.value_head_dim}
        sizes |= {"L": m.kv_rank} | ({"M": m.query_rank} if m.query_rank else {})
        words += ["query"] if m.query_rank else []
        words.append(_norm(job, c))
    words += ["rotary"] if c.positions == "rotary" else []
    words.append(COMPOSED.get(backend, "kernel"))
    words += ["capped"] if c.attention_soft_cap is not None and backend in COMPOSED else []
    words += ["sinks"] if c.attention_sinks else []
    on_gpu = job.parallel.device != "cpu"
    # GPU kernels apply dropout as they compute the weights; no CPU kernel does.
    words += ["dropout"] if c.attention_dropout and (backend in COMPOSED or not on_gpu) else []
    if _holds_documents(job, backend):
        words.append("masked")
    elif _has_window(job, c, layer) and _is_dense(backend):
        words.append("window")
    is_masked = words[-1] in ("masked", "window")
    if (
        on_gpu
        and c.mla is None
        and c.kv_heads != c.heads
        and backend in REPEATING
        and (is_masked or backend == "sdpa_efficient")
    ):
        words.append("repeated")
    return ModelPiece("attention", " ".join([*words, _formats(job)]), tuple(sizes.items()))


def _feed_forward(job: Job, c: TransformerConfig, layer: int) -> ModelPiece:
    moe, formats = c.moe, _formats(job)
    bias = " bias" if c.ffn_bias else ""
    if moe is None or not moe.has_experts(layer):
        sizes = (("D", c.dim), ("F", c.ffn_dim))
        return ModelPiece("feed_forward", f"feed_forward {c.activation}{bias} {formats}", sizes)
    words = ["experts", c.activation, "packed" if moe.packed else "apart"]
    words.append(str(type(moe.router).__setpoint__.tag))
    words += ["capacity_factor"] if moe.capacity_factor else []
    words += ["bias"] if moe.bias else []
    width = moe.width(c.ffn_dim)
    sizes = {"D": c.dim, "F": width, "E": moe.experts, "U": moe.top_k}
    if moe.shared_experts:
        words.append("shared")
        sizes["G"] = moe.shared_experts * width
    return ModelPiece("experts", " ".join([*words, formats]), tuple(sizes.items()))
