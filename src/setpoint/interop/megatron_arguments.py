"""The arguments of Megatron-LM's pretraining scripts, release core 0.15, with their defaults.

Files for --yaml-cfg name some of them as the classes of the core do.

Defaults of converted keys come from megatron/training/arguments.py at commit 000c4ac.
"""

from __future__ import annotations

from setpoint.interop.dialect import Key, keys_of, listed_keys

ENCODERS = "encoders, images and retrieval are not supported"
LISTS = """
    rampup-batch-size recompute-modules profile-ranks iterations-to-skip cp-comm-type
    hierarchical-context-parallel-sizes data-path train-data-path valid-data-path test-data-path
    moe-router-load-balancing-type moe-aux-loss-coeff tiktoken-special-tokens spec mrope-section
    high-priority-stream-groups
"""
"""Arguments that take several values."""
LISTED = listed_keys("megatron")
"""Arguments of `keys.toml`, or their prefixes, which end in a hyphen."""
KEYS: dict[str, Key] = {
    "deterministic-mode": Key(False, "deterministic", optional=True),
    "use-cpu-initialization": Key(False, "parallel.init_device", {True: "cpu"}, optional=True),
    "async-save": Key(False, "checkpoint.mode", {True: "async"}, optional=True),
    "no-save-optim": Key(False, "checkpoint.last", {True: "weights"}, optional=True),
    "log-params-norm": Key(False, "tracking.metrics.param_norms", {True: ["model"]}, optional=True),
    "seed": Key(1234, "seed"),
    "num-workers": Key(2, "data.loader.workers"),
    "log-interval": Key(100, "tracking.every", unit="{} steps"),
    "distributed-timeout-minutes": Key(10),
    "distributed-backend": Key("nccl", "parallel.backend", {"nccl": None, "gloo": "gloo",
        "nccl2": None}),
    "activation-func": Key(None),  # in files for --yaml-cfg
    "norm-epsilon": Key(1e-5, "model.norm_eps"),
    "init-method-std": Key(0.02, "model.init_std"),
    "attention-dropout": Key(0.1, "model.attention_dropout"),
    **keys_of("", **{"hidden-dropout": 0.1, "attention-backend": "auto",
        "position-embedding-type": "learned_absolute", "rotary-base": 10_000.0,
        "rotary-percent": 1.0, "rope-scaling-factor": 8.0, "rope-type": None,
        "make-vocab-size-divisible-by": 128, "normalization": "LayerNorm",
        "rotary-scaling-factor": 1.0, "mscale": 1.0, "mscale-all-dim": 0.0, "yarn-beta-fast": 32.0,
        "yarn-beta-slow": 1.0, "softmax-type": "vanilla", "mup-attn-scale-power": 1.0,
        "mup-output-mult": 1.0, "num-layers-at-start-in-bf16": 1, "num-layers-at-end-in-bf16": 1,
        "optimizer": "adam"}),
    "weight-decay": Key(0.01, "optimizer.weight_decay"),
    **keys_of("", **{"clip-grad": 1.0, "adam-beta1": 0.9,
        "adam-beta2": 0.999, "lion-beta1": 0.95, "lion-beta2": 0.98,
        "muon-scale-mode": "spectral", "muon-extra-scale-factor": 1.0,
        "lr-decay-style": "linear", "lr-wsd-decay-style": "exponential", "lr-warmup-iters": 0,
        "lr-warmup-samples": 0, "lr-warmup-init": 0.0, "min-lr": 0.0,
        "initial-loss-scale": float(2**32), "min-loss-scale": 1.0, "loss-scale-window": 1000.0,
        "hysteresis": 2}),
    "adam-eps": Key(1e-8, "optimizer.eps"),
    "sgd-momentum": Key(0.9, "optimizer.momentum"),
    "muon-momentum": Key(0.9, "optimizer.momentum"),
    "muon-num-ns-steps": Key(5, "optimizer.steps"),
    "muon-use-nesterov": Key(False, "optimizer.nesterov"),
    "tensor-model-parallel-size": Key(1, "parallel.tensor"),
    "pipeline-model-parallel-size": Key(1, "parallel.pipeline"),
    **keys_of("", **{"context-parallel-size": 1, "cp-comm-type": None}),
    "expert-model-parallel-size": Key(1, "parallel.expert"),
    **keys_of("", **{"num-distributed-optimizer-instances": 1,
        "data-parallel-sharding-strategy": "no_shard", "eval-iters": 100, "eval-interval": 1000,
        "manual-gc-interval": 0, "empty-unused-memory-level": 0, "cpu-offloading-num-layers": 0,
        "profile-step-start": 10, "profile-step-end": 12, "profile-ranks": None,
        "wandb-project": "", "wandb-entity": "", "wandb-exp-name": "", "fp8-recipe": "delayed",
        "exp-avg-dtype": "fp32", "exp-avg-sq-dtype": "fp32", "main-grads-dtype": "fp32",
        "main-params-dtype": "fp32", "moe-layer-freq": None, "moe-router-load-balancing-type": None,
        "moe-router-score-function": "softmax",
        "moe-router-bias-update-rate": 1e-3, "moe-aux-loss-coeff": None,
        "moe-token-dispatcher-type": "allgather", "moe-flex-dispatcher-backend": "deepep",
        "moe-deepep-num-sms": 20, "moe-token-drop-policy": "probs"}),
    "num-experts": Key(None, "model.moe.experts", optional=True),
    "moe-router-topk": Key(2, "model.moe.top_k"),
    "moe-router-topk-scaling-factor": Key(None, "model.moe.route_scale", optional=True),
    "moe-router-num-groups": Key(None, "model.moe.groups", optional=True),
    "moe-router-group-topk": Key(None, "model.moe.top_groups", optional=True),
    "moe-z-loss-coeff": Key(None, "model.moe.router_z_loss", optional=True),
    "moe-expert-capacity-factor": Key(None, "model.moe.capacity_factor", optional=True),
    "moe-shared-expert-gate": Key(False, "model.moe.shared_gate", optional=True),
    "mup-embedding-mult": Key(1.0, "model.embedding_scale"),
    "pytorch-profiler-collect-callstack": Key(False, "profiling.stacks", optional=True),
    "pytorch-profiler-collect-shapes": Key(False, "profiling.shapes", optional=True),
    "zero-stage": Key(0),  # of DeepSpeed's fork, like the arguments in tokens
    "ds-sequence-parallel-size": Key(1, "parallel.ulysses"),
    # Of forks by Alibaba and AMD.
    "num-shared-experts": Key(None),
    "extra-vocab-size": Key(0, decision="set model.vocab_size to the tokenizer's size plus this "
                                        "number"),
    "attention-sink-k": Key(0, refused="windows do not include the first tokens of a row"),
    "moe-grouped-gemm": Key(False, "model.moe.packed", optional=True),
    "q-lora-rank": Key(None, "model.mla.query_rank", optional=True),
    "kv-lora-rank": Key(32, "model.mla.kv_rank"),
    "qk-head-dim": Key(128, "model.mla.nope_head_dim"),
    "qk-pos-emb-head-dim": Key(64, "model.mla.rope_head_dim"),
    "v-head-dim": Key(128, "model.mla.value_head_dim"),
        # Keys with a different effect in Setpoint.
    "qk-l2-norm": Key(False, refused="queries and keys have only RMSNorm"),
    "apply-residual-connection-post-layernorm": Key(False, refused="only norms before or after "
                                                                   "the sub-layers are supported"),
    "init-method-xavier-uniform": Key(False, refused="initial weights are always normally "
                                                     "distributed"),
    "rotary-interleaved": Key(False,
        differs="RoPE rotates the halves of a head; in Megatron-LM, adjacent pairs, which trains "
                "the same"),
    "rampup-batch-size": Key(None),
    "step-batch-size-schedule": Key(None,
        refused="the final batch size is used; for growth by equal increments set batch.ramp"),
    "weight-decay-incr-style": Key("constant", refused="weight decay is constant"),
    "decoupled-min-lr": Key(None, differs="all groups have the same floor as a share of their "
                                          "learning rate"),
    "optimizer-cpu-offload": Key(False, "parallel.sharding.offload", optional=True,
        differs="weights and gradients are offloaded, too"),
    "test-data-path": Key(None, differs="evaluate it with `setpoint evaluate` afterwards"),
    "eod-mask-loss": Key(False, decision="set loss.ignore_index to the token's id"),
    **{name: key for name, key in LISTED.items() if not name.endswith("-")},
}  # fmt: skip
"""Arguments of release core 0.15 with their defaults."""
FAMILIES = {name: key for name, key in LISTED.items() if name.endswith("-")}
"""Further arguments by their prefix."""
CORE = {
    "num-moe-experts": "num-experts", "layernorm-epsilon": "norm-epsilon", "fp8": "fp8-format",
    "layernorm-zero-centered-gamma": "apply-layernorm-1p", "apply-rope-fusion": "rope-fusion",
    "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
}  # fmt: skip
"""Arguments by the names that fields of the core's classes have."""


def argument_of(name: str, value: object) -> tuple[str, object]:
    """The argument with a value; `--no-NAME` or `--disable-NAME` may switch it off."""
    off = (f"{word}-{name.removeprefix('add-')}" for word in ("no", "disable"))
    if name in KEYS or not isinstance(value, bool):
        return name, value
    if (opposite := next((key for key in off if key in KEYS), None)) is None:
        return name, value
    return opposite, not value
