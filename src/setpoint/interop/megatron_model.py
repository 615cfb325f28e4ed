"""The decoder described by Megatron-LM arguments: its sizes, positions and experts."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from typing import cast

from setpoint.interop.dialect import Conversion
from setpoint.interop.shell_script import evaluate


def convert_model(c: Conversion) -> None:
    """Set the section of the model."""
    _decoder(c)
    _positions(c)
    _experts(c)


def _decoder(c: Conversion) -> None:
    """The decoder; defaults are LayerNorm, GELU, biases and tied embeddings."""
    layers, dim, heads = (c.number(k) for k in ("num-layers", "hidden-size", "num-attention-heads"))
    for key in ("num-layers", "hidden-size", "num-attention-heads"):
        if type(value := c.number(key)) is not int or not 1 <= value <= 1_000_000:
            c.wrong(key, "given as a positive int")
            return
    c.set("model.type", "transformer")
    c.set("model.layers", layers, "num-layers")
    c.set("model.dim", dim, "hidden-size")
    c.set("model.heads", heads, "num-attention-heads")
    groups, named = c.number("num-key-value-heads") or heads, "group-query-attention"
    if c.value(named):
        groups, named = c.number("num-query-groups") or 1, "num-query-groups"
    c.set("model.kv_heads", groups, named)
    if channels := c.number("kv-channels"):
        c.set("model.head_dim", channels, "kv-channels")
    gated, width = c.value("swiglu"), c.number("ffn-hidden-size")
    default = int(4 * dim * 2 / 3) // 64 * 64 if gated else 4 * dim
    c.set("model.ffn_dim", width or default, "ffn-hidden-size", "swiglu")
    bias = not c.value("disable-bias-linear")
    fused = bias and not c.value("no-bias-gelu-fusion")  # its kernel approximates by tanh
    activations = {"swiglu": "swiglu", "squared-relu": "relu_squared", "openai-gelu": "gelu_tanh"}
    chosen = next((key for key in activations if c.value(key)), "no-bias-gelu-fusion")
    c.set("model.activation", activations.get(chosen, "gelu_tanh" if fused else "gelu"), chosen)
    if c.value("quick-geglu"):
        if (c.value("glu-linear-offset"), c.value("activation-func-clamp-value")) == (1, 7):
            keys = ("quick-geglu", "glu-linear-offset", "activation-func-clamp-value")
            c.set("model.activation", "swiglu_clamped", *keys)
        else:
            text = "a supported activation: with --glu-linear-offset 1 and "
            c.wrong("quick-geglu", f"{text}--activation-func-clamp-value 7, that of gpt-oss is")
    if c.choice("softmax-type", "vanilla", "learnable") == "learnable":
        c.set("model.attention_sinks", True, "softmax-type")
    if c.value("use-mup"):
        base = c.number("mup-base-hidden-size") or dim
        c.set("model.mup.base_dim", base, "mup-base-hidden-size", "use-mup")
        head = c.number("kv-channels") or dim // heads
        if base_head := c.number("mup-base-head-dim"):
            c.set("model.mup.base_head_dim", base_head, "mup-base-head-dim")
        elif c.number("mup-attn-scale-power") == 1:
            c.set("model.attention_scale", 1 / head, "mup-attn-scale-power")
    c.set("model.ffn_bias", bias, "disable-bias-linear")
    c.set("model.attention_output_bias", bias, "disable-bias-linear")
    c.set("model.qkv_bias", bias or c.value("add-qkv-bias"), "add-qkv-bias", "disable-bias-linear")
    if name := c.choice("normalization", "LayerNorm", "RMSNorm", "layernorm", "rmsnorm"):
        rms = name.lower() == "rmsnorm"
        c.set("model.norm.type", "rms_norm" if rms else "layer_norm", "normalization")
        if c.value("apply-layernorm-1p"):
            if rms:
                c.set("model.norm.zero_centered", True, "apply-layernorm-1p")
            else:
                here = "weights of LayerNorm decay towards 0"
                c.differs("apply-layernorm-1p", here, "centered at 0, towards 1")
    c.set("model.qk_norm", c.value("qk-layernorm"), "qk-layernorm")
    c.set("model.tie_embeddings", not c.value("untie-embeddings-and-output-weights"),
          "untie-embeddings-and-output-weights")  # fmt: skip
    dropout = c.number("hidden-dropout")
    c.set("model.dropout", dropout, "hidden-dropout")
    c.set("model.embedding_dropout", dropout, "hidden-dropout")
    c.set("model.residual_init", "depth_scaled", "init-method-std")
    length = c.number("max-position-embeddings") or c.number("seq-length")
    c.set("model.max_sequence_length", length, "max-position-embeddings")
    backends = {"auto": "auto", "flash": "auto", "fused": "sdpa_cudnn", "unfused": "eager",
                "local": "eager"}  # fmt: skip
    c.pick("model.attention_backend", "attention-backend", backends)
    multiple = c.number("make-vocab-size-divisible-by") * c.number("tensor-model-parallel-size")
    size, kind = c.number("vocab-size"), c.value("tokenizer-type")
    if c.value("no-pad-vocab-size"):
        multiple = 1
    if padded := c.number("padded-vocab-size"):
        c.set("model.vocab_size", padded, "padded-vocab-size")
        return
    if kind == "HuggingFaceTokenizer" and c.value("tokenizer-model") and size:
        size = None
        text = "in Megatron-LM, too: the tokenizer has the number of its tokens"
        c.report("without effect", "vocab-size", text)
    elif kind == "GPT2BPETokenizer" or (not kind and c.value("merge-file")):
        size = size or 50_257
    elif kind == "NullTokenizer" and size:
        size += 1  # the end of a document
    elif kind == "Llama2Tokenizer" and not size:
        size = 32_000
        text = "32000 tokens, as for Llama 2: set model.vocab_size for another tokenizer"
        c.report("needs a decision", "vocab-size", text)
    if size and multiple > 0:
        c.set("model.vocab_size", multiple * -(-size // multiple), "vocab-size", "tokenizer-type")
    else:
        c.set("model.vocab_multiple_of", multiple, "make-vocab-size-divisible-by")
        if kind != "HuggingFaceTokenizer":
            text = "the tokenizer's files define it: set model.vocab_size or tokenizer.path"
            c.report("needs a decision", "vocab-size", text)


def _positions(c: Conversion) -> None:
    """Learned positions, or rotary ones with their base, part and scaling; windows; MLA."""
    kinds = {"learned_absolute": "learned", "rope": "rotary", "yarn": "rotary", "none": "none"}
    kind = c.choice("position-embedding-type", *kinds)
    if kind is None:
        return
    if c.value("use-rotary-position-embeddings"):
        kind = "rope"
    if c.value("no-position-embedding") and kind not in ("rope", "yarn"):
        kind = "none"
    c.set("model.positions", kinds[kind], "position-embedding-type", "no-position-embedding")
    head = c.number("kv-channels") or (c.number("hidden-size") or 0) // (
        c.number("num-attention-heads") or 1
    )
    if kind in ("rope", "yarn"):
        c.set("model.rope_base", float(c.number("rotary-base")), "rotary-base")
        if (share := c.number("rotary-percent")) < 1:
            c.set("model.rope_dim", 2 * int(head * share / 2), "rotary-percent")
        if c.value("use-rope-scaling"):
            path = "model.rope_scaling"
            c.set(f"{path}.type", "llama3", "use-rope-scaling")
            c.set(f"{path}.factor", c.number("rope-scaling-factor"), "rope-scaling-factor")
            c.set(f"{path}.original_length", 8192, "use-rope-scaling")
        elif kind == "yarn":
            _yarn(c)
        elif (factor := c.number("rotary-seq-len-interpolation-factor") or 1) != 1:
            c.set("model.rope_scaling.type", "linear", "rotary-seq-len-interpolation-factor")
            c.set("model.rope_scaling.factor", float(factor), "rotary-seq-len-interpolation-factor")
        skipped = _pattern(c, "no-rope-freq", lambda index, n: (index + 1) % n == 0)
        if skipped:
            c.set("model.rope_pattern", [not skip for skip in skipped], "no-rope-freq")
    if isinstance(window := c.value("window-size"), str):
        sizes = re.findall(r"-?\d+", window)
        windowed = _pattern(c, "window-attn-skip-freq", lambda index, n: (index + 1) % n != 0)
        names = ["sliding" if slides else "full" for slides in windowed or [1]]
        c.set("model.sliding_window", int(sizes[0]) + 1 if sizes else 1, "window-size")
        c.set("model.attention_pattern", names, "window-attn-skip-freq", "window-size")
    if c.value("multi-latent-attention"):
        _latent(c)


def _latent(c: Conversion) -> None:
    """Latent attention, with YaRN if positions are scaled."""
    for path in ("kv_heads", "head_dim", "qk_norm"):  # low-rank projections have their norms
        c.data["model"].pop(path, None)
    if not c.value("qk-layernorm"):
        here = "latent queries, keys and values always have norms"
        c.differs("multi-latent-attention", here, "they have norms only with --qk-layernorm")
    c.set("model.positions", "rotary", "multi-latent-attention")
    for key in ("mscale", "mscale-all-dim"):
        c.value(key)  # without scaling, 1
    if c.value("rope-type") != "rope" and c.number("rotary-scaling-factor") > 1:
        base = _yarn(c)
        dim = c.number("qk-head-dim") + c.number("qk-pos-emb-head-dim")
        c.set("model.attention_scale", base**2 / math.sqrt(dim), "mscale-all-dim")


def _yarn(c: Conversion) -> float:
    """Set YaRN, and return the scale of both queries and keys in latent attention."""
    factor, path = c.number("rotary-scaling-factor"), "model.rope_scaling"

    def scale(part: float) -> float:
        return 0.1 * part * math.log(factor) + 1.0 if factor > 1 else 1.0

    base = scale(c.number("mscale-all-dim"))
    ratio = scale(c.number("mscale")) / base
    original = c.number(key := "yarn-original-max-position-embeddings") or 4096
    c.set(f"{path}.type", "yarn", "rotary-scaling-factor")
    c.set(f"{path}.factor", float(factor), "rotary-scaling-factor")
    c.set(f"{path}.original_length", original, key, "rotary-scaling-factor")
    c.set(f"{path}.attention_factor", ratio, "mscale", "mscale-all-dim")
    for name in ("fast", "slow"):
        c.set(f"{path}.beta_{name}", float(c.number(f"yarn-beta-{name}")), f"yarn-beta-{name}")
    if c.value(whole := "no-yarn-correction-range-round-to-int"):
        c.set(f"{path}.truncate", False, whole)
    return base


def _pattern(c: Conversion, key: str, of_count: Callable[[int, int], bool]) -> list[bool] | None:
    """A switch per layer, from `[0]*3+[1]*9` or a count; null without the argument."""
    value, layers = c.value(key), min(c.number("num-layers") or 0, 10_000)
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"[\d\[\]()+*, ]+", value):
        try:
            value = evaluate(ast.parse(value, mode="eval").body)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = None
    if type(value) is int and value > 0:
        return [of_count(index, value) for index in range(layers)]
    if isinstance(value, list) and len(cast("list[object]", value)) == layers:
        return [bool(item) for item in cast("list[object]", value)]
    c.wrong(key, f"a count, or a list of {layers} numbers such as [0]+[1]*{max(0, layers - 1)}")
    return None


def _experts(c: Conversion) -> None:
    """Experts; without any, the section is absent."""
    if not c.number("num-experts"):
        return
    path, layers = "model.moe", min(c.number("num-layers") or 0, 10_000)
    dim = c.number("hidden-size") or 0
    default = int(4 * dim * 2 / 3) // 64 * 64 if c.value("swiglu") else 4 * dim
    width = c.number("moe-ffn-hidden-size") or c.number("ffn-hidden-size") or default
    if width:
        c.set(f"{path}.expert_dim", width, "moe-ffn-hidden-size", "ffn-hidden-size")
    sparse = _pattern(c, "moe-layer-freq", lambda index, n: index % n == 0)
    if not sparse or all(sparse):
        for field in ("ffn_dim", "ffn_bias"):  # of layers without experts
            c.data["model"].pop(field, None)
    else:
        dense = sparse.index(True) if True in sparse else layers
        every = next((n for n in range(1, layers + 1)
                      if all(is_on == (index >= dense and (index + 1) % n == 0)
                             for index, is_on in enumerate(sparse))), None)  # fmt: skip
        if every is None:
            text = "layers with experts are every n-th, (i + 1) % n = 0, after some dense ones"
            c.wrong("moe-layer-freq", f"such a pattern: {text}")
        else:
            c.set(f"{path}.first_dense", dense, "moe-layer-freq")
            c.set(f"{path}.every", every, "moe-layer-freq")
    if not c.value("disable-bias-linear"):
        c.report("differs", "disable-bias-linear", "experts have no biases")
    if shared := c.number("moe-shared-expert-intermediate-size"):
        count, remainder = divmod(shared, width or shared)
        if remainder:
            c.wrong("moe-shared-expert-intermediate-size", f"a multiple of {width}, of an expert")
        c.set(f"{path}.shared_experts", count, "moe-shared-expert-intermediate-size")
        c.value("num-shared-experts")
    elif count := c.number("num-shared-experts"):
        c.set(f"{path}.shared_experts", count, "num-shared-experts")
    sigmoid = c.choice("moe-router-score-function", "softmax", "sigmoid") == "sigmoid"
    kind = "sigmoid_top_k" if sigmoid else "softmax_top_k"
    c.set(f"{path}.router.type", kind, "moe-router-score-function")
    normalize = sigmoid or not c.value("moe-router-pre-softmax")
    c.set(f"{path}.router.normalize", normalize, "moe-router-pre-softmax")
    if sigmoid:
        has_bias = c.value("moe-router-enable-expert-bias")
        rate = c.number("moe-router-bias-update-rate") if has_bias else 0.0
        c.set(f"{path}.router.bias_rate", float(rate), "moe-router-bias-update-rate")
    kinds, weights = c.value("moe-router-load-balancing-type"), c.value("moe-aux-loss-coeff")
    losses = {"aux_loss": "balance_loss", "seq_aux_loss": "sequence_balance_loss",
              "global_aux_loss": "balance_loss", "none": ""}  # fmt: skip
    c.set(f"{path}.balance_loss", 0.0, "moe-aux-loss-coeff")
    names = [str(name) for name in cast("list[object]", kinds or ["aux_loss"])]
    values = cast("list[object]", weights if isinstance(weights, list) else [weights or 0.0])
    for index, name in enumerate(names):
        value = values[min(index, len(values) - 1)] if values else 0.0
        if name not in losses or not isinstance(value, int | float):
            expected = f"of {', '.join(losses)} with a weight each"
            c.wrong("moe-router-load-balancing-type", expected)
        elif losses[name] and value:
            c.set(f"{path}.{losses[name]}", float(value), "moe-aux-loss-coeff")
    if c.number("moe-expert-capacity-factor"):
        c.value("moe-pad-expert-input-to-capacity")
        if c.value("moe-token-drop-policy") == "probs":
            here = "an expert drops the last of its tokens"
            c.differs("moe-token-drop-policy", here, "it drops those of the lowest probability")
    dispatcher = c.choice("moe-token-dispatcher-type", "allgather", "alltoall", "flex")
    backend = c.value("moe-flex-dispatcher-backend")
    if dispatcher == "flex" and backend == "hybridep":
        text = "tokens are exchanged by all-to-all, without the kernels of HybridEP"
        c.report("differs", "moe-flex-dispatcher-backend", text)
    elif (
        dispatcher == "flex"
        and (c.value("moe-enable-deepep") or c.given("moe-flex-dispatcher-backend"))
        and c.number("expert-model-parallel-size") > 1
    ):
        c.set("parallel.dispatch.type", "deepep", "moe-enable-deepep")
        keys = ("moe-flex-dispatcher-num-sms", "moe-deepep-num-sms")
        c.set("parallel.dispatch.sms", c.number(keys[0]) or c.number(keys[1]), *keys)
