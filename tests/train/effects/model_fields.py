"""Effects of the fields of `[model]`, `[adapter]` and `[loss]`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.adapter import config as quantize
from setpoint.adapter.config import NF4
from setpoint.config.values.user_code import allow_imports
from setpoint.infer.adopt import complete
from setpoint.infer.config import Inference, InferenceWeights
from setpoint.infer.loaded_model import load
from setpoint.infer.tasks import Generation
from setpoint.model import load_pretrained, save_pretrained
from setpoint.model.attention.choose_backend import choose_backend
from setpoint.model.config import TransformerConfig
from setpoint.model.moe import experts
from setpoint.shapes.outcome import Projection
from setpoint.train.build.components import build_components
from setpoint.train.build.job_parameters import adapted
from setpoint.train.config import Job
from setpoint.train.run import train

from ..small import TABLE, Table, loop_of, small_job, stepped
from .observations import Row, learned, logits, rates, weights

allow_imports(__name__)


class Softened(Table):
    """A table of logits that are half as large."""

    def __init__(self, vocab_size: int, dropout: float) -> None:
        super().__init__(vocab_size, dropout, scale=0.5)


def backend(job: Job) -> str:
    """The attention backend on the CPU."""
    assert isinstance(job.model, TransformerConfig)
    return choose_backend(job.model, torch.device("cpu")).name


def products(job: Job) -> set[str]:
    """The matrix products that experts use."""
    model, seen = build_components(job).model, set[str]()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("grouped_product", "looped_product"):
            real = getattr(experts, name)
            patch.setattr(experts, name, lambda *a, n=name, f=real: seen.add(n) or f(*a))
        model(torch.arange(64, 80)[None])
    return seen


def balanced(job: Job) -> dict[str, bytes]:
    """The state dict after four updates, with the biases of routers."""
    components = stepped(job)
    return {
        name: tensor.numpy().tobytes() for name, tensor in components.model.state_dict().items()
    }


def context(job: Job) -> int:
    """The context length of generation."""
    weights = InferenceWeights(path=str(train(job).directory))
    return load(complete(Inference(weights=weights, generation=Generation(prompts=("x",))))).context


def implementation(job: Job) -> str:
    """The attention implementation of transformers."""
    model: Any = build_components(job).model
    return model.model.config._attn_implementation


def prepare(folder: Path, name: str) -> None:
    """Make the models that a row names."""
    if name == "TransformerConfig.pretrained":
        small = ("duration=1 steps", "model.dropout=0", "seed=5")
        run = train(small_job(folder / "source", *small)).directory
        save_pretrained(load_pretrained(run), folder / "weights")
    elif name == "ImportedModel.pretrained":
        small = ("duration=1 steps", "model.dropout=0", "seed=5", *TABLE)
        run = train(small_job(folder / "source", *small)).directory
        run.rename(folder / "own")
    elif name.startswith("HuggingFaceConfig") and not (folder / "theirs").exists():
        theirs(folder / "theirs", {})
        theirs(folder / "narrow", {"n_embd": 8})


def theirs(folder: Path, keys: dict[str, Any]) -> None:
    """A small model that transformers wrote."""
    import transformers
    from torch.random import fork_rng

    with fork_rng(devices=[]):
        torch.manual_seed(5)  # not what a job of the same seed would draw
        config = transformers.GPT2Config(**{**KEYS, **keys, "bos_token_id": 0, "eos_token_id": 0})
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "gpt2"


def trained(job: Job) -> list[bytes]:
    """The parameters after an update."""
    components = build_components(job)
    loop_of(job, components=components).step()
    return [p.detach().numpy().tobytes() for p in components.model.parameters()]


def chunk_sizes(job: Job) -> set[int | None]:
    """Number of tokens per chunk of logits."""
    seen: set[int | None] = set()

    def finish(self: Projection, logits: Any, real: Any = Projection.finish) -> Any:
        seen.add(len(logits))
        return real(self, logits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Projection, "finish", finish)
        trained(job)
    return seen


CHUNKED = ("loss=chunked_cross_entropy",)
MERGED = ("model.merge_qkv=true",)


def layout(job: Job) -> list[Any]:
    """Adapted layers with their shapes and scales, and other trained parameters."""
    found = adapted(job, 257)
    if found is None:
        return []
    own = [(t.site.path, t.scale, *(p.shape for p in t.parameters())) for t in found.targets]
    return [*own, *(each.name for each in found.trained)]


def quantized(job: Job) -> list[Any]:
    """Quantized weights and their sizes in bytes."""
    found = adapted(job, 257)
    return [] if found is None else sorted(found.quantized.items())


def library(job: Job) -> str:
    """The quantization backend on a GPU with bitsandbytes installed."""
    assert job.adapter is not None
    config = job.adapter.quantize
    assert isinstance(config, NF4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "has_bitsandbytes", lambda: True)
        return config.backend_on("cuda")


def on(format: str, block: int, rank: int = 2) -> str:
    """An adapter on a base in a format."""
    quantize = f"{{type={format}, group_size={block}}}"
    return f"adapter={{type=qlora, rank={rank}, quantize={quantize}}}"


SIZES = {"nf4": 16, "int8": 16, "fp8": 4, "nvfp4": 16}
FORMATS = {"nf4": "NF4", "int8": "Int8", "fp8": "FP8", "nvfp4": "NVFP4"}
MX = ("adapter={type=qlora, rank=2, quantize={type=mxfp4}}", "model.dim=32", "model.ffn_dim=64")
NOISE = (on("nf4", 16), "adapter.quantize.noise.alpha=2")
# It still fades after the fourth update, where a run that is resumed changes it.
FADES = (*NOISE, "adapter.quantize.noise.final_alpha=0.1", "adapter.quantize.noise.decay_steps=8")
TORCH_LOSS = ("loss={type=import, target=torch.nn.CrossEntropyLoss}",)
SLIDING = ('model.attention_pattern=["sliding"]', "model.sliding_window=4")
BOTH_KINDS = (
    "model.layers=2",
    'model.attention_pattern=["full", "sliding"]',
    "model.sliding_window=4",
)
MUP = ("model.mup.base_dim=4",)
LAYER_NORM = ("model.norm=layer_norm",)
TORCH_NORM = ("model.norm={type=import, target=torch.nn.LayerNorm}",)
WIDTHS = "kv_rank=6, rope_head_dim=4, nope_head_dim=4, value_head_dim=4"
CHUNKS = ('model.attention_pattern=["chunked"]', "model.attention_chunk=4")
UNROTATED = ("model.layers=2", "model.rope_pattern=[true, false]")
TEMPERATURE = ("model.attention_temperature={interval=2, scale=0.5}",)
LATENT = (f"model.mla={{{WIDTHS}}}",)
LINEAR = ("model.rope_scaling={type=linear, factor=2}",)
LLAMA3 = ("model.rope_scaling={type=llama3, factor=2, original_length=100}",)
YARN = ("model.rope_scaling={type=yarn, factor=8, original_length=32}", "model.rope_base=20")
EXPERTS = ("model.moe={experts=4, expert_dim=16}",)
SIGMOID = (*EXPERTS, "model.moe.router={type=sigmoid_top_k, bias_rate=0.1}")
GROUPS = ("model.moe={experts=8, groups=4, top_groups=1}", "model.moe.router=sigmoid_top_k")
DEEP = (*EXPERTS, "model.layers=2")
THEIRS = ("model=huggingface", "model.config={tmp}/theirs")
KEYS = {"model_type": "gpt2", "vocab_size": 257, "n_embd": 16, "n_layer": 1, "n_head": 2}


PRETRAINED_ROWS: dict[str, Row] = {
    "TransformerConfig.pretrained": ("model.pretrained={tmp}/weights", weights, ()),
    "ImportedModel.pretrained": ("model.pretrained={tmp}/own", weights, TABLE),
    "HuggingFaceConfig.pretrained": ("model.pretrained={tmp}/theirs", weights, THEIRS),
    "HuggingFaceConfig.config": ("model.config={tmp}/narrow", weights, THEIRS),
    "HuggingFaceConfig.overrides": ("model.overrides.n_layer=2", weights, THEIRS),
    "HuggingFaceConfig.attention_backend": ("model.attention_backend=eager", implementation,
        THEIRS),
    "HuggingFaceConfig.embedding_noise": ("model.embedding_noise=9", learned, THEIRS),
    "TransformerConfig.embedding_noise": ("model.embedding_noise=9", learned, ()),
    "ImportedModel.embedding_noise": ("model.embedding_noise=9", learned, TABLE),
    "HuggingFaceConfig.max_sequence_length": ("model.max_sequence_length=64", context, THEIRS),
}  # fmt: skip


QUANTIZE: dict[str, Row] = {
    **{f"{name}.group_size": ("adapter.quantize.group_size=8", quantized, (on(tag, SIZES[tag]),))
       for tag, name in FORMATS.items()},
    **{f"{name}.exclude": ("adapter.quantize.exclude=[query]", quantized, (on(tag, SIZES[tag]),))
       for tag, name in FORMATS.items()},
    **{f"{name}.noise": ("adapter.quantize.noise.alpha=2", learned, (on(tag, SIZES[tag]),))
       for tag, name in FORMATS.items()},
    "MXFP4.exclude": ("adapter.quantize.exclude=[query]", quantized, MX),
    "MXFP4.noise": ("adapter.quantize.noise.alpha=2", learned, MX),
    "NF4.double": ("adapter.quantize.double=false", quantized, (on("nf4", 16),)),
    "NF4.backend": ("adapter.quantize.backend=torch", library, (on("nf4", 32), "model.dim=32")),
    "Noise.alpha": ("adapter.quantize.noise.alpha=1", learned, NOISE),
    "Noise.final_alpha": ("adapter.quantize.noise.final_alpha=0.1", learned, NOISE),
    "Noise.decay": ("adapter.quantize.noise.decay=linear", learned, FADES),
    "Noise.decay_steps": ("adapter.quantize.noise.decay_steps=2", learned, FADES),
}  # fmt: skip


SHARED: dict[str, Row] = {
    "rank": ("adapter.rank=4", layout, ("adapter.rank=2",)),
    "alpha": ("adapter.alpha=5", layout, ()),
    "rank_stabilized": ("adapter.rank_stabilized=true", layout, ()),
    "ranks": ("adapter.ranks=[{pattern=query, rank=3}]", layout, ()),
    "dropout": ("adapter.dropout=0.3", learned, ()),
    "b_std": ("adapter.b_std=0.1", learned, ()),
    "targets": ("adapter.targets=[query]", layout, ()),
    "exclude": ("adapter.exclude=[query]", layout, ()),
    "train": ("adapter.train=[norm]", layout, ()),
    "fused_projections": ("adapter.fused_projections=split", layout, MERGED),
    "merge": ("adapter.merge.every=2 steps", learned, ()),
    "quantize": ("adapter.quantize={type=int8, group_size=8}", quantized, ()),
}  # fmt: skip
RANKED = ("adapter={type=lora, ranks=[{pattern=query, rank=3}]}",)
MERGES = ("adapter={type=relora, rank=2, merge={every=2 steps}}",)


def shared(variant: str, field: str) -> tuple[Any, ...]:
    """The row of a field that all adapters have."""
    change, see, base = SHARED[field]
    adapter = on("nf4", 16, rank=8) if variant == "qlora" else f"adapter={{type={variant}, rank=8}}"
    return change, see, (adapter, *base)


ROWS: dict[str, Row] = {
    "TransformerConfig.max_sequence_length": ("model.max_sequence_length=64", context, (), 64),
    "TransformerConfig.dim": ("model.dim=32", weights),
    "TransformerConfig.layers": ("model.layers=2", weights),
    "TransformerConfig.heads": ("model.heads=4", logits),
    "TransformerConfig.kv_heads": ("model.kv_heads=1", weights),
    "TransformerConfig.head_dim": ("model.head_dim=16", weights),
    "TransformerConfig.ffn_dim": ("model.ffn_dim=40", weights),
    "TransformerConfig.ffn_multiple_of": ("model.ffn_multiple_of=8", weights),
    "TransformerConfig.rope_base": ("model.rope_base=100", logits),
    "TransformerConfig.norm_eps": ("model.norm_eps=0.1", logits),
    "TransformerConfig.init_std": ("model.init_std=0.5", weights),
    "TransformerConfig.tie_embeddings": ("model.tie_embeddings=true", weights),
    "TransformerConfig.dropout": ("model.dropout=0.3", learned),
    "ImportedLossConfig.target": ("loss.target=torch.nn.NLLLoss", learned, TORCH_LOSS),
    "ImportedModel.target": (f"model.target={__name__}.Softened", learned, TABLE),
    "ImportedModel.max_sequence_length": ("model.max_sequence_length=64", context, TABLE, 64),
    "TransformerConfig.ffn_multiplier": ("model.ffn_multiplier=2", weights, ()),
    "TransformerConfig.activation": ("model.activation=gelu", weights, ()),
    "TransformerConfig.ffn_bias": ("model.ffn_bias=true", weights, ()),
    "TransformerConfig.positions": ("model.positions=none", logits, ()),
    "TransformerConfig.rope_base_sliding": ("model.rope_base_sliding=50", logits, SLIDING),
    "TransformerConfig.rope_scaling": (LINEAR[0], logits, ()),
    "TransformerConfig.rope_dim": ("model.rope_dim=2", logits, ()),
    "TransformerConfig.rope_pattern": ("model.rope_pattern=[true, false]", logits,
        ("model.layers=2",)),
    "TransformerConfig.attention_pattern": ('model.attention_pattern=["sliding", "full"]', logits,
        BOTH_KINDS),
    "TransformerConfig.sliding_window": ("model.sliding_window=3", logits, SLIDING),
    "TransformerConfig.attention_chunk": ("model.attention_chunk=3", logits, CHUNKS),
    "TransformerConfig.attention_temperature": (TEMPERATURE[0], logits, UNROTATED),
    "AttentionTemperature.interval": ("model.attention_temperature.interval=3", logits,
        (*UNROTATED, *TEMPERATURE)),
    "AttentionTemperature.scale": ("model.attention_temperature.scale=0.9", logits,
        (*UNROTATED, *TEMPERATURE)),
    "TransformerConfig.attention_scale": ("model.attention_scale=0.1", logits, ()),
    "TransformerConfig.attention_soft_cap": ("model.attention_soft_cap=0.5", logits, ()),
    "TransformerConfig.logit_soft_cap": ("model.logit_soft_cap=0.5", logits, ()),
    "TransformerConfig.qk_norm": ("model.qk_norm=true", weights, ()),
    "TransformerConfig.qk_norm_across_heads": ("model.qk_norm_across_heads=true", weights,
        ("model.qk_norm=true",)),
    "TransformerConfig.qk_norm_pattern": ("model.qk_norm_pattern=[true, false]", weights,
        ("model.qk_norm=true", "model.layers=2")),
    "TransformerConfig.qk_norm_weights": ("model.qk_norm_weights=false", weights,
        ("model.qk_norm=true",)),
    "TransformerConfig.qkv_bias": ("model.qkv_bias=true", weights, ()),
    "TransformerConfig.attention_output_bias": ("model.attention_output_bias=true", weights, ()),
    "TransformerConfig.attention_sinks": ("model.attention_sinks=true", weights, ()),
    "TransformerConfig.merge_qkv": ("model.merge_qkv=true", weights, ()),
    "TransformerConfig.attention_backend": ("model.attention_backend=eager", backend, ()),
    "TransformerConfig.mla": (LATENT[0], weights, ()),
    "TransformerConfig.norm": (LAYER_NORM[0], weights, ()),
    "TransformerConfig.norm_placement": ("model.norm_placement=post", weights, ()),
    "TransformerConfig.residual_init": ("model.residual_init=plain", weights, ()),
    "TransformerConfig.init_std_embedding": ("model.init_std_embedding=1", weights, ()),
    "TransformerConfig.init_std_output": ("model.init_std_output=0.5", weights, ()),
    "TransformerConfig.mup": (MUP[0], weights, ()),
    "TransformerConfig.vocab_size": ("model.vocab_size=300", weights, ()),
    "TransformerConfig.vocab_multiple_of": ("model.vocab_multiple_of=64", weights, ()),
    "TransformerConfig.embedding_scale": ("model.embedding_scale=2", logits, ()),
    "TransformerConfig.residual_scale": ("model.residual_scale=0.5", logits, ()),
    "TransformerConfig.logit_scale": ("model.logit_scale=0.5", logits, ()),
    "TransformerConfig.attention_dropout": ("model.attention_dropout=0.5", learned, ()),
    "TransformerConfig.embedding_dropout": ("model.embedding_dropout=0.5", learned, ()),
    "MuP.base_dim": ("model.mup.base_dim=8", learned, MUP),
    "MuP.base_head_dim": ("model.mup.base_head_dim=2", logits, MUP),
    "RMSNormConfig.zero_centered": ("model.norm.zero_centered=true", weights, ()),
    "LayerNormConfig.bias": ("model.norm.bias=false", weights, LAYER_NORM),
    "ImportedNorm.target": ("model.norm.target=torch.nn.RMSNorm", weights, TORCH_NORM),
    "MLA.query_rank": ("model.mla.query_rank=5", weights, LATENT),
    "MLA.kv_rank": ("model.mla.kv_rank=5", weights, LATENT),
    "MLA.rope_head_dim": ("model.mla.rope_head_dim=6", weights, LATENT),
    "MLA.nope_head_dim": ("model.mla.nope_head_dim=5", weights, LATENT),
    "MLA.value_head_dim": ("model.mla.value_head_dim=5", weights, LATENT),
    "LinearScaling.factor": ("model.rope_scaling.factor=3", logits, LINEAR),
    "Llama3Scaling.factor": ("model.rope_scaling.factor=3", logits, LLAMA3),
    "Llama3Scaling.low_frequency_factor": ("model.rope_scaling.low_frequency_factor=2", logits,
        LLAMA3),
    "Llama3Scaling.high_frequency_factor": ("model.rope_scaling.high_frequency_factor=20", logits,
        LLAMA3),
    "Llama3Scaling.original_length": ("model.rope_scaling.original_length=16", logits, LLAMA3),
    "YarnScaling.factor": ("model.rope_scaling.factor=3", logits, YARN),
    "YarnScaling.original_length": ("model.rope_scaling.original_length=8", logits, YARN),
    "YarnScaling.beta_fast": ("model.rope_scaling.beta_fast=1.5", logits, YARN),
    "YarnScaling.beta_slow": ("model.rope_scaling.beta_slow=2.5", logits, YARN),
    "YarnScaling.attention_factor": ("model.rope_scaling.attention_factor=2", logits, YARN),
    "YarnScaling.truncate": ("model.rope_scaling.truncate=false", logits, YARN),
    "TransformerConfig.moe": (EXPERTS[0], weights, ()),
    "MoE.experts": ("model.moe.experts=5", weights, EXPERTS),
    "MoE.top_k": ("model.moe.top_k=3", logits, EXPERTS),
    "MoE.expert_dim": ("model.moe.expert_dim=24", weights, EXPERTS),
    "MoE.every": ("model.moe.every=2", weights, DEEP),
    "MoE.first_dense": ("model.moe.first_dense=1", weights, DEEP),
    "MoE.shared_experts": ("model.moe.shared_experts=2", weights, EXPERTS),
    "MoE.shared_gate": ("model.moe.shared_gate=true", weights,
        (*EXPERTS, "model.moe.shared_experts=1")),
    "MoE.bias": ("model.moe.bias=true", weights, EXPERTS),
    "MoE.router": ("model.moe.router=sigmoid_top_k", logits, EXPERTS),
    "MoE.scale_inputs": ("model.moe.scale_inputs=true", logits, EXPERTS),
    "MoE.route_scale": ("model.moe.route_scale=2.5", logits, EXPERTS),
    "MoE.groups": ("model.moe.groups=2", logits, GROUPS),
    "MoE.top_groups": ("model.moe.top_groups=2", logits, GROUPS),
    "MoE.balance_loss": ("model.moe.balance_loss=0.5", learned, EXPERTS),
    "MoE.sequence_balance_loss": ("model.moe.sequence_balance_loss=0.5", learned, EXPERTS),
    "MoE.router_z_loss": ("model.moe.router_z_loss=0.5", learned, EXPERTS),
    "MoE.capacity_factor": ("model.moe.capacity_factor=0.5", learned, EXPERTS),
    "MoE.gradient_scale": ("model.moe.gradient_scale=true", learned, EXPERTS),
    "MoE.load_sequences": ("model.moe.load_sequences=1", learned, EXPERTS),
    "MoE.packed": ("model.moe.packed=false", weights, EXPERTS),
    "MoE.implementation": ("model.moe.implementation=loop", products, EXPERTS),
    "SoftmaxTopK.normalize": ("model.moe.router.normalize=false", logits, EXPERTS),
    "SigmoidTopK.normalize": ("model.moe.router.normalize=false", logits, SIGMOID),
    "SigmoidTopK.bias_rate": ("model.moe.router.bias_rate=0.2", balanced, SIGMOID),
    "SigmoidTopK.bias_schedule": ("model.moe.router.bias_schedule=cosine_decay", balanced,
        SIGMOID),
    **PRETRAINED_ROWS,
    "CrossEntropy.z_loss": ("loss.z_loss=0.1", trained, ()),
    "CrossEntropy.label_smoothing": ("loss.label_smoothing=0.1", trained, ()),
    "CrossEntropy.ignore_index": ("loss.ignore_index=33", trained, ()),
    "CrossEntropy.token_weights": ("loss.token_weights={33: 2}", trained, ()),
    "ChunkedCrossEntropy.z_loss": ("loss.z_loss=0.1", trained, CHUNKED),
    "ChunkedCrossEntropy.label_smoothing": ("loss.label_smoothing=0.1", trained, CHUNKED),
    "ChunkedCrossEntropy.ignore_index": ("loss.ignore_index=33", trained, CHUNKED),
    "ChunkedCrossEntropy.token_weights": ("loss.token_weights={33: 2}", trained, CHUNKED),
    "ChunkedCrossEntropy.chunk_size": ("loss.chunk_size=16", chunk_sizes, CHUNKED),
    "Job.adapter": ("adapter={type=lora, rank=2}", learned),
    **{f"LoRA.{field}": shared("lora", field) for field in SHARED},
    **{f"DoRA.{field}": shared("dora", field) for field in SHARED},
    **{f"ReLoRA.{field}": shared("relora", field) for field in SHARED if field != "merge"},
    "ReLoRA.merge": ("adapter.merge=null", learned, MERGES, "refused: ConfigError"),
    "Merge.every": ("adapter.merge.every=5 steps", learned, MERGES),
    "Merge.optimizer_state": ("adapter.merge.optimizer_state=keep", learned,
        ("adapter={type=relora, rank=2, merge={every=1 steps}}",)),
    "Merge.rewarmup": ("adapter.merge.rewarmup=2 steps", rates, MERGES),
    **{f"QLoRA.{field}": shared("qlora", field) for field in SHARED},
    **QUANTIZE,
    "PatternRank.pattern": ("adapter.ranks.0.pattern=key", layout, RANKED),
    "PatternRank.rank": ("adapter.ranks.0.rank=4", layout, RANKED),
    "PatternRank.alpha": ("adapter.ranks.0.alpha=4", layout, RANKED),
}  # fmt: skip
