"""The arguments of Megatron-LM's pretraining scripts, release core 0.15, with their defaults.

Files for --yaml-cfg name some of them as the classes of the core do.

Defaults of converted keys come from megatron/training/arguments.py at commit 000c4ac.
"""

from __future__ import annotations

from dataclasses import replace

from setpoint.interop.dialect import Key, alike, keys_of

ENCODERS = "encoders, images and retrieval are not supported"
KERNELS = "a faster kernel or message of the same arithmetic"
PRINTED = "it changes what is printed only"
LISTS = """
    rampup-batch-size recompute-modules profile-ranks iterations-to-skip cp-comm-type
    hierarchical-context-parallel-sizes data-path train-data-path valid-data-path test-data-path
    moe-router-load-balancing-type moe-aux-loss-coeff tiktoken-special-tokens spec mrope-section
    high-priority-stream-groups
"""
"""Arguments that take several values."""
FLAGS = """
    group-query-attention use-rotary-position-embeddings no-position-embedding use-rope-scaling
    apply-layernorm-1p openai-gelu squared-relu swiglu quick-geglu
    untie-embeddings-and-output-weights multi-latent-attention disable-bias-linear add-qkv-bias
    qk-layernorm recompute-activations no-bias-gelu-fusion use-pytorch-profiler profile
    record-memory-history calculate-per-token-loss sequence-parallel manual-gc no-load-optim
    no-load-rng finetune exit-on-missing-checkpoint fp16 bf16 grad-reduce-in-bf16
    accumulate-allreduce-grads-in-fp32 use-distributed-optimizer use-megatron-fsdp use-torch-fsdp2
    torch-fsdp2-no-reshard-after-forward full-validation mock-data reset-position-ids
    reset-attention-mask moe-router-pre-softmax moe-router-enable-expert-bias moe-enable-deepep
    moe-pad-expert-input-to-capacity use-precision-aware-optimizer
    checkpoint-activations moe-layer-recompute tp-comm-overlap use-mup
    dataloader-inter-document-masking fine-grained-activation-offloading no-pad-vocab-size
    no-yarn-correction-range-round-to-int
    first-last-layers-bf16
"""
UNSET = """
    num-layers hidden-size ffn-hidden-size num-attention-heads kv-channels num-query-groups
    window-size window-attn-skip-freq max-position-embeddings no-rope-freq
    rotary-seq-len-interpolation-factor padded-vocab-size vocab-size
    tokenizer-type tokenizer-model micro-batch-size global-batch-size recompute-granularity
    recompute-method recompute-num-layers recompute-modules train-iters train-samples
    exit-duration-in-mins tensorboard-dir embedding-init-method-std lr lr-decay-iters
    lr-decay-samples lr-wsd-decay-iters lr-wsd-decay-samples lr-warmup-fraction decoupled-lr save
    save-interval save-retain-interval load pretrained-checkpoint ckpt-step loss-scale
    num-layers-per-virtual-pipeline-stage num-virtual-stages-per-pipeline-rank
    hierarchical-context-parallel-sizes start-weight-decay end-weight-decay data-path
    train-data-path valid-data-path split seq-length expert-tensor-parallel-size moe-ffn-hidden-size
    moe-shared-expert-intermediate-size fp8-format fp4-format distributed-timeout-seconds-after-init
    dataloader-type ddp-bucket-size check-weight-hash-across-dp-replicas-interval exit-interval
    decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers
    pipeline-model-parallel-layout train-tokens lr-decay-tokens lr-warmup-tokens
    num-key-value-heads moe-expert-parallel-size
    moe-loss-coeff moe-train-capacity-factor moe-eval-capacity-factor moe-min-capacity topk
    expert-interval mlp-type create-moe-param-group disable-moe-token-dropping
    eval-global-batch-size yarn-original-max-position-embeddings mup-base-hidden-size
    mup-base-head-dim offload-modules moe-flex-dispatcher-num-sms glu-linear-offset
    activation-func-clamp-value
"""
KEYS: dict[str, Key] = {
    **alike("", FLAGS, Key(False)),
    **alike("", f"program {UNSET}"),
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
    "extra-vocab-size": Key(0, decision="add it to the tokenizer's number: set model.vocab_size"),
    "attention-sink-k": Key(0, refused="the first tokens of a row are in no window"),
    "moe-grouped-gemm": Key(False, "model.moe.packed", optional=True),
    "q-lora-rank": Key(None, "model.mla.query_rank", optional=True),
    "kv-lora-rank": Key(32, "model.mla.kv_rank"),
    "qk-head-dim": Key(128, "model.mla.nope_head_dim"),
    "qk-pos-emb-head-dim": Key(64, "model.mla.rope_head_dim"),
    "v-head-dim": Key(128, "model.mla.value_head_dim"),
        # Keys with a different effect in Setpoint.
    "qk-l2-norm": Key(False, refused="queries and keys have RMSNorm alone"),
    "apply-residual-connection-post-layernorm": Key(False, refused="norms are before or after"),
    "init-method-xavier-uniform": Key(False, refused="initial weights are normal"),
    "rotary-interleaved": Key(False,
        differs="pairs of a head are its halves; neighbours there, which trains the same"),
    **alike("", "rampup-batch-size step-batch-size-schedule", Key(None,
        refused="the batch is that of the end from the start: set `batch` and the rate to it")),
    "weight-decay-incr-style": Key("constant", refused="decay is constant"),
    "decoupled-min-lr": Key(None, differs="the floor is the same share of each group's rate"),
    "optimizer-cpu-offload": Key(False, "parallel.sharding.offload", optional=True,
        differs="weights and gradients are in host memory, too"),
    "test-data-path": Key(None, differs="evaluate it with `setpoint evaluate` afterwards"),
    "eod-mask-loss": Key(False, decision="set loss.ignore_index to the token's id"),
}  # fmt: skip
"""Arguments of release core 0.15 with their defaults, but for those below."""
REFUSED = {
    ENCODERS: """
        encoder-num-layers decoder-num-layers encoder-seq-length decoder-seq-length num-classes
        img-h img-w patch-dim num-channels short-seq-prob vocab-extra-ids titles-data-path
        heterogeneous-layers-config-path heterogeneous-layers-config-encoded-json spec
        is-hybrid-model mrope-section disable-mamba-mem-eff-path bert-load
        query-in-block-prob block-data-path embedding-path evidence-data-path use-one-sent-docs
        head-lr-mult iter-per-epoch classes-fraction data-per-class-fraction
    """,
    "attention of another kind": "attention-output-gate experimental-attention-variant",
    "experts act on the whole width": "moe-latent-size",
    "reinforcement learning is not supported": "perform-rl-step refit-method",
    "conversations are a source of type conversations": "sft sft-tokenizer-prompt-format",
    "the further file it names is not read": """
        yaml-cfg data-args-path per-split-data-args-path use-checkpoint-args
        use-mp-args-from-checkpoint-args te-precision-config-file deepspeed-config
    """,
    "there is no equivalent": """
        moe-input-jitter-eps moe-use-upcycling moe-upcycling-granularity moe-extended-tp
        moe-router-force-load-balancing moe-router-force-biased moe-apply-probs-on-input
        moe-expert-rank-capacity-factor moe-router-quantile-balancing-ema
        moe-enable-routing-replay apply-query-key-layer-scaling fp32-residual-connection
        data-parallel-random-init iterations-to-skip skip-train
        relative-attention-num-buckets relative-attention-max-distance
        override-opt-param-scheduler use-checkpoint-opt-param-scheduler override-ckpt-iteration
        override-lr-scheduler use-checkpoint-lr-scheduler
        non-persistent-save-interval non-persistent-ckpt-type optimizer-offload-fraction
        activation-offload-fraction multiple-validation-sets validation-set-names
        decrease-batch-size-if-needed account-for-embedding-in-pipeline-split
        account-for-loss-in-pipeline-split enable-full-sharding-in-hsdp fp16-lm-cross-entropy
        check-for-spiky-loss check-for-large-grads dump-param-to-param-group-map
        fp8-quantizer-factory fp4-quantizer-factory fp8-output-proj replication replication-jump
        replication-factor delay-wgrad-compute freeze-all-layers apply-wd-to-qk-layernorm
        no-weight-decay-cond-type start-eval-at-iter phase-transition-iterations
        hybrid-context-parallel max-seqlen-per-dp-cp-rank fake-process-group
        tensor-parallel-num-weight-shards expert-tensor-parallel-num-weight-shards
        ddp-param-name-patterns-for-fp32-local-accumulation pytorch-profiler-collect-chakra
        save-activations-interval save-dgrads-interval save-wgrads-interval save-params-interval
        save-tokens-per-expert-interval muon-no-split-qkv muon-fp32-matmul-prec muon-tp-mode
        muon-coefficient-type muon-scalar-optimizer
    """,
}
for reason, names in REFUSED.items():
    KEYS |= alike("", names, Key(None, refused=reason))
for name in ("perform-rl-step", "is-hybrid-model", "sft", "attention-output-gate",
             "experimental-attention-variant", "moe-latent-size"):  # fmt: skip
    KEYS[name] = replace(KEYS[name], essential=True)
IDLE = {
    KERNELS: """
        use-mcore-models use-legacy-models transformer-impl DDP-impl fp32-allreduce deepspeed
        deepspeed-activation-checkpointing deepspeed-mpi no-pipeline-parallel
        memory-centric-tiled-linear no-query-key-layer-scaling
        distribute-checkpointed-activations partition-activations contigious-checkpointing
        no-masked-softmax-fusion
        no-bias-swiglu-fusion no-bias-dropout-fusion no-rope-fusion cross-entropy-loss-fusion
        cross-entropy-fusion-impl no-persist-layer-norm no-gradient-accumulation-fusion
        no-async-tensor-model-parallel-allreduce use-te-activation-func attention-softmax-in-fp32
        use-fused-weighted-squared-relu disable-tp-comm-overlap-ag disable-tp-comm-overlap-rs
        tp-comm-overlap-cfg tp-comm-overlap-rs-dgrad disable-tp-comm-bulk-dgrad
        disable-tp-comm-bulk-wgrad tp-comm-bootstrap-backend disable-tp-comm-split-ag
        disable-tp-comm-split-rs overlap-grad-reduce overlap-param-gather
        no-overlap-p2p-communication
        overlap-p2p-communication-warmup-flush overlap-param-gather-with-optimizer-step
        no-align-grad-reduce no-align-param-gather no-scatter-gather-tensors-in-pipeline
        use-ring-exchange-p2p defer-embedding-wgrad-compute wgrad-deferral-limit ddp-num-buckets
        ddp-pad-buckets-for-high-nccl-busbw ddp-average-in-collective distribute-saved-activations
        ddp-reduce-scatter-with-fp32-accumulation use-nccl-ub use-sharp sharp-enabled-group
        disable-symmetric-registration no-gradient-reduce-div-fusion fsdp-double-buffer
        suggested-communication-unit-size keep-fp8-transpose-cache nccl-communicator-config-path
        use-tp-pp-dp-mapping pipeline-model-parallel-comm-backend high-priority-stream-groups
        microbatch-group-size-per-virtual-pipeline-stage overlap-cpu-optimizer-d2h-h2d
        use-torch-optimizer-for-cpu-offload no-pin-cpu-grads no-pin-cpu-params
        moe-shared-expert-overlap moe-use-legacy-grouped-gemm moe-router-fusion moe-router-dtype
        moe-router-padding-for-fp8 moe-permute-fusion overlap-moe-expert-parallel-comm
        enable-cuda-graph external-cuda-graph te-rng-tracker fp8-margin fp8-interval
        fp8-amax-history-len fp8-amax-compute-algo no-fp8-wgrad fp8-param-gather fp4-recipe
        fp4-param-gather reuse-grad-buf-for-mxfp8-param-ag init-model-with-meta-device
        disable-bf16-reduced-precision-matmul no-clone-scatter-output-in-embedding
        enable-experimental symmetric-ar-type disable-gloo-process-groups disable-jit-fuser
        batch-invariant-mode create-all-gather-group delta-offload-bytes-across-pp-ranks
        delay-offload-until-cuda-graph min-offloaded-tensor-size optimizer-cuda-graph
        cpu-offloading-retain-pinned-cpu-buffers ep-overlap-early-attn-memory-release
        flash-attention-version fused-residual-rmsnorm high-priority-a2a-comm-stream
        mla-down-proj-fusion mlp-chunks-for-training moe-single-grouped-bias
        moe-single-grouped-weight moe-permute-fusion-into-hybridep moe-mlp-glu-interleave-size
        moe-shared-expert-glu-interleave-size moe-router-padding-for-quantization
        no-use-layer-wise-param-layout overlap-dispatch-backward-with-experts-wgrad
        use-grouped-gemm-for-dense-mlp use-grouped-gemm-for-shared-expert
        fused-padded-mla-attention use-contiguous-parameters-in-local-ddp
        use-transformer-engine-op-fuser outer-dp-sharding-strategy
    """,
    PRINTED: """
        timing-log-level no-barrier-with-level-1-timing timing-log-option tensorboard-log-interval
        tensorboard-queue-size no-log-loss-scale-to-tensorboard wandb-save-dir logging-level
        disable-straggler-on-startup no-one-logger app-tag-run-name app-tag-run-version
        config-logger-dir moe-per-layer-logging memory-snapshot-path enable-one-logger nvtx-ranges
        record-shapes gpu-sniff-test-interval
    """,
    "it is a field of the core that another argument sets": """
        gated-linear-unit params-dtype timers finalize-model-grads-func pipeline-dtype
        grad-scale-func enable-autocast autocast-dtype variable-seq-lengths
        num-microbatches-with-partial-activation-checkpoints overlap-p2p-comm batch-p2p-comm
        batch-p2p-sync deallocate-pipeline-outputs no-sync-func grad-sync-func param-sync-func
        pipeline-model-parallel-split-rank cpu-offloading cpu-offloading-context
        cpu-offloading-weights cpu-offloading-activations barrier-with-L1-time
        memory-efficient-layer-norm bias-activation-fusion tp-comm-atomic-ag tp-comm-atomic-rs
        delay-grad-reduce delay-param-gather standalone-embedding-stage perform-initialization
        moe-token-dropping
    """,
    "data are mapped, and read as they are asked for": """
        data-cache-path no-mmap-bin-files num-dataset-builder-threads mid-level-dataset-surplus
        no-create-attention-mask-in-dataloader object-storage-cache-path sample-rate
        allow-ambiguous-pad-tokens per-dataset-sequences-path no-data-sharding
        data-impl dataloader-defer-npy-index-mmap dataloader-fast-cache-load vocab-file merge-file
    """,
    "checkpoints are Setpoint's own": """
        no-save-rng use-dist-ckpt auto-detect-ckpt-format no-ckpt-fully-parallel-save
        no-ckpt-load-validate-sharding-integrity use-persistent-ckpt-worker no-initialization
        distrib-optim-fully-reshardable-mem-efficient load-main-params-from-ckpt async-strategy
        verify-integrity no-stream-ckpt-dequant
        no-strict-fsdp-dtensor-load no-use-tokenizer-model-from-checkpoint-args
    """,
    "it does not change what is trained": """
        no-check-for-nan-in-loss-and-grad exit-signal-handler exit-signal
        exit-signal-handler-for-training exit-signal-handler-for-dataloader local-rank
        lazy-mpu-init test-mode train-sync-interval rerun-mode result-rejected-tracker-filename
        no-manual-gc-eval legacy-tokenizer trust-remote-code disable-msc enable-msc
        bert-no-binary-head bert-binary-head onnx-safe enable-ft-package calc-ft-timeouts
        ft-num-warmup-iters
        run-workload-inspector-server flash-decode max-tokens-to-oom cache-mla-latents
        decode-only-cuda-graphs use-legacy-static-engine disable-chunked-prefill
        enable-chunked-prefill nccl-all-reduce-for-prefill mlp-chunks-for-prefill
        output-bert-embeddings bert-embedder-type moe-pad-experts-for-cuda-graph-inference
        num-speculative-tokens use-same-sampling-seed-across-dp-ranks eval-micro-batch-size
        chat-template train-mode max-padding-length dataset enable-shared-expert
    """,
}
for reason, names in IDLE.items():
    KEYS |= alike("", names, Key(None, idle=reason))

FAMILIES = {
    **alike("", """
        retro- retriever- biencoder- vision- swin- dino- ict- indexer- mask- mamba- hybrid-
    """, Key(None, refused=ENCODERS, essential=True)),
    **alike("", "linear- dsa- no-dsa-", Key(None, refused="attention of another kind")),
    **alike("", "grpo- rl- langrl-", Key(None, refused="reinforcement learning is not supported")),
    **alike("", "inprocess- adlr-", Key(None,
        refused="a lost rank ends the session, and `setpoint launch` starts it again")),
    "fim-": Key(None, refused="documents are not rearranged to fill in the middle",
        essential=True),
    "mtp-": Key(None, refused="multi-token prediction: its layers and their loss are left out"),
    "logits-": Key(None, refused="logits of a teacher are not read from files"),
    "qk-clip": Key(None, refused="weights of queries and keys are not clipped"),
    **alike("", "fault-injector- error-injection-", Key(None, refused="faults are not injected")),
    **alike("", "kitchen- use-kitchen-", Key(None, refused="its recipes are not known")),
    **alike("", "non-persistent- save-", Key(None, refused="there is no equivalent")),
    **alike("", """
        use-flash-attn scaled- yarn-correction- cuda-graph- moe-hybridep- moe-ncclep-
        moe-paged-stash megatron-fsdp- fsdp- no-tp-comm- no-moe- fine-grained-offloading-
    """, Key(None, idle=KERNELS)),
    **alike("", """
        log- straggler- one-logger- flight-recorder- no-flight-recorder- moe-routing-trace-
    """, Key(None, idle=PRINTED)),
    **alike("", "ckpt- dist-ckpt- async-ckpt-", Key(None, idle="checkpoints are Setpoint's own")),
    **alike("", "inference- tiktoken- tokenizer- no-tokenizer- null-tokenizer-",
        Key(None, idle="it does not change what is trained")),
}  # fmt: skip
"""Further arguments by their prefix."""
CORE = {
    "num-moe-experts": "num-experts", "layernorm-epsilon": "norm-epsilon", "fp8": "fp8-format",
    "layernorm-zero-centered-gamma": "apply-layernorm-1p", "apply-rope-fusion": "rope-fusion",
    "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
}  # fmt: skip
"""Arguments by the names that fields of the core's classes have."""


def argument_of(name: str, value: object) -> tuple[str, object]:
    """The argument for a name in a file; `--no-NAME` or `--disable-NAME` may switch it off."""
    plain = name.removeprefix("--").replace("_", "-").removeprefix("-")
    plain = CORE.get(plain, plain)
    off = (f"{word}-{plain.removeprefix('add-')}" for word in ("no", "disable"))
    if plain in KEYS or not isinstance(value, bool):
        return plain, value
    if (opposite := next((key for key in off if key in KEYS), None)) is None:
        return plain, value
    return opposite, not value
