"""xorl's YAML files for local training: the sections model, data, train and lora.

Formulas of xorl: the ranks left by ulysses, ring, tensor and pipeline are replicate * shard data
ranks; experts are divided over data and context ranks. A step has gradient_accumulation_steps
micro-batches of packed rows per data rank. Over T steps the rate rises from lr_start for T *
lr_warmup_ratio steps, and has fallen to lr_min, an absolute rate, at T * lr_decay_ratio.
"""

from __future__ import annotations

from typing import Any

from setpoint.interop.dialect import REQUIRED, Conversion, Dialect, Key, alike, keys_of

MEDIA = "images, video and sound are not supported: batches contain only tokens"
DISTILLATION = "distillation is not supported; a loss of your own gets logits and targets"
DEEPEP = "DeepEP needs a model of type = transformer and parallel.dispatch = deepep"
UNREAD = "its trainer does not read this key"
KERNEL = "it chooses a kernel for the same computation"
PREFETCH = "one unit is prefetched; parallel.sharding.forward_prefetch sets another number"
ATTENTION: dict[object, object] = {
    None: "auto",
    "eager": "eager",
    "sdpa": "sdpa",
    "native": "setpoint",
    "flash_attention_3": "setpoint",
    "flash_attention_4": "setpoint",
}
"""Kernels by name; Setpoint's attention chooses among those for packed documents by the device."""

FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
"""Projections that models of transformers have apart."""

KEYS = {
    # Model.
    **keys_of("model.", model_path=None, config_path=None, tokenizer_path=None),
    "model.attn_implementation": Key("flash_attention_3", values=ATTENTION),
    "model.merge_qkv": Key(True, refused="merged projections are not supported in models of "
                                         "transformers"),
    "model.basic_modules": Key([],
        decision="set parallel.sharding.units, which takes patterns of names instead of module "
                 "classes"),
    "model.foundation": Key({}, "model.overrides", optional=True),
    "model.encoders": Key({}, refused=MEDIA, essential=True),
    **keys_of("model.", moe_implementation=None, ep_dispatch="alltoall"),
    "model.deepep_buffer_size_gb": Key(2.0, refused=DEEPEP),
    "model.deepep_num_sms": Key(20, refused=DEEPEP),
    "model.deepep_async_combine": Key(False, refused=DEEPEP),
    "model.rmsnorm_mode": Key("native", refused="RMSNorm always uses PyTorch's or the compiler's "
                                                "kernel"),
    "model.train_router": Key(False),
    **alike("model.", "router_fp32 lm_head_fp32 attention_cast_bf16",
        Key(None, refused="precision.compute and transformers determine the dtype of each module")),
    **alike("model.", "activation_native rope_native record_routing_weights"
        " alltoall_combine_hidden_chunk_size flash_attention_deterministic",
        Key(None, idle=KERNEL)),
    # Data.
    "data.datasets": Key(REQUIRED),
    "data.test_datasets": Key([], idle=UNREAD),
    "data.val_set_size": Key(None, idle=UNREAD),
    "data.dataset_prepared_path": Key("last_prepared_dataset", "data.prepare.folder"),
    "data.select_columns": Key(None),
    "data.dataloader_num_workers": Key(8, "data.loader.workers"),
    "data.dataloader_prefetch_factor": Key(2, "data.loader.prefetch"),
    "data.dataloader_pin_memory": Key(True, "data.loader.pin_memory"),
    "data.dataloader_drop_last": Key(True,
        refused="a batch may cross from one epoch into the next"),
    "data.shuffle_merged_datasets": Key(True, "data.shuffle"),
    "data.shuffle_before_merging_datasets": Key(False,
        idle="all data sets are shuffled together afterwards, or ordered by data.shuffle"),
    **keys_of("data.", dataset_shard_num=None, dataset_shard_idx=None),
    "data.dataset_num_proc": Key(None, "data.prepare.workers", optional=True),
    "data.num_dataset_shards_to_save": Key(None, refused="use `setpoint data push --shards`"),
    "data.skip_prepare_dataset": Key(False, refused="use a source of type tokens with the folder "
                                                    "of prepared data"),
    "data.push_dataset_to_hub": Key(None, refused="use `setpoint data push`"),
    "data.hf_use_auth_token": Key(None),
    "data.is_preprocess": Key(False, refused="use `setpoint data prepare`"),
    "data.sample_packing_method": Key("sequential"),
    "data.sample_packing_sequence_len": Key(32_000, "batch.sequence_length"),
    "data.sample_packing_group_size": Key(100_000),
    "data.sample_packing_sequentially": Key(None, idle=UNREAD),
    "data.sample_packing_mp_start_method": Key(None, idle="packing uses no processes"),
    "data.sample_packing_bin_size": Key(None,
        refused="the number of documents in a row is not limited"),
    "data.eval_sample_packing": Key(None, idle=UNREAD),
    "data.pad_to_multiple_of": Key(128, "data.packing.pad_to_multiple_of"),
    # Ranks.
    **keys_of("train.", data_parallel_mode="fsdp2", data_parallel_shard_size=-1,
        data_parallel_replicate_size=-1),
    "train.tensor_parallel_size": Key(1, "parallel.tensor"),
    "train.pipeline_parallel_size": Key(1, "parallel.pipeline"),
    **keys_of("train.", pipeline_parallel_schedule="1F1B", pipeline_parallel_virtual_stages=1),
    "train.pp_variable_seq_lengths": Key(True,
        refused="stages always pad to the longest row of a step, with the same results"),
    "train.expert_parallel_size": Key(1, "parallel.expert"),
    "train.ulysses_parallel_size": Key(1, "parallel.ulysses"),
    "train.ringattn_parallel_size": Key(1, "parallel.ring"),
    **keys_of("train.", cp_fsdp_mode="all", reshard_after_forward=None, enable_full_shard=True),
    "train.enable_forward_prefetch": Key(True, refused=PREFETCH),
    "train.enable_backward_prefetch": Key(None, refused=PREFETCH),
    "train.ep_outside": Key(False),
    "train.ep_intranode": Key(True, idle="ep_outside determines the order of the mesh"),
    # The loop.
    "train.seed": Key(42, "seed"),
    "train.enable_full_determinism": Key(False, "deterministic"),
    "train.allow_cuda_launch_blocking": Key(False, idle="it does not affect training results"),
    "train.micro_batch_size": Key(1, "batch.micro_size"),
    "train.gradient_accumulation_steps": Key(1, "batch.accumulation"),
    **keys_of("train.", num_train_epochs=1, max_steps=None),
    "train.max_grad_norm": Key(1.0, "optimizer.clip_norm"),
    **keys_of("train.", optimizer="adamw", optimizer_dtype="bf16", lr=5e-5),
    "train.weight_decay": Key(0.0, "optimizer.weight_decay"),
    "train.no_decay_modules": Key([], idle=UNREAD),
    "train.no_decay_params": Key([], idle=UNREAD),
    "train.cautious_weight_decay": Key(False, "optimizer.cautious_weight_decay", optional=True),
    "train.muon_lr": Key(0.02, "optimizer.lr"),
    "train.muon_momentum": Key(0.95, "optimizer.momentum"),
    "train.muon_nesterov": Key(True, "optimizer.nesterov"),
    "train.muon_ns_steps": Key(5, "optimizer.steps"),
    "train.muon_adjust_lr_fn": Key(None),
    "train.muon_distributed_mode": Key("shard_local",
        refused="a sharded matrix is always orthogonalized as a whole"),
    **alike("train.muon_", "ns_algorithm gram_ns_num_restarts gram_ns_restart_iterations"
        " grad_dtype update_dtype force_momentum_path",
        Key(None, refused="the iteration is always that of torch.optim.Muon")),
    **alike("train.muon_", "ns_use_quack_kernels grouped_gram_ns_fp32_byte_limit",
        Key(None, idle=KERNEL)),
    "train.muon_fallback_optimizer": Key("adamw", refused="AdamW always trains the other weights"),
    **keys_of("train.", lr_min=1e-7, lr_start=0.0, lr_warmup_ratio=0.0, lr_decay_style="constant",
        lr_decay_ratio=1.0),
    # Precision and memory.
    **keys_of("train.", enable_gradient_checkpointing=True),
    "train.fsdp_reduce_dtype": Key("fp32", "precision.reduce", optional=True),
    "train.moe_grad_reduce_mode": Key("reduce_scatter",
        refused="precision.reduce sets the dtype of gradient reduction"),
    **alike("train.", "enable_fp8_training fp8_cfg",
        Key(None, decision="set precision.float8, whose recipes differ from fp8 in blocks")),
    "train.enable_qarl": Key(False, refused="quantization-aware training is not supported"),
    "train.enable_mixed_precision": Key(True, "precision.compute", {True: "bf16"}, optional=True),
    "train.gradient_checkpointing_method": Key(None,
        refused="use recompute_modules and moe_checkpoint_method"),
    **keys_of("train.", enable_reentrant=False, recompute_modules=None, moe_checkpoint_method=None,
        enable_activation_offload=False, activation_gpu_limit=0.0, init_device="cuda",
        load_weights_mode="broadcast"),
    "train.enable_fsdp_offload": Key(False, "parallel.sharding.offload", optional=True),
    "train.empty_cache_steps": Key(500, "memory.empty_cache", unit="{} steps"),
    "train.gc_steps": Key(500, idle=UNREAD),
    **keys_of("train.", ce_mode=None),
    "train.enable_compile": Key(False, "compile", {True: {}}, optional=True),
    "train.compile_dynamic_shapes": Key(False, "compile.dynamic", optional=True),
    "train.activation_offload_prefetch_count": Key(0,
        refused="activations are copied back when the backward pass needs them"),
    # Records.
    "train.output_dir": Key(REQUIRED, "workspace"),
    **keys_of("train.", ckpt_manager="dcp", save_steps=0, save_epochs=1),
    "train.save_async": Key(False, idle=UNREAD),
    **keys_of("train.", load_checkpoint_path=None, load_optimizer=True),
    "train.save_hf_weights": Key(True, "checkpoint.export", {True: {}}, optional=True),
    "train.repo_commit": Key(None, refused="environment.json records the commit of the run"),
    "train.log_format": Key("progress_bar", "tracking.progress", {"progress_bar": "bar",
        "structured": "lines"}),
    **keys_of("train.", use_wandb=True, wandb_project="Xorl", wandb_name=None, wandb_tags=None),
    "train.wandb_log_interval": Key(1, "tracking.every", unit="{} steps"),
    **keys_of("train.", enable_profiling=False, profile_start_step=1, profile_end_step=2),
    "train.profile_trace_dir": Key("./trace", "profiling.directory"),
    "train.profile_record_shapes": Key(True, "profiling.shapes"),
    "train.profile_profile_memory": Key(True, "profiling.memory"),
    "train.profile_with_stack": Key(True, "profiling.stacks"),
    "train.profile_rank0_only": Key(True),
    # Adapters.
    **keys_of("lora.", enable_lora=False, enable_qlora=False),
    "lora.lora_rank": Key(16, "adapter.rank"),
    "lora.lora_alpha": Key(16, "adapter.alpha"),
    "lora.unfuse_for_lora": Key(False, "adapter.fused_projections", {True: "split"}, optional=True),
    "lora.lora_target_modules": Key(None),
    "lora.moe_hybrid_shared_lora": Key(False,
        refused="adapters of experts do not share matrices"),
    "lora.lora_b_init_std": Key(0.0, "adapter.b_std", optional=True),
    "lora.save_lora_only": Key(False, refused="use `setpoint export --adapter`"),
    "lora.quant_format": Key("nvfp4"),
    "lora.quant_group_size": Key(16, idle="each format has its own group size"),
    **keys_of("lora.", exclude_modules=None, merge_lora_interval=0, reset_optimizer_on_merge=False,
        enable_aqn=False, aqn_alpha=1.0),
    "distill.enable_distillation": Key(False, refused=DISTILLATION, essential=True),
    "distill.teacher_model_path": Key(None, refused=DISTILLATION),
    "distill.distillation_loss_type": Key(None, refused=DISTILLATION),
    "distill.distillation_loss_weight": Key(None, refused=DISTILLATION),
    "distill.stream_num_workers": Key(None, refused=DISTILLATION),
}  # fmt: skip
"""All keys, with the defaults of the argument classes."""


def _complete(c: Conversion) -> None:
    """Convert the keys that depend on each other."""
    _model(c)
    _ranks(c)
    _loop(c)
    _optimizer(c)
    _schedule(c)
    _memory(c)
    _data(c)
    _adapter(c)
    _records(c)


def _model(c: Conversion) -> None:
    """A transformers model by its directory or id, with Setpoint's attention."""
    weights, config = c.value("model.model_path"), c.value("model.config_path")
    source = config or weights
    if not source:
        c.wrong("model.model_path", "given, and neither is model.config_path")
        return
    c.set("model.type", "huggingface")
    if weights:
        c.set("model.pretrained", weights, "model.model_path")
    if config and config != weights:
        c.set("model.config", config, "model.config_path")
    backend = c.value("model.attn_implementation")
    if backend in ATTENTION:
        c.set("model.attention_backend", ATTENTION[backend], "model.attn_implementation")
    else:
        expected = "null or one of " + ", ".join(str(name) for name in ATTENTION if name)
        c.wrong("model.attn_implementation", expected)
    keys = ("model.tokenizer_path", "model.config_path", "model.model_path")
    c.tokenizer(c.value("model.tokenizer_path") or source, *keys)
    if c.value("model.moe_implementation") in ("triton", "quack"):
        text = "xorl's expert kernels are not used; packed experts use grouped matrix products"
        c.report("refused", "model.moe_implementation", text)
    if c.value("model.ep_dispatch") == "deepep" and c.number("train.expert_parallel_size") > 1:
        text = "models of transformers exchange tokens of experts by all-to-all"
        c.report("refused", "model.ep_dispatch", text)
    has_experts = c.given("model.moe_implementation") or c.number("train.expert_parallel_size") > 1
    if not c.value("model.train_router") and has_experts:
        c.set("optimizer.frozen", ["router"], "model.train_router")


def _ranks(c: Conversion) -> None:
    """Degrees; -1 stands for the remaining ranks."""
    c.set("parallel.device", "cuda")
    key = "train.data_parallel_mode"
    mode = c.choice(key, "none", "ddp", "fsdp2")
    shard = c.number("train.data_parallel_shard_size")
    replicate = c.number("train.data_parallel_replicate_size")
    if mode == "ddp":
        c.set("parallel.replicate", replicate if replicate > 0 else -1, key)
    elif mode == "fsdp2":
        c.set("parallel.shard", shard if shard > 0 else -1, "train.data_parallel_shard_size")
        if shard > 0 or replicate > 0:
            path = "train.data_parallel_replicate_size"
            c.set("parallel.replicate", replicate if replicate > 0 else -1, path)
    ranks = c.number("train.ulysses_parallel_size") * c.number("train.ringattn_parallel_size")
    if ranks > 1 and mode == "fsdp2":
        modes = {"all": "all", "ulysses_only": "ulysses", "ring_only": "ring", "none": "none"}
        c.pick("parallel.shard_over_context", "train.cp_fsdp_mode", modes)
    if c.value("train.reshard_after_forward") is not None:
        reshard = c.value("train.reshard_after_forward")
        c.set("parallel.reshard", reshard, "train.reshard_after_forward")
    elif mode == "fsdp2" and (
        not c.value("train.enable_full_shard") or c.number("train.pipeline_parallel_size") > 1
    ):
        c.set("parallel.reshard", False, "train.enable_full_shard", "train.reshard_after_forward")
    if c.number("train.pipeline_parallel_size") > 1:
        c.pipeline("train.pipeline_parallel_schedule")
        if (stages := c.number("train.pipeline_parallel_virtual_stages")) > 1:
            path = "parallel.pipelining.stages_per_rank"
            c.set(path, stages, "train.pipeline_parallel_virtual_stages")
    if c.value("train.ep_outside") and c.number("train.expert_parallel_size") > 1:
        c.set("parallel.expert_mesh_order", "expert_major", "train.ep_outside")


def _loop(c: Conversion) -> None:
    """The end of training: epochs, or a number of steps if that comes first; and the dtypes."""
    epochs, steps = f"{c.number('train.num_train_epochs')} epochs", c.number("train.max_steps")
    keys = ("train.max_steps", "train.num_train_epochs")
    c.set("duration", [epochs, f"{steps} steps"] if steps else epochs, *keys)
    if c.value("train.ce_mode") not in (None, "eager"):
        c.set("loss.type", "chunked_cross_entropy", "train.ce_mode")


def _optimizer(c: Conversion) -> None:
    """AdamW with betas 0.9 and 0.95; decay for weights of two dimensions or more."""
    names = ("adamw", "anyprecision_adamw", "sgd", "muon")
    name, rate = c.choice("train.optimizer", *names), c.number("train.lr")
    if name is None:
        return
    c.set("optimizer.type", name, "train.optimizer")
    c.set("optimizer.no_decay", ["norm", "bias", "vector"])
    if name == "sgd":
        c.set("optimizer.momentum", 0.0)
    else:
        c.set("optimizer.betas", [0.9, 0.95])
        c.set("optimizer.eps", 1e-8)
    c.set("optimizer.adamw_lr" if name == "muon" else "optimizer.lr", rate, "train.lr")
    if name == "muon":
        adjust = c.value("train.muon_adjust_lr_fn") or "original"
        c.set("optimizer.adjust_lr", adjust, "train.muon_adjust_lr_fn")
    state = c.choice("train.optimizer_dtype", "fp32", "bf16")
    if name in ("anyprecision_adamw", "muon") and state == "bf16":
        c.set("precision.optimizer_state", "bf16", "train.optimizer_dtype")


def _schedule(c: Conversion) -> None:
    """A warm-up, and a decay ending after a fraction of the run; rates as factors of the peak."""
    key, peak = "train.lr_decay_style", c.number("train.lr")
    if (style := c.choice(key, "constant", "linear", "cosine")) is None:
        return
    c.set("schedule.type", style, key)
    share = c.number("train.lr_decay_ratio") if style != "constant" else 1
    # In Setpoint the warm-up is a share of the shorter horizon, in xorl of the run.
    if warmup := c.number("train.lr_warmup_ratio") / (share or 1):
        c.warm_up(f"{100 * warmup:.10g} %", "train.lr_warmup_ratio")
        if start := c.number("train.lr_start"):
            c.set("schedule.warmup_from", start / (peak or 1), "train.lr_start", "train.lr")
    elif style != "constant":
        c.set("schedule.warmup", "0 steps", "train.lr_warmup_ratio")
    if style != "constant":
        c.set("schedule.floor", c.number("train.lr_min") / (peak or 1), "train.lr_min", "train.lr")
        if share < 1:
            c.set("schedule.horizon_share", share, "train.lr_decay_ratio")


def _memory(c: Conversion) -> None:
    """Recomputation of layers or their parts, and offload."""
    path = "memory.activation_checkpointing"
    if c.value("train.enable_gradient_checkpointing"):
        parts = {"self_attn": "attention", "mlp": "feed_forward"}
        modules = c.names("train.recompute_modules")
        divides_experts = c.number("train.expert_parallel_size") > 1
        if c.value("train.moe_checkpoint_method") == "moe_act" and divides_experts:
            c.set(f"{path}.type", "operators", "train.moe_checkpoint_method")
            c.set(f"{path}.save", ["exchange"], "train.moe_checkpoint_method")
        elif modules:
            if unknown := [name for name in modules if name not in parts]:
                c.wrong("train.recompute_modules", f"self_attn or mlp ({', '.join(unknown)})")
            c.set(f"{path}.type", "parts", "train.recompute_modules")
            names = [parts[name] for name in modules if name in parts]
            c.set(f"{path}.parts", names, "train.recompute_modules")
        else:
            c.set(f"{path}.type", "full", "train.enable_gradient_checkpointing")
            if c.value("train.enable_reentrant"):
                c.set(f"{path}.reentrant", True, "train.enable_reentrant")
    if c.value("train.enable_activation_offload"):
        limit = f"{c.number('train.activation_gpu_limit'):g} GB"
        c.set("memory.activation_offload.limit", limit, "train.activation_gpu_limit")
    degrees = ("data_parallel_shard", "data_parallel_replicate", "tensor_parallel",
               "pipeline_parallel", "ulysses_parallel", "ringattn_parallel")  # fmt: skip
    has_ranks = any(c.number(f"train.{degree}_size") > 1 for degree in degrees)
    modes = ("broadcast", "all_ranks", "grouped", "skip")
    loads = c.choice("train.load_weights_mode", *modes) in ("broadcast", "grouped")
    if loads and has_ranks and c.value("model.model_path"):
        c.set("parallel.load_weights", "broadcast", "train.load_weights_mode")
    if c.value("train.init_device") == "cpu":
        c.set("parallel.init_device", "cpu", "train.init_device")


def _data(c: Conversion) -> None:
    """Rows of tokens and labels, packed; `dummy` means random rows."""
    datasets = [entry for entry in c.sections("data.datasets") if "path" in entry]
    if not datasets:
        c.wrong("data.datasets", "a list of data sets with a path each")
        return
    c.set_sources("data.sources", [_source(c, entry) for entry in datasets], "data.datasets")
    key, ring = "data.sample_packing_sequence_len", c.number("train.ringattn_parallel_size")
    parts = c.number("train.ulysses_parallel_size") * (2 * ring if ring > 1 else 1)
    if parts > 0 and (remainder := c.number(key) % parts):
        length = c.number(key) + parts - remainder
        c.set("batch.sequence_length", length, key)
        c.differs(
            key,
            f"rows hold {length} tokens, in {parts} parts",
            "rows hold fewer tokens, and padding",
        )
    c.set("data.held_out", 0)
    c.value("data.select_columns")  # other columns are not read
    methods = {"sequential": "next_fit", "multipack": "first_fit_decreasing"}
    if c.pick("data.packing.method", "data.sample_packing_method", methods) == "multipack":
        path, key = "data.packing.group_size", "data.sample_packing_group_size"
        c.set(path, c.number(key), key)
        text = "documents of a group are packed by first-fit decreasing; in xorl, in their order"
        c.report("differs", "data.sample_packing_method", text)


def _source(c: Conversion, entry: dict[str, Any]) -> dict[str, object]:
    names = "path type name split revision data_files ds_type max_seq_len shards shards_idx"
    c.report_rest("data.datasets", entry, f"{names} num_samples")
    longest = entry.get("max_seq_len")
    if longest is not None and type(longest) is not int:
        expected = f"a list of data sets with a max_seq_len in tokens, but {longest!r}"
        c.wrong("data.datasets", expected)
        longest = None
    if entry["path"] == "dummy":
        length = min(longest or 8192, c.number("data.sample_packing_sequence_len"))
        source: dict[str, object] = {"type": "random", "pattern": "uniform", "length": length,
                                     "documents": entry.get("num_samples")}  # fmt: skip
    else:
        source = {
            "type": "huggingface", "path": entry["path"], "subset": entry.get("name"),
            "split": entry.get("split"), "revision": entry.get("revision"),
            "data_files": _as_list(entry.get("data_files")),
            "field": "input_ids" if entry.get("type") == "tokenized" else None,
        }  # fmt: skip
        if c.value("data.hf_use_auth_token"):
            source["token"] = "env:HF_TOKEN"
        limits = {
            "longest": longest,
            "shards": entry.get("shards") or c.value("data.dataset_shard_num"),
            "shard": entry.get("shards_idx") or c.value("data.dataset_shard_idx"),
        }
        if any(value is not None for value in limits.values()):
            source["filter"] = {key: value for key, value in limits.items() if value is not None}
    return source


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _adapter(c: Conversion) -> None:
    """LoRA, or QLoRA with a quantized base; QLoRA's switch implies the base."""
    is_quantized = c.value("lora.enable_qlora")
    if not (is_quantized or c.value("lora.enable_lora")):
        return
    switch = "lora.enable_qlora" if is_quantized else "lora.enable_lora"
    c.set("adapter.type", "qlora" if is_quantized else "lora", switch)
    if targets := c.names(key := "lora.lora_target_modules"):
        if FUSED.keys() & {*targets}:
            c.differs(
                key, "each projection has its own adapter", "the fused projection has one adapter"
            )
        c.set("adapter.targets", [part for name in targets for part in FUSED.get(name, [name])],
              key)  # fmt: skip
    if is_quantized:
        formats = {"nvfp4": "nvfp4", "block_fp8": "fp8", "nf4": "nf4"}
        c.pick("adapter.quantize.type", "lora.quant_format", formats)
        if exclude := c.names("lora.exclude_modules"):
            c.set("adapter.quantize.exclude", exclude, "lora.exclude_modules")
        if c.value("lora.enable_aqn"):
            c.set("adapter.quantize.noise.alpha", c.number("lora.aqn_alpha"), "lora.aqn_alpha")
    if interval := c.number("lora.merge_lora_interval"):
        c.set("adapter.merge.every", f"{interval} steps", "lora.merge_lora_interval")
        state = "drop" if c.value("lora.reset_optimizer_on_merge") else "keep"
        c.set("adapter.merge.optimizer_state", state, "lora.reset_optimizer_on_merge")


def _records(c: Conversion) -> None:
    """Checkpoints, trackers and profiles."""
    c.set("evaluation", None)
    steps, epochs = c.number("train.save_steps"), c.number("train.save_epochs")
    periods = [f"{steps} steps"] * bool(steps) + [f"{epochs} epochs"] * bool(epochs)
    keys = ("train.save_steps", "train.save_epochs")
    c.set("checkpoint.every", periods[0] if periods else "last_step", *keys)
    if len(periods) > 1:
        c.set("checkpoint.also_every", periods[1], "train.save_epochs")
    c.set("checkpoint.keep", None)
    load = c.value("train.load_checkpoint_path")
    if load and load != "auto":
        c.set("checkpoint.load", load, "train.load_checkpoint_path")
        if not c.value("train.load_optimizer"):
            c.set("checkpoint.exclude", ["optimizer"], "train.load_optimizer")
    names = ("project", "name", "tags")
    c.track(("wandb", "train.use_wandb", {name: f"train.wandb_{name}" for name in names}))
    if c.value("train.enable_profiling"):
        start = "train.profile_start_step"
        c.trace(start, "train.profile_end_step", warmup=int(c.number(start) > 0))
        if not c.value("train.profile_rank0_only"):
            c.set("profiling.ranks", None, "train.profile_rank0_only")


DIALECT = Dialect(
    name="xorl",
    release="0.1",
    keys=KEYS,
    signature=("train.data_parallel_mode", "train.lr_decay_style", "data.sample_packing_method",
               "train.ulysses_parallel_size", "train.ckpt_manager"),
    complete=_complete,
    switches={"train.wandb_project": "train.use_wandb", "train.wandb_name": "train.use_wandb",
              "train.wandb_tags": "train.use_wandb", "train.profile_": "train.enable_profiling",
              "train.compile_dynamic_shapes": "train.enable_compile",
              "lora.": "lora.enable_lora lora.enable_qlora", "train.muon_": "train.optimizer=muon",
              "train.cautious_weight_decay": "train.optimizer=adamw|anyprecision_adamw|muon"},
    refused=dict.fromkeys(
        ("model_path", "worker_connection_timeout", "skip_initial_checkpoint", "enable_packing"),
        "a configuration of xorl's training server, to which clients send batches; it is not a "
        "training job",
    )
    | {"input_dir": "a configuration of xorl's weight export; use `setpoint export`"},
)  # fmt: skip
