"""What a transformer keeps for its backward pass, by a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from setpoint.memory.config import Full, Operators, Parts
from setpoint.model.attention.support import chosen
from setpoint.model.norm.config import LayerNorm
from setpoint.model.vocabulary import embedding_rows
from setpoint.train.config import Job

if TYPE_CHECKING:
    from setpoint.model.config import Transformer

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


class Activations(NamedTuple):
    """Bytes of one micro-batch.

    Arguments:
        kept: between the forward and the backward pass, but for logits.
        again: of the layer that takes most when it is recomputed, on top of that.
    """

    kept: int
    again: int
    logits: int


class _Layer(NamedTuple):
    """Bytes that one layer keeps.

    Arguments:
        inputs: of attention and feed-forward network, where nothing but they keep them.
    """

    entry: int
    norms: int
    inputs: tuple[int, int]
    attention: int
    feed_forward: int
    products: list[int]
    kernel: int

    @property
    def all(self) -> int:
        return self.entry + self.norms + sum(self.inputs) + self.attention + self.feed_forward


def activations(job: Job, model: Transformer, vocab_size: int) -> Activations:
    """Estimate what is kept of one micro-batch for its backward pass.

    With T tokens of a micro-batch, D model dim, H heads and K key-value heads of size Q, F the
    width of the feed-forward network, c bytes of a number in the compute format and r in that of
    the residual stream, a gated layer with norms before its parts keeps

        T (2 D r + 2 D c + 2 (H + K) Q c + 4 H + 4 F c) bytes:

    both inputs of norms, both of its parts, queries, keys, values and their mix, the normalizers
    of attention as one kernel, and gate, up, the activation and its product with up. Under
    autocast its matrices, cast to the compute format, come on top. Computed again, a whole layer
    keeps D r of each token, a part its input, and `operators` the results of the products and of
    attention. What a kernel needs for a moment, and what a compiler does without, is not known.
    """
    section = job.memory.activation_checkpointing
    every = section.every if section is not None else 1
    tokens = _tokens(job)
    kept, again = 8 * tokens, 0
    whole = isinstance(section, Full | Operators) and every == 1
    if model.positions == "rotary" and not whole:
        # Cosines and sines, which whole layers are handed and do not keep.
        size = model.head_dim if model.mla is None else model.mla.rope_head_dim
        kept += 2 * 4 * job.batch.sequence_length // job.parallel.context * size
    for index in range(model.layers):
        layer = _layer(job, model, index)
        rest = _kept(section, layer) if index % every == 0 else layer.all
        kept += rest
        again = max(again, layer.all - rest)
    compute, stream = BYTES[job.precision.compute], BYTES[job.precision.params]
    kept += _norm(model, tokens, model.dim, stream) + tokens * model.dim * compute
    return Activations(kept, again, _logits(job, model, tokens, vocab_size))


def _tokens(job: Job) -> int:
    """How many of a micro-batch a rank has; those that divide sequences have a part each."""
    return job.batch.micro_size * job.batch.sequence_length // job.parallel.context


def _kept(section: object, layer: _Layer) -> int:
    """What a layer keeps under a kind of activation checkpointing; all under an unknown one."""
    if isinstance(section, Full):
        return layer.entry
    if isinstance(section, Parts):
        left = layer.all
        left -= layer.attention * ("attention" in section.parts)
        return left - layer.feed_forward * ("feed_forward" in section.parts)
    if isinstance(section, Operators):
        products = layer.products[:: section.matmul_every] if "matmul" in section.save else []
        return layer.entry + sum(products) + layer.kernel * ("attention" in section.save)
    return layer.all


def _layer(job: Job, c: Transformer, index: int) -> _Layer:
    tokens = _tokens(job)
    compute, stream = BYTES[job.precision.compute], BYTES[job.precision.params]
    before, after = c.norm_placement in ("pre", "both"), c.norm_placement in ("post", "both")
    entry, wide = tokens * c.dim * stream, tokens * c.dim * compute
    attention, products, kernel = _attention(job, c, tokens, compute)
    sparse = c.moe is not None and c.moe.has_experts(index)
    inner, more = (_experts if sparse else _feed_forward)(job, c, tokens, compute)
    # The norm before attention keeps the entry itself.
    norms = 0
    if before:
        norms += 2 * (_norm(c, tokens, c.dim, stream) - entry) + entry
    if after:
        norms += 2 * _norm(c, tokens, c.dim, compute)
    if c.dropout:
        norms += 2 * tokens * c.dim * (compute if job.parallel.device == "cpu" else 1)
    inputs = (wide, wide)
    if not before:  # attention reads the entry itself, and the network what is added to it
        inputs = (wide if compute != stream else 0, wide if compute != stream else entry)
    return _Layer(entry, norms, inputs, attention, inner, [*products, *more], kernel)


def _norm(c: Transformer, tokens: int, dim: int, size: int) -> int:
    """Its input, and a number or two in fp32 for each vector."""
    return tokens * (dim * size + (8 if isinstance(c.norm, LayerNorm) else 4))


def _attention(job: Job, c: Transformer, tokens: int, size: int) -> tuple[int, list[int], int]:
    """What attention keeps, the results of its products, and that of its kernel."""
    if c.mla is None:
        query, key, value = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim
        mixed = query
        results = [query + key + value] if c.merge_qkv else [query, key, value]
        kept = _casts(job, c.dim * sum(results) + query * c.dim)
        if c.qk_norm:
            kept += _norm(c, tokens * c.heads, c.head_dim, size)
            kept += _norm(c, tokens * c.kv_heads, c.head_dim, size)
    else:
        m = c.mla
        query = key = c.heads * (m.nope_head_dim + m.rope_head_dim)
        up = c.heads * (m.nope_head_dim + m.value_head_dim)
        mixed = c.heads * m.value_head_dim
        value = up  # a view of the keys and values of all heads
        down = m.kv_rank + m.rope_head_dim
        rank = m.query_rank or 0
        results = [*([rank] if rank else []), query, down, up]
        kept = tokens * (down + m.kv_rank) * size + 4 * tokens
        kept += (tokens * 2 * rank * size + 4 * tokens) if rank else 0
        matrices = (rank * (c.dim + query) if rank else c.dim * query) + c.dim * down
        kept += _casts(job, matrices + m.kv_rank * up + mixed * c.dim)
    kernel = tokens * (mixed * size + 4 * c.heads)
    composed = chosen(c) in ("eager", "sdpa_math")
    if composed:
        scores = tokens * c.heads * job.batch.sequence_length
        # Weights, and what a limit to the scores keeps; no normalizers.
        kernel = tokens * mixed * size
        kept += scores * (size if size == 4 else 4 + size)
        kept += scores * size if c.attention_soft_cap is not None else 0
        products = [scores * size, kernel]
    else:
        products = []
    kept += tokens * (query + key + value) * size + kernel
    sizes = [tokens * each * size for each in results]
    return kept, [*sizes, *products, tokens * c.dim * size], 0 if composed else kernel


def _feed_forward(job: Job, c: Transformer, tokens: int, size: int) -> tuple[int, list[int]]:
    return _network(job, c, tokens, size, c.ffn_dim)


def _network(job: Job, c: Transformer, tokens: int, size: int, width: int) -> tuple[int, list[int]]:
    """What a feed-forward network keeps, and the results of its products."""
    inner, out = tokens * width * size, tokens * c.dim * size
    matrices = _casts(job, (3 if c.is_gated else 2) * c.dim * width)
    if c.is_gated:
        # The derivative of ReLU is read off its result.
        return (3 if c.activation == "reglu" else 4) * inner + matrices, [inner, inner, out]
    return (1 if c.activation == "relu" else 2) * inner + matrices, [inner, out]


def _experts(job: Job, c: Transformer, tokens: int, size: int) -> tuple[int, list[int]]:
    """The same of a router and its experts, if their load is even."""
    moe = c.moe
    assert moe is not None
    width, rows = moe.width(c.ffn_dim), tokens * moe.top_k
    if moe.capacity_factor is not None:
        rows = int(rows * min(1.0, moe.capacity_factor))
    products = 3 if c.is_gated else 2
    # Scores, logits, the places of the choices and their weights.
    kept = tokens * moe.experts * 8 + tokens * moe.top_k * 32 + 8 * tokens
    if moe.packed:
        kept += (products - 1) * rows * width * size
        kept += _casts(job, moe.experts * products * c.dim * width)
        results = [*([rows * width * size] * (products - 1)), rows * c.dim * size]
    else:
        inner, results = _network(job, c, rows, size, width)
        kept += inner + 2 * rows * c.dim * size
        kept += _casts(job, (moe.experts - 1) * products * c.dim * width)
    if job.precision.compute != job.precision.params:
        kept += tokens * c.dim * 4  # the router reads its input in fp32
    if moe.shared_experts:
        more, others = _network(job, c, tokens, size, moe.shared_experts * width)
        kept, results = kept + more, [*results, *others]
    return kept, [tokens * moe.experts * 4, *results]


def _casts(job: Job, numbers: int) -> int:
    """Matrices in the compute format, where it is not their own."""
    same = job.precision.compute == job.precision.params
    return 0 if same else numbers * BYTES[job.precision.compute]


def _logits(job: Job, c: Transformer, tokens: int, vocab_size: int) -> int:
    """Of the output and its loss: in the compute format, and in fp32 for the softmax."""
    rows = embedding_rows(c, vocab_size)
    size = BYTES[job.precision.compute]
    if not type(job.loss).from_hidden:
        capped = size * tokens * rows if c.logit_soft_cap is not None else 0
        return 4 * tokens * rows + capped + _casts(job, rows * c.dim)
    # Gradients instead, made in the forward pass, and the logits of one chunk.
    chunk = getattr(job.loss, "chunk_size", None) or 1024
    gradients = tokens * c.dim * size + rows * c.dim * 4
    return gradients + 3 * 4 * min(chunk, tokens) * rows + _casts(job, rows * c.dim)
