"""Axolotl's YAML files of supervised fine-tuning and pretraining, one flat mapping.

Axolotl trains with the Trainer of transformers, whose schedules, optimizers and shards are those of
`huggingface_trainer`. Formulas of its own: a step has micro_batch_size *
gradient_accumulation_steps rows of each rank; without a length the warm-up is 3 % of all steps, at
most 100; weights are loaded in bf16 where bf16 is on; documents longer than sequence_len are
dropped, and with sample_packing the others are packed into rows whose documents do not see one
another.
"""

from __future__ import annotations

import os
from typing import Any, cast

from setpoint.interop.dialect import REQUIRED, Conversion, Dialect, Key, alike, keys_of
from setpoint.interop.huggingface_trainer import (
    HUB,
    convert_compilation,
    convert_optimizer,
    convert_recomputation,
    convert_schedule,
    convert_shards,
    period,
)

PREFERENCES = "preference and reward training are not supported"
MEDIA = "images, video and sound reach no model of Setpoint: batches hold tokens"
KERNELS = "a faster kernel of the same arithmetic"
TEXTS = ("completion", "pretrain")
"""Types of data sets that hold text."""
TEMPLATES = {"alpaca": "alpaca", "chatml": "chatml", "llama3": "llama3", "tokenizer_default": None}

KEYS = {
    "base_model": Key(REQUIRED),
    "trust_remote_code": Key(None, refused="remote code of models and data sets is never run"),
    "val_set_size": Key(0.0),
    "dataset_prepared_path": Key(None, "data.prepare.folder"),
    "shuffle_merged_datasets": Key(True, "data.shuffle"),
    "train_on_inputs": Key(False),
    "sequence_len": Key(512, "batch.sequence_length"),
    **keys_of("", excess_length_strategy="drop", sample_packing_group_size=100_000,
        pad_to_multiple_of=None, pretrain_multipack_attn=True),
    "batch_flattening": Key(None, idle=KERNELS),
    "revision_of_model": Key(None, decision="give the folder of that revision as base_model"),
    "dataset_exact_deduplication": Key(None,
        refused="duplicate rows are kept; `setpoint data stats` counts them"),
    "overrides_of_model_config": Key(None, "model.overrides", optional=True),
    **keys_of("", micro_batch_size=1, gradient_accumulation_steps=1, num_epochs=1.0),
    "seed": Key(42, "seed"),
    **keys_of("", learning_rate=REQUIRED, optimizer="adamw_torch_fused", weight_decay=0.0,
        lr_scheduler="cosine"),
    "neftune_noise_alpha": Key(None, refused="no noise is added to embeddings (NEFTune)"),
    **keys_of("", load_in_8bit=False, load_in_4bit=False, lora_dropout=0.0),
    "peft.loftq_config": Key(None, refused="initial matrices are LoRA's own (LoftQ)"),
    "peft.backend": Key(None, idle=KERNELS),
    "peft.group_size": Key(None, refused="each format of adapter.quantize has a group size"),
    "peft.weight_dtype": Key(None),
    "gptq": Key(None, refused="GPTQ weights are not supported", essential=True),
    "fsdp_version": Key(None, idle="shards are those of FSDP2"),
    "output_dir": Key("./model-out", "workspace"),
    **keys_of("", load_best_model_at_end=False),
    "save_only_model": Key(False, "checkpoint.last", {True: "weights"}, optional=True),
    "peft_use_rslora": Key(None, "adapter.rank_stabilized", optional=True),
    "lora_modules_to_save": Key(None),
    "liger_fused_linear_cross_entropy": Key(None, "loss.type", {True: "chunked_cross_entropy"},
        optional=True),
    "torch_empty_cache_steps": Key(None, "memory.empty_cache", unit="{} steps", optional=True),
    "ddp_timeout": Key(None, "parallel.timeout", optional=True),
    "ddp_bucket_cap_mb": Key(None, "parallel.bucket_size", optional=True),
    "save_first_step": Key(None, "checkpoint.at", {True: [1]}, optional=True),
}  # fmt: skip
"""Keys of the schemas of releases 0.10 to 0.19 with their defaults, but for those below."""

UNSET = """
    type_of_model tokenizer_type base_model_config
    tokenizer_config
    special_tokens tokens resize_token_embeddings_to_32x unfrozen_parameters datasets
    test_datasets pretraining_dataset dataset_processes dataset_shard_num dataset_shard_idx
    streaming chat_template chat_template_jinja hf_use_auth_token
    min_sample_len sample_packing sample_packing_sequentially
    pad_to_sequence_len group_by_length curriculum_sampling dataloader_num_workers
    dataloader_prefetch_factor dataloader_pin_memory batch_size max_steps optim_args
    optim_target_modules adam_beta1 adam_beta2 adam_epsilon max_grad_norm lr_scheduler_kwargs
    warmup_steps warmup_ratio cosine_min_lr_ratio cosine_constant_lr_ratio lr_groups
    embedding_lr embedding_lr_scale loraplus_lr_ratio adapter lora_r lora_alpha
    lora_target_modules lora_target_linear lora_target_parameters
    lora_model_dir peft_use_dora peft_layers_to_transform relora relora_steps
    jagged_restart_steps jagged_restart_warmup_steps bf16 bfloat16 fp16 float16 float32 tf32 fp8
    fp8_enable_fsdp_float8_all_gather gradient_checkpointing
    gradient_checkpointing_kwargs activation_offloading
    torch_compile torch_compile_backend torch_compile_mode attn_implementation flash_attention
    sdp_attention flex_attention eager_attention xformers_attention
    deepspeed fsdp fsdp_config dp_shard_size dp_replicate_size
    tensor_parallel_size expert_parallel_size context_parallel_size
    gc_steps resume_from_checkpoint auto_resume_from_checkpoints logging_steps
    eval_steps evals_per_epoch eval_strategy save_steps saves_per_epoch save_strategy
    save_total_limit metric_for_best_model early_stopping_patience use_wandb
    wandb_project wandb_entity wandb_name wandb_run_id wandb_mode use_tensorboard use_mlflow
    mlflow_tracking_uri mlflow_experiment_name mlflow_run_name use_comet comet_project_name
    comet_workspace comet_experiment_key profiler_steps profiler_steps_start plugins use_trackio
    trackio_project_name trackio_run_name reinit_weights
    model_quantization_config model_quantization_config_kwargs
"""
"""Keys whose default is null, converted by the functions below."""
KEYS |= alike("", UNSET)
REFUSED = {
    HUB: """
        hub_model_id hub_strategy hub_revision push_dataset_to_hub
    """,
    "evaluation measures tokens only": """
        do_bench_eval bench_dataset bench_split do_causal_lm_eval eval_causal_lm_metrics
        eval_table_size greater_is_better
    """,
    "benchmarks run after training, by `setpoint evaluate --tasks`": """
        lm_eval_tasks lm_eval_batch_size lm_eval_post_train lm_eval_model
    """,
    "no text is generated during training": """
        generate_samples num_generation_samples generation_max_new_tokens generation_temperature
        generation_top_p generation_top_k generation_prompt_ratio generation_do_sample
    """,
    "there is no such tracker": """
        use_swanlab swanlab_project swanlab_experiment_name swanlab_description swanlab_mode
        swanlab_workspace swanlab_api_key swanlab_web_host swanlab_api_host
        swanlab_lark_webhook_url swanlab_lark_secret swanlab_log_model swanlab_log_completions
        swanlab_completion_log_interval swanlab_completion_max_buffer trackio_space_id comet_mode
        comet_online comet_experiment_config
    """,
    "the trainer is Setpoint's": "trainer_cls dynamic_checkpoint",
    "evaluation has rows of batch.sequence_length": "eval_sequence_len",
    "precision is by [precision], for all modules of a kind": """
        fp8_config fp32_norms fp32_norm_classes peft_autocast_adapter_dtype quantize_moe_experts
        nonexpert_quantization nvfp4_merge_aware nvfp4_merge_aware_start_step
        gemma4_fp8_nonexpert gemma4_nf4_nonexpert
    """,
    "memory is saved only by [memory]": """
        selective_checkpointing layer_offloading ple_cpu_offload
    """,
    "all modules of an adapter have one rank and one alpha": """
        lora_rank_pattern lora_alpha_pattern peft_ensure_weight_tying
    """,
    "gradients are not projected (GaLore)": """
        qgalore_rank qgalore_update_proj_gap qgalore_scale qgalore_proj_type qgalore_proj_quant
        qgalore_proj_bits qgalore_proj_group_size qgalore_cos_threshold qgalore_gamma_proj
        qgalore_queue_size
    """,
    "layers are frozen for a part of the run by optimizer.frozen_spans alone (LISA)": """
        lisa_n_layers lisa_step_interval lisa_layers_attribute
    """,
    "positions are never skipped (PoSE)": """
        use_pose pose_split_on_token_ids pose_max_context_len pose_num_chunks
    """,
    "the batch size is fixed, not searched": "auto_find_batch_size",
    "warm-up is linear": "lr_quadratic_warmup",
    "spikes are answered by resilience.non_finite and tracking.alerts": """
        loss_watchdog_threshold loss_watchdog_patience
    """,
    "weights and vocabulary are taken from the files unchanged": """
        shrink_embeddings mean_resizing_embeddings fix_untrained_tokens
        peft_layer_replication peft_layers_pattern peft_init_lora_weights
        peft_trainable_token_indices bnb_config_kwargs added_tokens_overrides
        default_system_message loraplus_lr_embedding relora_prune_ratio relora_prune_method
        jagged_restart_anneal_steps relora_cpu_offload lr_div_factor chat_template_kwargs
    """,
    "`setpoint launch` starts the processes": """
        use_ray ray_run_name ray_num_workers resources_per_worker
    """,
    "memory is estimated by `setpoint check --plan`": "max_memory gpu_memory_limit device_map",
    "quantization-aware training is not supported": "qat quantization",
    PREFERENCES: """
        trl vllm dpo_beta rl_beta dpo_use_weighting orpo_alpha rpo_alpha simpo_gamma cpo_alpha
        kto_desirable_weight kto_undesirable_weight max_prompt_len dpo_use_logits_to_keep
        dpo_label_smoothing dpo_norm_loss dpo_padding_free dpo_loss_type dpo_loss_weights
        dpo_generate_during_eval dpo_use_liger_kernel precompute_ref_log_probs
        center_rewards_coefficient
    """,
}  # fmt: skip
for reason, names in REFUSED.items():
    KEYS |= alike("", names, Key(None, refused=reason))
ESSENTIAL = {
    PREFERENCES: "rl reward_model process_reward_model num_labels ebft nemo_gym_enabled hatchery",
    "the loss is the cross-entropy of the next token": """
        diffusion use_dynamic_finetuning use_eaft kd_trainer liger_use_token_scaling
    """,
    "the attention and the modules of the model are not replaced": """
        s2_attention sage_attention scaling_softmax mora dense_mixer use_onebitllms
    """,
    "Axolotl refuses it, too: overrides_of_model_config has it": "rope_scaling",
    "pruning during training is not supported": "llmcompressor",
    MEDIA: """
        processor_type processor_kwargs image_size image_resize_algorithm is_multimodal
        freeze_mm_modules role_boundaries
    """,
}
for reason, names in ESSENTIAL.items():
    KEYS |= alike("", names, Key(None, refused=reason, essential=True))
IDLE = {
    KERNELS: """
        flash_attn_cross_entropy flash_attn_rms_norm flash_attn_fuse_qkv flash_attn_fuse_mlp
        flash_optimum unsloth_cross_entropy_loss unsloth_lora_mlp unsloth_lora_qkv
        unsloth_lora_o unsloth_rms_norm unsloth_rope lora_mlp_kernel lora_qkv_kernel
        lora_o_kernel lora_embedding_kernel liger_rope liger_rms_norm liger_swiglu
        liger_glu_activation liger_layer_norm liger_cross_entropy cut_cross_entropy
        flex_attn_compile_kwargs heads_k_stride ring_attn_func use_kernels
        llama4_linearized_experts chunked_cross_entropy chunked_cross_entropy_num_chunks
        tiled_mlp tiled_mlp_num_shards eval_sample_packing multipack_real_batches
        sample_packing_bin_size sample_packing_eff_est
        pretrain_multipack_buffer_size streaming_multipack_buffer_size fused_attn_kernel
        sample_packing_mp_start_method use_sonicmoe use_scattermoe use_dsv4_kernels
        use_glm_dsa_kernels experts_implementation expert_backend moe_grouped_backend
        moe_dequant_chunk_size moe_bnb_fast liger_rms_norm_gated liger_kernel_impl
        gemma4_hybrid_attn_impl large_head_attention flash_attn_d512 sdpa_varlen deepcompile
        torch_compile_options tiled_mlp_use_original_mlp expert_parallel_backend
        expert_parallel_num_nvl_bytes expert_parallel_num_rdma_bytes
        expert_parallel_token_capacity expert_parallel_fallback_on_unsupported
        dsv4_fp4_grouped_mode dsv4_fp8_nonexpert_mode dsv4_fp8_lora_kernel
        dsv4_shared_mlp_lora_kernel dsv4_bf16_all
    """,
    "Axolotl's schema has no such key": """
        exact_deduplication test_value eval_table_max_new_tokens gptq_groupsize gptq_model_v1
        gptq_disable_exllama adam_eps eta_min torch_dtype base_model_ignore_patterns
    """,
    "another key must enable it": """
        eval_max_new_tokens eaft_alpha eaft_k kd_ce_alpha kd_alpha kd_temperature kd_beta
        kd_normalize_topk kd_temperature_min kd_online_server_base_url kd_online_topk
        kd_online_server kd_online_timeout scaling_softmax_factor scaling_softmax_bias
        spectrum_top_fraction spectrum_model_name grokfast_alpha grokfast_lamb adam_beta3
        adam_epsilon2 dion_lr
        dion_momentum dion_rank_fraction dion_rank_multiple_of
    """,
    "the chat template defines the end of a turn": "eot_tokens",
    "classes are determined by the model and its tokenizer": """
        cls_model_config tokenizer_use_fast tokenizer_legacy
        is_llama_derived_model is_mistral_derived_model is_falcon_derived_model
        is_qwen_derived_model tokenizer_save_jinja_files tokenizer_use_mistral_common
    """,
    "it does not change the arithmetic": """
        lora_on_cpu low_cpu_mem_usage save_safetensors remove_unused_columns local_rank
        world_size ddp ddp_broadcast_buffers ddp_find_unused_parameters device
        dataset_keep_in_memory skip_prepare_dataset dataloader_drop_last accelerator_config
        qlora_sharded_model_loading fsdp_final_state_dict_type
        experimental_skip_move_to_device lora_fan_in_fan_out merge_lora eval_batch_size
        strict debug wandb_watch wandb_log_model hf_mlflow_log_artifacts
        include_tokens_per_second torchdistx_path embeddings_skip_upcast use_otel_metrics
        otel_metrics_host otel_metrics_port inference merge_method include_tkps comet_api_key
        shuffle_before_merging_datasets num_dataset_shards_to_save pretraining_sample_concatenation
        gc_collect_steps gradio_title gradio_share gradio_server_name gradio_server_port
        gradio_max_new_tokens gradio_temperature is_preprocess preprocess_iterable
        total_num_tokens total_supervised_tokens axolotl_config_path
    """,
}  # fmt: skip
for reason, names in IDLE.items():
    KEYS |= alike("", names, Key(None, idle=reason))


SWITCHES = ("xformers_attention", "flex_attention", "flash_attention", "sdp_attention",
            "eager_attention")  # fmt: skip
"""Switches of a kernel of attention, of which the first counts."""


def _prepare(c: Conversion) -> None:
    """Drop empty keys, and switches without an equivalent that are off."""
    for key, value in [*c.values.items()]:
        known = c.dialect.keys.get(key)
        is_off = value is False and known is not None and bool(known.refused or known.idle)
        if value in (None, "") or is_off:
            del c.values[key]
        elif isinstance(value, str) and value.replace("_", "").isdecimal():  # 500_000 in YAML 1.1
            c.values[key] = int(value)


def _complete(c: Conversion) -> None:
    """Convert the keys that depend on one another."""
    flags = "sample_packing eval_sample_packing liger_fused_linear_cross_entropy relora"
    c.require_flags(" ".join((flags, "peft_use_dora", *SWITCHES)))
    c.require_flags("gradient_checkpointing", "offload", "offload_disk", "unsloth")
    c.require_flags("torch_compile", "auto")
    total = c.number("max_steps") or None
    epochs = f"{c.number('num_epochs'):g} epochs"
    c.set("duration", f"{total} steps" if total else epochs, "max_steps", "num_epochs")
    _model(c)
    _batch(c)
    _data(c)
    _schedule(c, total)
    _optimizer(c)
    _adapter(c)
    _precision(c)
    _ranks(c)
    _records(c, total)


def _model(c: Conversion) -> None:
    """A transformers model, by directory or Hub id."""
    if (model := c.text("base_model")) is None:
        c.wrong("base_model", "the folder or id of a model")
        return
    config, tokenizer = c.text("base_model_config"), c.text("tokenizer_config")
    c.set("model.type", "huggingface")
    c.set("model.pretrained", model, "base_model")
    if config and config != model:
        c.set("model.config", config, "base_model_config")
    if c.value("reinit_weights"):
        c.data["model"].pop("pretrained")
        c.set("model.config", config or model, "reinit_weights")
    options = c.mapping("model_quantization_config_kwargs")
    if c.value("model_quantization_config") and not options.get("dequantize"):
        c.wrong("model_quantization_config", "a format that is dequantized as it is read")
    kernels = {"xformers": "sdpa", "sdp": "sdpa", "flex": "flex_attention", "flash": "setpoint",
               "eager": "eager"}  # fmt: skip
    key = next((k for k in ("attn_implementation", *SWITCHES) if c.value(k)), "attn_implementation")
    if name := key if key in SWITCHES else c.text(key):
        kernel = next((kernels[word] for word in kernels if word in name), None)
        if kernel is not None:
            c.set("model.attention_backend", kernel, key)
        elif name in ("sage", "fp8") or "/" in name:
            c.report("refused", key, "attention is computed in the dtype of the others: sdpa")
        else:
            c.wrong(key, "a kernel with one of the words " + ", ".join(kernels))
    c.tokenizer(tokenizer or config or model, "tokenizer_config", "base_model")
    for key in ("type_of_model", "tokenizer_type"):
        if (name := c.text(key)) and not name.endswith(
            ("ForCausalLM", "Tokenizer", "TokenizerFast")
        ):
            text = f"{name}: the class follows from the model's config.json and tokenizer.json"
            c.report("differs", key, text)
    special, entries = {**c.mapping("special_tokens")}, c.value("tokens")
    added = special.pop("additional_special_tokens", None)
    if isinstance(entries, dict):  # once the special tokens by name
        special |= cast("dict[str, Any]", entries)
    names = [] if isinstance(entries, dict) else c.names("tokens")
    if tokens := [*names, *(added if isinstance(added, list) else [])]:
        c.set("tokenizer.added", tokens, "tokens", "special_tokens")
    if "pad_token" in special:
        text = "pad_token: rows are padded outside of the loss, by no token of the vocabulary"
        c.report("without effect", "special_tokens", text)
    if extra_names := [name for name in special if name != "pad_token"]:
        text = f"{', '.join(extra_names)}: the tokenizer's files say them, or tokenizer.separator"
        c.report("needs a decision", "special_tokens", text)
    if patterns := c.names("unfrozen_parameters"):
        c.set("optimizer.frozen", [f"^(?!.*(?:{'|'.join(patterns)}))"], "unfrozen_parameters")


def _batch(c: Conversion) -> None:
    """Micro-batch size and accumulation, of which batch_size is the product."""
    micro, passes = c.number("micro_batch_size"), c.number("gradient_accumulation_steps")
    if (total := c.number("batch_size")) and micro:
        passes = total // micro
    keys = ("micro_batch_size", "gradient_accumulation_steps", "batch_size")
    c.set("batch.micro_size", micro, *keys)
    c.set("batch.accumulation", passes, *keys[1:])
    text = "the loss is a mean over the tokens of all ranks; there one of each rank's mean"
    c.report("differs", "micro_batch_size", text)


def _data(c: Conversion) -> None:
    """Data sources, packed into rows or padded to the longest row of a micro-batch."""
    streamed = c.sections("pretraining_dataset")
    entries = streamed or c.sections("datasets")
    if not entries:
        c.wrong("datasets", "a list of data sets, nor is pretraining_dataset")
        return
    key = "pretraining_dataset" if streamed else "datasets"
    c.set_items("data.sources", _sources(c, entries, key), key)
    if tests := c.sections("test_datasets"):
        key = "test_datasets"
        c.set_items("data.validation", _sources(c, tests, key), key)
    else:
        c.set("data.held_out", c.number("val_set_size") or 0, "val_set_size")
    packed, grouped = c.value("sample_packing"), c.value("group_by_length")
    pad = c.value("pad_to_sequence_len")
    text_alone = all(entry.get("type") in TEXTS for entry in entries)
    if streamed and not packed:
        c.set("data.packing.isolate", False, "pretraining_dataset")
    elif packed:
        method = "next_fit" if c.value("sample_packing_sequentially") else "first_fit_decreasing"
        c.set("data.packing.method", method, "sample_packing_sequentially", "sample_packing")
        if method == "first_fit_decreasing":
            size = "sample_packing_group_size"
            c.set("data.packing.group_size", c.number(size), size)
            text = "documents are sorted by length in each group, there they are not"
            c.report("differs", "sample_packing", text)
        isolate = bool(c.value("pretrain_multipack_attn") or not streamed)
        c.set("data.packing.isolate", isolate, "sample_packing")
    else:
        c.set("data.packing.method", "none", "sample_packing")
        if pad is None:
            multiple = c.number("pad_to_multiple_of") or 64
            c.set("data.packing.pad_to_multiple_of", multiple, "pad_to_multiple_of")
        if grouped:
            c.set("data.packing.length_buckets", True, "group_by_length")
            grouped = None
    if grouped:
        c.report("without effect", "group_by_length", "in Axolotl, too: rows are packed")
    if not text_alone:
        kinds = {"drop": "drop", "truncate": "truncate", "raise": "error"}
        c.pick("data.packing.too_long", "excess_length_strategy", kinds)
    if c.value("curriculum_sampling"):
        c.set("data.shuffle", False, "curriculum_sampling")
    c.copy_given({"data.prepare.workers": "dataset_processes",
                  "data.loader.workers": "dataloader_num_workers",
                  "data.loader.prefetch": "dataloader_prefetch_factor",
                  "data.loader.pin_memory": "dataloader_pin_memory"})  # fmt: skip


def _sources(c: Conversion, entries: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    items = [_source(c, entry, key) for entry in entries]
    named = len(items) > 1
    return [{**item, "name": f"source-{n}"} if named else item for n, item in enumerate(items)]


def _source(c: Conversion, entry: dict[str, Any], key: str) -> dict[str, Any]:
    """A source of one entry: text of a column, or conversations of rows."""
    path, kind = str(entry.get("path") or entry.get("name")), entry.get("type")
    is_text = kind in TEXTS or key == "pretraining_dataset" or kind is None
    files = entry.get("data_files") or []
    files = [str(file) for file in (files if isinstance(files, list) else [files])]
    is_path = path.startswith((".", "/", "~")) or "://" in path or path == "json"
    local = is_path or os.path.exists(path)
    if path == "json":  # a loader of files, which data_files names
        path, files = files[0] if files else path, files[1:]
    split = entry.get("split") or "train"
    source: dict[str, Any]
    if is_text:
        default = "text" if kind or key[0] == "p" else "input_ids"
        column = entry.get("field") or entry.get("text_column") or default
        if local:
            source = {"type": "text", "paths": [path, *files], "field": column}
        else:
            source = {"type": "huggingface", "path": path, "subset": entry.get("name"),
                      "split": split, "revision": entry.get("revision"), "field": column,
                      "data_files": files or None,
                      "streaming": key == "pretraining_dataset" or None}  # fmt: skip
            if c.value("hf_use_auth_token"):
                source["token"] = "env:HF_TOKEN"
    else:
        base, (split, bracket, rows) = f"hf://datasets/{path}", str(split).partition("[")
        if bracket:
            text = f"all rows of {split} are read, not [{rows}: set data.sources.N.filter.shards"
            c.report("needs a decision", key, text)
        hub = [f"{base}/{file}" for file in files] or [
            f"{base}@~parquet/{entry.get('name') or 'default'}/{split}/*.parquet"
        ]
        source = {"type": "conversations", "paths": [path, *files] if local else hub}
        source |= _conversation(c, entry, kind, key)
    limits = {"shards": entry.get("shards") or c.number("dataset_shard_num"),
              "shard": entry.get("shards_idx") or c.number("dataset_shard_idx"),
              "shortest": c.number("min_sample_len")}  # fmt: skip
    if limits["shortest"] and is_text:
        c.report("differs", "min_sample_len", "a number of bytes of text; there of tokens")
    if limits["shards"] or limits["shortest"]:
        source["filter"] = {name: value for name, value in limits.items() if value is not None}
    return {name: value for name, value in source.items() if value is not None}


def _conversation(c: Conversion, entry: dict[str, Any], kind: object, key: str) -> dict[str, Any]:
    """The chat template and the loss mask of a conversation data set."""
    name = str(kind).partition(":")[0].partition(".")[0]
    template = entry.get("chat_template") or c.value("chat_template")
    jinja = entry.get("chat_template_jinja") or c.value("chat_template_jinja")
    result: dict[str, Any] = {}
    if name == "alpaca":
        result["template"] = "alpaca"
        c.report("differs", key, "alpaca's template without its sentence before the instruction")
    elif name in ("chat_template", "sharegpt"):
        if jinja and str(jinja).endswith((".jinja", ".jinja2")):
            result["template"] = jinja
        elif template in TEMPLATES:
            result["template"] = TEMPLATES[cast("str", template)]
        elif template is not None or jinja:
            shown = template or "a template in the file"
            text = f"{shown}: write it as a Jinja file and set data.sources.N.template to it"
            c.report("needs a decision", "chat_template", text)
        known = {"role": ("role", "from"), "content": ("content", "value")}
        mappings = entry.get("message_property_mappings") or {
            role: entry[field] for role in known if (field := f"message_field_{role}") in entry
        }
        is_usual = isinstance(mappings, dict) and all(
            value in known.get(role, ()) for role, value in cast("dict[str, Any]", mappings).items()
        )
        names = ("messages", "conversations")
        if not is_usual or entry.get("field_messages", "messages") not in names:
            text = "rows have `messages` with role and content, or `conversations` with from and "
            c.report("needs a decision", key, f"{text}value: rename the columns")
    else:
        shown = kind if isinstance(kind, str) else "of prompts of its own"
        text = f"type {shown}: write rows with `messages`, or a template, and set data.sources"
        c.report("needs a decision", key, text)
    if c.value("train_on_inputs"):
        result["loss_on"] = "all"
    return result


def _schedule(c: Conversion, total: int | None) -> None:
    """The schedule; the default warm-up is 3 % of all steps, at most 100."""
    steps, ratio = c.number("warmup_steps"), c.number("warmup_ratio")
    name, share = c.value("lr_scheduler"), c.number("cosine_constant_lr_ratio")
    keys = ("warmup_steps", "warmup_ratio")
    share = share if name == "cosine" and share and share < 1 else 1
    if steps is None and total:
        steps = min(int(0.03 * total), 100) if ratio is None else int(ratio * total)
    if steps is not None:
        c.set("schedule.warmup", f"{2 if steps == 1 else int(steps)} steps", *keys)
    else:
        c.set(
            "schedule.warmup", f"{100 * (0.03 if ratio is None else ratio) / share:.10g} %", *keys
        )
        if ratio is None:
            c.report("differs", "warmup_steps", "3 % of all steps, there at most 100 of them")
    if name == "one_cycle":
        c.report("needs a decision", "lr_scheduler", "set [schedule]; piecewise takes any phases")
        return
    if name == "rex":
        c.set("schedule.type", "rex", "lr_scheduler")
        c.set("schedule.floor", c.number("cosine_min_lr_ratio") or 0.0, "cosine_min_lr_ratio")
        text = "z / (0.5 + 0.5 z) of the share z that is left; there z / (0.1 + 0.9 z)"
        c.report("differs", "lr_scheduler", text)
        return
    convert_schedule(c, "lr_scheduler", total)
    if (floor := c.number("cosine_min_lr_ratio")) is not None and name == "cosine":
        c.set("schedule.floor", floor, "cosine_min_lr_ratio")
        if share < 1:
            c.set("schedule.horizon_share", share, "cosine_constant_lr_ratio")


def _optimizer(c: Conversion) -> None:
    """The optimizer of transformers, and parameter groups with their own learning rates."""
    rate = c.value("learning_rate")
    try:
        peak = float(rate)
    except (TypeError, ValueError, OverflowError):
        c.wrong("learning_rate", "a number")
        return
    c.set("optimizer.lr", peak, "learning_rate")
    if c.number("max_grad_norm") is None:
        c.values["max_grad_norm"] = 1.0  # the default of transformers
        c.paths["max_grad_norm"] = ("max_grad_norm",)
    convert_optimizer(c, "optimizer")
    groups: list[dict[str, object]] = []
    for group in c.sections("lr_groups"):
        modules, lr = group.get("modules"), group.get("lr")
        if not isinstance(modules, list) or not isinstance(lr, int | float) or not peak:
            c.wrong("lr_groups", "a list of groups with modules and a lr each")
            break
        pattern = "|".join(map(str, cast("list[object]", modules)))
        groups.append({"pattern": pattern, "lr_multiplier": lr / peak})
    lr, scale = c.number("embedding_lr"), c.number("embedding_lr_scale")
    if scale or (lr and peak):
        factor = scale or lr / peak
        groups.append({"pattern": "embed_tokens|lm_head", "lr_multiplier": float(factor)})
    if ratio := c.number("loraplus_lr_ratio"):
        groups.append({"pattern": r"\.b$", "lr_multiplier": float(ratio)})  # the matrices B
    if groups:
        c.set_items("optimizer.groups", groups, "lr_groups", "embedding_lr", "loraplus_lr_ratio")


def _adapter(c: Conversion) -> None:
    """LoRA, DoRA, ReLoRA, or QLoRA if the weights are in 4 bits."""
    if (name := c.value("adapter")) is None:
        if c.value("load_in_4bit") or c.value("load_in_8bit"):
            c.wrong("adapter", "given beside load_in_4bit or load_in_8bit")
        return
    if (name := c.choice("adapter", "lora", "qlora")) is None:
        return
    steps = c.number("relora_steps") or (
        c.number("jagged_restart_steps") if c.value("relora") else 0
    )
    kind = "relora" if steps else "dora" if c.value("peft_use_dora") else "lora"
    dtype = c.value("peft.weight_dtype")
    four = c.value("load_in_4bit") or name == "qlora" or dtype in ("int4", "nf4")
    eight = c.value("load_in_8bit") or dtype == "int8"
    if dtype not in (None, "int4", "nf4", "int8"):
        c.wrong("peft.weight_dtype", "one of int4, nf4, int8")
    if dtype == "int4":
        c.report("differs", "peft.weight_dtype", "NF4 in blocks; there int4 with a scale each")
    kind = "qlora" if four and kind == "lora" else kind
    c.set("adapter.type", kind, "adapter", "peft_use_dora", "relora")
    if four:
        c.set("adapter.quantize.type", "nf4", "load_in_4bit", "peft.weight_dtype", "adapter")
    elif eight:
        c.set("adapter.quantize.type", "int8", "load_in_8bit")
        text = "weights alone are in 8 bits; there LLM.int8() computes in 8 bits, too"
        c.report("differs", "load_in_8bit", text)
    rank = c.number("lora_r") or 8
    c.set("adapter.rank", rank, "lora_r")
    c.set("adapter.alpha", float(c.number("lora_alpha") or rank), "lora_alpha")
    c.set("adapter.dropout", c.number("lora_dropout") or 0.0, "lora_dropout")
    targets = c.names("lora_target_modules")
    if not c.value("lora_target_linear") and targets:
        layers = c.value("peft_layers_to_transform")
        patterns = [rf"(^|\.){target}$" if target.isidentifier() else target for target in targets]
        if isinstance(layers, list) and layers:
            numbers = "|".join(map(str, cast("list[object]", layers)))
            patterns = [rf"layers\.({numbers})\..*{target}$" for target in targets]
        c.set("adapter.targets", patterns, "lora_target_modules", "peft_layers_to_transform")
    if parameters := c.names("lora_target_parameters"):
        c.set("adapter.targets", [*targets, *parameters], "lora_target_parameters")
    if saved := c.names("lora_modules_to_save"):
        c.set("adapter.train", saved, "lora_modules_to_save")
    if path := c.text("lora_model_dir"):
        text = f"{path} goes on as checkpoint.load of its run, or is folded in by model.adapters"
        c.report("needs a decision", "lora_model_dir", text)
    if steps:
        c.set("adapter.merge.every", f"{steps} steps", "relora_steps", "jagged_restart_steps")
        if warmup := c.number("jagged_restart_warmup_steps"):
            c.set("adapter.merge.rewarmup", f"{warmup} steps", "jagged_restart_warmup_steps")
        text = "optimizer state is reset at a merge; there most of it is pruned"
        c.report("differs", "relora" if c.given("relora") else "relora_steps", text)


def _precision(c: Conversion) -> None:
    """Dtypes: bf16 weights with bf16, but fp32 with FSDP, DeepSpeed or an adapter."""
    bf16 = c.value("bf16") if c.given("bf16") else "auto"
    half = c.value("fp16") or c.value("float16")
    if bf16 not in (True, False, "auto", "full"):
        c.wrong("bf16", "true, false, auto or full")
    elif c.value("float32"):
        c.set("precision.compute", "fp32", "float32")
    elif half and bf16 in (False, "auto") and not c.given("bf16"):
        c.set("precision.compute", "fp16", "fp16", "float16")
        c.set("precision.loss_scale", {}, "fp16", "float16")
        c.report("differs", "fp16", "weights stay in fp32; there they are loaded in fp16")
    elif bf16 or c.value("bfloat16"):
        c.set("precision.compute", "bf16", "bf16", "bfloat16")
        if not (
            c.value("fsdp") or c.value("fsdp_config") or c.value("deepspeed") or c.value("adapter")
        ):
            c.set("precision.params", "bf16", "bf16", "bfloat16")
    elif half:
        c.set("precision.compute", "fp16", "fp16", "float16")
        c.set("precision.loss_scale", {}, "fp16", "float16")
    if isinstance(c.value("tf32"), bool):
        c.set("precision.tf32", c.value("tf32"), "tf32")
    if c.value("fp8"):
        c.set("precision.float8.recipe", "tensorwise", "fp8")
        if isinstance(gather := c.value("fp8_enable_fsdp_float8_all_gather"), bool):
            c.set("precision.float8.gather", gather, "fp8_enable_fsdp_float8_all_gather")
    convert_recomputation(c, "gradient_checkpointing")
    kind, keys = c.value("gradient_checkpointing"), ("activation_offloading", "torch_compile")
    if kind == "offload_disk":
        c.report("not converted", "gradient_checkpointing", "activations are offloaded to no disk")
    if kind in ("offload", "unsloth") or c.value("activation_offloading"):
        c.set("memory.activation_offload", {}, "activation_offloading", "gradient_checkpointing")
    known = ("LigerPlugin", "CutCrossEntropyPlugin", "KernelsPlugin")
    for plugin in c.names("plugins"):
        if plugin.rpartition(".")[2] not in known:
            c.report("refused", "plugins", f"{plugin}: code of Axolotl's is not run")
    convert_compilation(c)
    if "activation_offload" in c.data.get("memory", {}) and "compile" in c.data:
        # Between compiled layers; within one graph nothing is offloaded.
        c.set("compile.scope", "block", *keys[::-1])


def _ranks(c: Conversion) -> None:
    """Mesh degrees, sharding and timeouts."""
    c.set("parallel.device", "cuda")
    convert_shards(c)
    engine = c.data["parallel"].get("engine")
    axes = ("tensor_parallel_size", "context_parallel_size")
    offloads = "activation_offload" in c.data.get("memory", {})
    if engine and (offloads or "adapter" in c.data or any(map(c.number, axes))):
        del c.data["parallel"]["engine"]
        c.set("parallel.shard", -1, "deepspeed")
        if engine.get("stage") != 3:
            c.set("parallel.reshard", False, "deepspeed")
        if "offload" in engine:
            c.set("parallel.sharding.offload", True, "deepspeed")
        text = "shards of FSDP2: ZeRO goes with no adapter, no other axis and no offload"
        c.report("differs", "deepspeed", text)
    for key, field in (("dp_shard_size", "shard"), ("dp_replicate_size", "replicate"),
                       ("tensor_parallel_size", "tensor"), ("expert_parallel_size", "expert"),
                       ("context_parallel_size", "ring")):  # fmt: skip
        if (degree := c.number(key)) and degree > 1:
            c.set(f"parallel.{field}", degree, key)
    if (steps := c.number("gc_steps")) and steps > 0:
        c.set("resilience.gc.every", f"{steps} steps", "gc_steps")


def _cadence(c: Conversion, path: str, name: str, total: int | None) -> bool:
    """Set a period by `NAMEs_per_epoch`, `NAME_steps` or `NAME_strategy`; False without any."""
    times, steps = c.number(f"{name}s_per_epoch"), c.number(f"{name}_steps")
    strategy = c.value(f"{name}_strategy")
    if times and times > 0:
        c.set(path, f"{1 / times:.10g} epochs", f"{name}s_per_epoch")
    elif steps:
        c.values.setdefault(f"{name}_strategy", "steps")
        c.paths.setdefault(f"{name}_strategy", (f"{name}_steps",))
        period(c, path, f"{name}_strategy", f"{name}_steps", total)
    elif strategy == "epoch":
        c.set(path, "1 epochs", f"{name}_strategy")
    else:
        return False
    return True


def _records(c: Conversion, total: int | None) -> None:
    """Evaluation, checkpoints, logging and trackers."""
    has_data = bool(c.number("val_set_size") or c.value("test_datasets"))
    if not has_data or not _cadence(c, "evaluation.every", "eval", total):
        c.set("evaluation", None, "val_set_size", "eval_steps")
    else:
        c.set("evaluation.sequences", None, "val_set_size")
        c.set("evaluation.before_training", True, "eval_steps", "eval_strategy", "evals_per_epoch")
        if patience := c.number("early_stopping_patience"):
            c.set("evaluation.early_stopping.patience", patience, "early_stopping_patience")
    best = bool(c.value("load_best_model_at_end") or c.number("early_stopping_patience"))
    c.set("checkpoint.keep_best", best and has_data, "load_best_model_at_end")
    if c.value("save_strategy") == "no":
        c.set("checkpoint.every", "last_step", "save_strategy")
    elif not _cadence(c, "checkpoint.every", "save", total):
        c.set("checkpoint.every", "1 epochs", "save_steps")
    c.set("checkpoint.keep", c.number("save_total_limit") or 4, "save_total_limit")
    if isinstance(path := c.value("resume_from_checkpoint"), str):
        text = f"{path} is a checkpoint of transformers: its weights are model.pretrained"
        c.report("needs a decision", "resume_from_checkpoint", text)
    logged = c.number("logging_steps")
    default = max(min(int(0.005 * total), 10), 1) if total else 10
    c.set("tracking.every", f"{logged or default} steps", "logging_steps")
    is_off = c.value("wandb_mode") == "disabled"
    if c.value("wandb_mode") not in ("online", "offline"):
        c.values.pop("wandb_mode", None)
    c.track(
        ("tensorboard", "use_tensorboard", {}),
        ("wandb", "" if is_off else "use_wandb wandb_project", {
            "project": "wandb_project", "entity": "wandb_entity", "name": "wandb_name",
            "run_id": "wandb_run_id", "mode": "wandb_mode"}),
        ("mlflow", "use_mlflow mlflow_tracking_uri mlflow_experiment_name", {
            "uri": "mlflow_tracking_uri", "experiment": "mlflow_experiment_name",
            "name": "mlflow_run_name"}),
        ("comet", "use_comet", {"project": "comet_project_name", "workspace": "comet_workspace",
                                "run_id": "comet_experiment_key"}),
        ("trackio", "use_trackio trackio_project_name",
         {"project": "trackio_project_name", "name": "trackio_run_name"}),
    )  # fmt: skip
    if steps := c.number("profiler_steps"):
        c.set("profiling.active", steps, "profiler_steps")
        c.set("profiling.wait", c.number("profiler_steps_start") or 0, "profiler_steps_start")


DIALECT = Dialect(
    name="Axolotl",
    release="0.19",
    keys=KEYS,
    signature=("base_model",),
    complete=_complete,
    prefixes={"model_config": "overrides_of_model_config", "model_type": "type_of_model",
              "model_revision": "revision_of_model", "evaluation_strategy": "eval_strategy",
              "attention": "attn_implementation",
              "sequence_parallel_degree": "context_parallel_size", "model_kwargs": "device_map",
              "max_packed_sequence_len": "sequence_len",
              "dataset_num_proc": "dataset_processes",
              "relora_warmup_steps": "jagged_restart_warmup_steps",
              "relora_anneal_steps": "jagged_restart_anneal_steps",
              "noisy_embedding_alpha": "neftune_noise_alpha"},
    switches={"lora_": "adapter", "peft_": "adapter",
              "evals_per_epoch": "val_set_size test_datasets"},
    prepare=_prepare,
)  # fmt: skip
