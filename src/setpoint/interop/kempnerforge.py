"""KempnerForge's TOML files: ten tables, with the defaults of its configuration classes.

Formulas of KempnerForge's training script: ranks = dp_replicate * dp_shard * tp * pp * cp * ep,
with dp_replicate * dp_shard data ranks; a step has grad_accum_steps batches of batch_size on each
data rank. The rate of step s, from 0, is s / W of the peak in a warm-up of W steps, and then decays
over decay_steps, or the rest of max_steps.
"""

from __future__ import annotations

from setpoint.interop.dialect import SAVE_MODES, Conversion, Dialect, Key, keys_of

BATCH = "batch.micro_size"
IMAGES = "images are not supported: batches contain only tokens"
MIXTURE_NEEDED = "phases and annealing apply only to a mixture (data.datasets)"
VISION = (
    "model.vlm",
    "vlm",
    "vision_encoder",
    "adapter",
    "video",
    "frame_selector",
    "time_embedding",
)
"""Tables of models of images and video."""

KEYS = {
    # Ranks.
    "distributed.dp_shard": Key(-1),
    "distributed.dp_replicate": Key(1, "parallel.replicate"),
    "distributed.tp": Key(1, "parallel.tensor"),
    "distributed.pp": Key(1, "parallel.pipeline"),
    "distributed.pp_schedule": Key("1f1b"),
    "distributed.cp": Key(1, "parallel.ring"),
    "distributed.ep": Key(1, "parallel.expert"),
    "distributed.backend": Key("cpu:gloo,cuda:nccl"),
    "distributed.nccl_timeout_sec": Key(1800, "parallel.timeout"),
    # The loop.
    "train.batch_size": Key(8),
    "train.seq_len": Key(2048, "batch.sequence_length"),
    "train.max_steps": Key(100_000, "duration", unit="{} steps"),
    "train.grad_accum_steps": Key(1),
    "train.grad_clip_norm": Key(1.0, "optimizer.clip_norm"),
    "train.seed": Key(42, "seed"),
    **keys_of("train.", data_seed=None, mixed_precision="bf16", activation_checkpointing="none",
        loss_fn="cross_entropy"),
    "train.compile_model": Key(True, "compile", {True: {}}, optional=True),
    "train.z_loss_weight": Key(0.0, "loss.z_loss"),
    "train.ce_chunk_size": Key(0),
    "train.shutdown_timeout_sec": Key(600.0, "resilience.grace_period"),
    "train.nccl_health_check_interval": Key(0, "resilience.liveness_every", unit="{} steps",
        optional=True),
    # Model.
    "model.model_type": Key("transformer"),
    "model.dim": Key(4096, "model.dim"),
    "model.n_layers": Key(32, "model.layers"),
    "model.n_heads": Key(32, "model.heads"),
    "model.n_kv_heads": Key(None, "model.kv_heads", optional=True),
    "model.vocab_size": Key(32_000, "model.vocab_size"),
    **keys_of("model.", ffn_dim_multiplier=1.0, ffn_hidden_dim=None),
    "model.norm_type": Key("rmsnorm", "model.norm", {"rmsnorm": "rms_norm",
        "layernorm": "layer_norm"}),
    "model.norm_eps": Key(1e-5, "model.norm_eps"),
    "model.activation": Key("silu", "model.activation", {"silu": "swiglu", "gelu": "gelu",
        "relu": "relu"}),
    "model.max_seq_len": Key(2048, "model.max_sequence_length"),
    "model.rope_theta": Key(10_000.0, "model.rope_base"),
    "model.tie_embeddings": Key(False, "model.tie_embeddings"),
    "model.qk_norm": Key(False, "model.qk_norm"),
    "model.init_std": Key(0.02, "model.init_std"),
    "model.sdpa_backend": Key("auto", "model.attention_backend", {"auto": "sdpa",
        "flash": "sdpa_flash", "efficient": "sdpa_efficient", "cudnn": "sdpa_cudnn",
        "math": "sdpa_math"}),
    # Experts.
    "model.num_experts": Key(0),
    "model.moe_top_k": Key(2, "model.moe.top_k"),
    "model.moe_frequency": Key(1, "model.moe.every"),
    **keys_of("model.", moe_router="softmax_topk", moe_shared_experts=0),
    "model.moe_aux_loss_weight": Key(0.01, "model.moe.balance_loss"),
    "model.moe_gradient_scale": Key(False, "model.moe.gradient_scale", optional=True,
        differs="gradients of experts are scaled, not their outputs"),
    "model.moe_capacity_factor": Key(0.0, "model.moe.capacity_factor", optional=True,
        differs="the top-k choices share one capacity; in KempnerForge, each has its own"),
    **keys_of("model.", moe_sequence_aux_loss_weight=0.0,
        moe_bias_schedule="constant", moe_packed_experts=False,
        moe_expert_ffn_multiplier=1.0),
    "model.moe_router_z_loss_weight": Key(0.0, "model.moe.router_z_loss", optional=True),
    # Optimizer and schedule.
    "optimizer.name": Key("adamw"),
    "optimizer.lr": Key(3e-4, "optimizer.lr"),
    "optimizer.weight_decay": Key(0.1, "optimizer.weight_decay"),
    "optimizer.betas": Key((0.9, 0.95), "optimizer.betas"),
    "optimizer.eps": Key(1e-8, "optimizer.eps"),
    "optimizer.fused": Key(True, "optimizer.implementation", {True: "fused"}, optional=True),
    "optimizer.muon_momentum": Key(0.95, "optimizer.momentum"),
    "optimizer.muon_ns_steps": Key(5, "optimizer.steps"),
    **keys_of("optimizer.", muon_adam_lr=None, schedule_free_warmup_steps=0),
    **keys_of("scheduler.", name="cosine", warmup_steps=2000, decay_steps=None, min_lr_ratio=0.1,
        stable_steps=None, wsd_decay_type="cosine", rex_alpha=1.0),
    # Data.
    **keys_of("data.", dataset_path="", file_pattern="*.npy", tokenizer_path=""),
    "data.num_workers": Key(4, "data.loader.workers"),
    "data.pin_memory": Key(True, "data.loader.pin_memory"),
    "data.prefetch_factor": Key(2, "data.loader.prefetch"),
    **keys_of("data.", hf_dataset_name=None, hf_dataset_config=None, hf_dataset_split="train",
        hf_dataset_text_field="text", hf_streaming=False, pack_sequences=False, datasets=[],
        mix_temperature=1.0, phases=[], anneal_start_step=0, anneal_weights={}),
    "data.hf_dataset_image_field": Key("image", refused=IMAGES),
    "data.hf_dataset_prompt_field": Key("", refused=IMAGES),
    "data.hf_image_size": Key(224, refused=IMAGES),
    # Evaluation.
    **keys_of("eval.", enabled=False, interval=1000, steps=50, dataset_path="",
        file_pattern="*.npy", hf_dataset_name=None, hf_dataset_config=None,
        hf_dataset_split="validation"),
    # Records.
    "checkpoint.dir": Key("checkpoints", "workspace"),
    "checkpoint.interval": Key(1000, "checkpoint.every", unit="{} steps"),
    "checkpoint.async_mode": Key("disabled", "checkpoint.mode", {**SAVE_MODES}),
    "checkpoint.keep_last_n": Key(3, "checkpoint.keep"),
    "checkpoint.load_path": Key(None, "checkpoint.load"),
    "checkpoint.export_dtype": Key("bfloat16",
        idle="only the export script reads it; use `setpoint export --dtype`"),
    "checkpoint.exclude_from_loading": Key([]),
    "plugins": Key([], refused="modules of KempnerForge are not imported; name your own with "
                               "--import"),
    **keys_of("checkpoint.dyn_ckpt_window.", start=0, stop=512, strategy="power2"),
    "checkpoint.ignore_freeze_mismatch": Key(False,
        idle="only image models freeze parts; use `setpoint train --accept optimizer.frozen`"),
    "metrics.log_interval": Key(10, "tracking.every", unit="{} steps"),
    **keys_of("metrics.", enable_wandb=False, enable_tensorboard=False,
        wandb_project="kempnerforge", wandb_run_name=None, wandb_run_id="",
        tensorboard_dir="tb_logs"),
    **keys_of("profiling.", enable=False, start_step=5, end_step=8),
    "profiling.trace_dir": Key("profiler_traces", "profiling.directory"),
} | dict.fromkeys(VISION, Key(None, refused=IMAGES, essential=True))  # fmt: skip
"""All keys, with the defaults of the configuration classes."""


def _complete(c: Conversion) -> None:
    """Convert the keys that depend on each other."""
    c.set("model.type", "transformer")
    c.set("model.residual_init", "depth_scaled")
    if c.value("model.model_type") != "transformer":
        c.wrong("model.model_type", f"'transformer': {IMAGES}")
    _batch(c)
    keys = ("model.ffn_hidden_dim", "model.ffn_dim_multiplier", "model.dim")
    c.set("model.ffn_dim", _width(c), *keys)
    _experts(c)
    _precision(c)
    _optimizer(c)
    _schedule(c)
    _loss(c)
    _data(c)
    _evaluation(c)
    _records(c)


def _batch(c: Conversion) -> None:
    """Ranks and batch; in KempnerForge ranks of an expert group see the same data."""
    shard, expert = c.number("distributed.dp_shard"), c.number("distributed.ep")
    if expert > 1 and shard > 0:
        c.set("parallel.shard", shard * expert, "distributed.dp_shard", "distributed.ep")
    else:
        c.set("parallel.shard", shard, "distributed.dp_shard")
    c.set("parallel.device", "cuda")
    backend = c.value("distributed.backend")
    if c.given("distributed.backend") and backend not in ("nccl", "cpu:gloo,cuda:nccl"):
        c.set("parallel.backend", backend, "distributed.backend")
    if c.number("distributed.pp") > 1:
        names = {name: name for name in ("1f1b", "gpipe", "interleaved_1f1b")}
        c.pick("parallel.pipelining.schedule", "distributed.pp_schedule", names)
    size, passes = c.number("train.batch_size"), c.number("train.grad_accum_steps")
    keys = ("train.batch_size", "train.grad_accum_steps")
    if wrong := [key for key in keys if c.number(key) < 1]:
        for key in wrong:
            c.wrong(key, f"at least 1, but {c.number(key)}")
    elif expert > 1 and (size * passes) % expert:
        text = f"{expert} expert ranks train the same {size * passes} sequences there, which they "
        text += "cannot divide evenly: set batch.global_size"
        c.report("needs a decision", "distributed.ep", text)
    elif expert > 1:
        # The same sequences in total, divided among the ranks of the expert groups as well.
        micro = size // expert if size % expert == 0 else 1
        c.set(BATCH, micro, *keys, "distributed.ep")
        c.set("batch.accumulation", size * passes // expert // micro, *keys, "distributed.ep")
    else:
        c.set(BATCH, size, "train.batch_size")
        c.set("batch.accumulation", passes, "train.grad_accum_steps")


def _width(c: Conversion) -> int:
    """Width of the feed-forward network, rounded up to a multiple of 256 unless given."""
    if (given := c.number("model.ffn_hidden_dim")) is not None:
        return given
    raw = int(4 * c.number("model.dim") * (2 / 3) * c.number("model.ffn_dim_multiplier"))
    return 256 * -(-raw // 256)


def _experts(c: Conversion) -> None:
    """Experts; without any, the section is absent."""
    experts = c.number("model.num_experts")
    if not experts:
        return
    c.set("model.moe.experts", experts, "model.num_experts")
    packed = bool(c.value("model.moe_packed_experts")) or c.number("distributed.ep") > 1
    c.set("model.moe.packed", packed, "model.moe_packed_experts", "distributed.ep")
    routers = {"softmax_topk": "softmax_top_k", "sigmoid_topk": "sigmoid_top_k"}
    if c.pick("model.moe.router.type", "model.moe_router", routers) == "sigmoid_topk":
        schedule = c.value("model.moe_bias_schedule")
        c.set("model.moe.router.bias_schedule", schedule, "model.moe_bias_schedule")
        text = "the bias only selects experts; in KempnerForge, it also affects their weights and "
        text += "is updated in each forward pass from the counts of one rank"
        c.report("differs", "model.moe_router", text)
        if weight := c.number("model.moe_sequence_aux_loss_weight"):
            # KempnerForge also multiplies it by the weight of the other loss.
            keys = ("model.moe_sequence_aux_loss_weight", "model.moe_aux_loss_weight")
            c.set("model.moe.sequence_balance_loss", weight * c.number(keys[1]), *keys)
    if c.number("model.moe_shared_experts"):
        # In KempnerForge any number gives one network of the usual width.
        c.set("model.moe.shared_experts", 1, "model.moe_shared_experts")
    if (multiplier := c.number("model.moe_expert_ffn_multiplier")) != 1:
        width = 16 * round(_width(c) * multiplier / 16)
        c.set("model.moe.expert_dim", width, "model.moe_expert_ffn_multiplier")


def _precision(c: Conversion) -> None:
    """Weights, products and optimizer state in one dtype, gradients summed in fp32."""
    key = "train.mixed_precision"
    if (name := c.choice(key, "bf16", "fp16", "fp32", "fp8")) is None:
        return
    if name == "fp16":
        c.set("precision.compute", "fp16", key)
        c.set("precision.loss_scale", {}, key)
        c.differs(key, "weights stay in fp32, and the loss is scaled", "neither holds")
    elif name != "fp32":
        c.set("precision.params", "bf16", key)
        c.set("precision.compute", "bf16", key)
        c.set("precision.reduce", "fp32", key)
    if name == "fp8":
        c.set("precision.float8.recipe", "tensorwise", key)
    key = "train.activation_checkpointing"
    if (mode := c.choice(key, "none", "full", "selective")) and mode != "none":
        kind = "full" if mode == "full" else "operators"
        c.set("memory.activation_checkpointing.type", kind, key)


def _optimizer(c: Conversion) -> None:
    """The optimizer; decay applies to weights of two or more dimensions, including embeddings."""
    name = c.choice("optimizer.name", "adamw", "lion", "muon", "schedule_free_adamw")
    if name is None:
        return
    c.set("optimizer.type", name, "optimizer.name")
    c.set("optimizer.no_decay", ["norm", "bias", "vector"])
    if name == "muon":
        c.set("optimizer.nesterov", False)
        c.set("optimizer.adjust_lr", "original")
        rate = c.number("optimizer.muon_adam_lr") or c.number("optimizer.lr")
        c.set("optimizer.adamw_lr", rate, "optimizer.muon_adam_lr", "optimizer.lr")
        here = "embedding and output use AdamW, and sharded matrices are orthogonalized as a whole"
        there = (
            "they use Muon up to a ratio of 10 between dimensions, and each rank orthogonalizes "
            "its part"
        )
        c.differs("optimizer.name", here, there)


def _schedule(c: Conversion) -> None:
    """Steps of the warm-up, the plateau and the decay, in sequence."""
    names = {"cosine": "cosine", "linear": "linear", "wsd": "wsd", "constant": "constant",
             "rex": "polynomial", "none": "none"}  # fmt: skip
    name, warmup = c.choice("scheduler.name", *names), c.number("scheduler.warmup_steps")
    free = c.number("optimizer.schedule_free_warmup_steps")
    is_free = c.value("optimizer.name") == "schedule_free_adamw"
    if name is None:
        return
    if name == "none" and is_free and free:
        c.set("schedule.type", "constant", "optimizer.schedule_free_warmup_steps")
        path, key = "schedule.warmup", "optimizer.schedule_free_warmup_steps"
        c.set(path, f"{free} steps", key)
        return
    if is_free and free:
        text = "the schedule has its own warm-up: set schedule.warmup"
        c.report("needs a decision", "optimizer.schedule_free_warmup_steps", text)
    c.set("schedule.type", names[name], "scheduler.name")
    if name == "none":
        return
    c.warm_up(f"{warmup} steps", "scheduler.warmup_steps")
    if name == "constant":
        return
    stable = (c.number("scheduler.stable_steps") or 0) if name == "wsd" else 0
    total = c.number("train.max_steps")
    decay = c.number("scheduler.decay_steps") or total - warmup - stable
    if decay <= 0:
        c.set("schedule.type", "constant", "scheduler.warmup_steps", "train.max_steps")
        return
    keys = ("scheduler.decay_steps", "train.max_steps")
    c.set("schedule.horizon", f"{warmup + stable + decay} steps", *keys)
    c.set("schedule.floor", c.number("scheduler.min_lr_ratio"), "scheduler.min_lr_ratio")
    if name == "wsd":
        c.set("schedule.decay_length", f"{decay} steps", "scheduler.decay_steps", "train.max_steps")
        c.set("schedule.decay", c.value("scheduler.wsd_decay_type"), "scheduler.wsd_decay_type")
    if name == "rex":
        c.set("schedule.power", c.number("scheduler.rex_alpha"), "scheduler.rex_alpha")
        c.set("schedule.hard_floor", True)


def _loss(c: Conversion) -> None:
    name = c.choice("train.loss_fn", "cross_entropy", "chunked_cross_entropy")
    if name is None:
        return
    c.set("loss.type", name, "train.loss_fn")
    if name == "chunked_cross_entropy":
        c.set("loss.chunk_size", c.number("train.ce_chunk_size") or 4096, "train.ce_chunk_size")


def _token_files(c: Conversion, folder: str, pattern: str) -> dict[str, object]:
    return {"type": "tokens", "paths": [f"{folder.rstrip('/')}/{pattern}"]}


def _data(c: Conversion) -> None:
    """One source, a mixture, or random tokens if no data is named."""
    c.set("data.held_out", 0)
    c.copy_given({"data.seed": "train.data_seed"})
    is_tokens = bool(c.value("data.dataset_path"))
    column, split = c.value("data.hf_dataset_text_field"), c.value("data.hf_dataset_split")
    datasets = c.sections("data.datasets")
    if datasets:
        items: list[dict[str, object]] = []
        for number, dataset in enumerate(datasets):
            common = {"name": dataset.get("name") or f"source-{number}",
                      "weight": dataset.get("weight", 1.0)}  # fmt: skip
            if path := dataset.get("path"):
                if not isinstance(path, str):
                    c.wrong("data.datasets", f"a list of mappings with a path, but {path!r}")
                source = _token_files(c, str(path), c.value("data.file_pattern"))
            else:
                source = {"type": "huggingface", "path": dataset.get("hf_name"), "split": split,
                          "subset": dataset.get("hf_config") or None, "field": column}  # fmt: skip
            items.append({**source, **common})
            c.report_rest("data.datasets", dataset, "name weight path hf_name hf_config")
        c.set_items("data.sources", items, "data.datasets")
        c.set("data.mixture.temperature", c.number("data.mix_temperature"), "data.mix_temperature")
        is_tokens = any(item["type"] == "tokens" for item in items)
        _phases(c)
    elif is_tokens:
        source = _token_files(c, c.value("data.dataset_path"), c.value("data.file_pattern"))
        c.set_items("data.sources", [source], "data.dataset_path")
    elif name := c.value("data.hf_dataset_name"):
        source = {"type": "huggingface", "path": name, "subset": c.value("data.hf_dataset_config"),
                  "split": split, "field": column,
                  "streaming": c.value("data.hf_streaming") or None}  # fmt: skip
        c.set_items("data.sources", [source], "data.hf_dataset_name")
    else:
        # Without a dataset, the training script draws random tokens.
        c.set_items("data.sources", [{"type": "random", "pattern": "uniform"}], "data.dataset_path")
    if not datasets and (c.value("data.phases") or c.value("data.anneal_start_step")):
        key = "data.phases" if c.value("data.phases") else "data.anneal_start_step"
        c.report("without effect", key, f"in KempnerForge, too: {MIXTURE_NEEDED}")
    tokenizer = c.value("data.tokenizer_path")
    if tokenizer:
        c.tokenizer(tokenizer, "data.tokenizer_path")
    elif is_tokens:
        c.set("tokenizer.type", "ids", "data.dataset_path")
    if c.value("data.pack_sequences"):
        c.set("data.packing.isolate", True, "data.pack_sequences")
    elif tokenizer or not is_tokens:
        c.set("data.packing.isolate", False, "data.pack_sequences")


def _phases(c: Conversion) -> None:
    phases = c.sections("data.phases")
    start, weights = c.number("data.anneal_start_step"), c.value("data.anneal_weights")
    if phases:
        items = [{"start": f"{phase.get('start_step', 0)} steps",
                  "weights": phase.get("dataset_weights") or None,
                  "lr_factor": phase.get("lr_scale", 1.0)} for phase in phases]  # fmt: skip
        c.set_items("data.phases", items, "data.phases")
    elif start and weights:
        c.set("data.anneal.start", f"{start} steps", "data.anneal_start_step")
        c.set("data.anneal.weights", weights, "data.anneal_weights")


def _evaluation(c: Conversion) -> None:
    """Batches on every data rank, converted to a number of sequences."""
    if not c.value("eval.enabled"):
        c.set("evaluation", None, "eval.enabled")
        return
    c.set("evaluation.every", f"{c.number('eval.interval')} steps", "eval.interval")
    keys = ("eval.steps", "train.batch_size")
    ranks = c.number("distributed.dp_replicate") * max(1, c.number("distributed.dp_shard"))
    count = c.number("eval.steps") * c.number("train.batch_size") * ranks
    if c.number("distributed.dp_shard") < 1:
        text = f"batches on each rank; {count} sequences are those of one rank. Multiply"
        c.report("differs", "eval.steps", text)
    if folder := c.value("eval.dataset_path"):
        source, key = _token_files(c, folder, c.value("eval.file_pattern")), "eval.dataset_path"
    elif name := c.value("eval.hf_dataset_name"):
        source, key = {"type": "huggingface", "path": name}, "eval.hf_dataset_name"
        source |= {"subset": c.value("eval.hf_dataset_config") or None,
                   "split": c.value("eval.hf_dataset_split")}  # fmt: skip
    else:
        c.wrong("eval.enabled", "possible without eval.dataset_path or eval.hf_dataset_name")
        return
    c.set_items("data.validation", [source], key)
    c.set("evaluation.sequences", count, *keys)


def _records(c: Conversion) -> None:
    """Run directories, trackers, profiles and health checks."""
    if c.value("checkpoint.load_path"):
        parts = {"model": ".", "optimizer": "optimizer"}
        excluded = [parts.get(name, name) for name in c.names("checkpoint.exclude_from_loading")]
        if excluded:
            c.set("checkpoint.exclude", excluded, "checkpoint.exclude_from_loading")
    if c.number(keep := "checkpoint.keep_last_n") <= 0:
        c.set("checkpoint.keep", None, keep)
    window = "checkpoint.dyn_ckpt_window"
    if any(c.given(f"{window}.{end}") for end in ("start", "stop", "strategy")):
        start, stop = c.number(f"{window}.start"), c.number(f"{window}.stop")
        powers = [start + 2**k for k in range(63) if start + 2**k <= stop]
        keys = (f"{window}.start", f"{window}.stop", f"{window}.strategy")
        c.set("checkpoint.at", ([start] if start else []) + powers, *keys)
        c.set("checkpoint.at_start", start == 0, *keys)
    c.track(
        ("tensorboard", "metrics.enable_tensorboard", {"directory": "metrics.tensorboard_dir"}),
        ("wandb", "metrics.enable_wandb", {
            "project": "metrics.wandb_project", "name": "metrics.wandb_run_name",
            "run_id": "metrics.wandb_run_id"}),
    )  # fmt: skip
    # In KempnerForge ten successive losses that are not finite end a run; each is skipped first.
    c.set("resilience.non_finite", {"type": "skip", "limit": 10})
    if c.value("profiling.enable"):
        c.trace("profiling.start_step", "profiling.end_step", warmup=1)


DIALECT = Dialect(
    name="KempnerForge",
    release="0.1",
    keys=KEYS,
    signature=("train.grad_accum_steps", "distributed.dp_shard", "model.n_kv_heads",
               "scheduler.min_lr_ratio"),
    complete=_complete,
    switches={"profiling.": "profiling.enable", "metrics.wandb_": "metrics.enable_wandb",
              "metrics.tensorboard_dir": "metrics.enable_tensorboard", "eval.": "eval.enabled",
              "model.moe_": "model.num_experts", "optimizer.muon_": "optimizer.name=muon",
              "optimizer.fused": "optimizer.name=adamw",
              "optimizer.eps": "optimizer.name=adamw|muon|schedule_free_adamw"},
)  # fmt: skip
