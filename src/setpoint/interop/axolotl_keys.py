"""The keys of Axolotl's schemas, releases 0.10 to 0.19, with their defaults."""

from __future__ import annotations

from setpoint.interop.dialect import REQUIRED, Key, alike, keys_of
from setpoint.interop.transformers_trainer import HUB

PREFERENCES = "preference and reward training are not supported"
MEDIA = "images, video and sound reach no model of Setpoint: batches hold tokens"
KERNELS = "a faster kernel of the same arithmetic"

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
    "auto_resume_from_checkpoints": Key(None, "checkpoint.resume", {True: "auto"}, optional=True),
    "ddp_timeout": Key(None, "parallel.timeout", optional=True),
    "ddp_bucket_cap_mb": Key(None, "parallel.bucket_size", optional=True),
    "save_first_step": Key(None, "checkpoint.at", {True: [1]}, optional=True),
}  # fmt: skip
"""Keys of the schemas of releases 0.10 to 0.19 with their defaults, but for those below."""

UNSET = """
    type_of_model revision_of_model tokenizer_type base_model_config
    tokenizer_config
    special_tokens tokens unfrozen_parameters datasets
    test_datasets pretraining_dataset dataset_processes dataset_shard_num dataset_shard_idx
    streaming chat_template chat_template_jinja hf_use_auth_token
    min_sample_len sample_packing sample_packing_sequentially
    pad_to_sequence_len group_by_length curriculum_sampling dataloader_num_workers
    dataloader_prefetch_factor dataloader_pin_memory batch_size max_steps optim_args
    optim_target_modules adam_beta1 adam_beta2 adam_epsilon max_grad_norm lr_scheduler_kwargs
    warmup_steps warmup_ratio cosine_min_lr_ratio cosine_constant_lr_ratio lr_groups
    embedding_lr embedding_lr_scale loraplus_lr_ratio adapter lora_r lora_alpha
    lora_target_modules lora_target_linear lora_target_parameters
    lora_rank_pattern lora_alpha_pattern rope_scaling
    lora_model_dir peft_use_dora peft_layers_to_transform relora relora_steps
    jagged_restart_steps jagged_restart_warmup_steps bf16 bfloat16 fp16 float16 float32 tf32 fp8
    fp8_enable_fsdp_float8_all_gather gradient_checkpointing
    gradient_checkpointing_kwargs activation_offloading
    torch_compile torch_compile_backend torch_compile_mode attn_implementation flash_attention
    sdp_attention flex_attention eager_attention xformers_attention
    deepspeed fsdp fsdp_config dp_shard_size dp_replicate_size
    tensor_parallel_size expert_parallel_size context_parallel_size
    gc_steps resume_from_checkpoint logging_steps
    eval_steps evals_per_epoch eval_strategy save_steps saves_per_epoch save_strategy
    save_total_limit metric_for_best_model early_stopping_patience use_wandb
    wandb_project wandb_entity wandb_name wandb_run_id wandb_mode use_tensorboard use_mlflow
    mlflow_tracking_uri mlflow_experiment_name mlflow_run_name use_comet comet_project_name
    comet_workspace comet_experiment_key profiler_steps profiler_steps_start plugins use_trackio
    trackio_project_name trackio_run_name reinit_weights
    model_quantization_config model_quantization_config_kwargs
"""
"""Keys whose default is null, converted by functions in axolotl.py."""
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
        resize_token_embeddings_to_32x peft_ensure_weight_tying
        peft_layer_replication peft_layers_pattern peft_init_lora_weights
        peft_trainable_token_indices bnb_config_kwargs added_tokens_overrides
    """,
    "a row or its template has the system message": "default_system_message chat_template_kwargs",
    "a merge drops all of the adapter's optimizer state": """
        relora_prune_ratio relora_prune_method relora_cpu_offload jagged_restart_anneal_steps
    """,
    "optimizer.groups sets rates by the names of parameters": "loraplus_lr_embedding",
    "`setpoint launch` starts the processes": """
        use_ray ray_run_name ray_num_workers resources_per_worker
    """,
    "memory is estimated by `setpoint check --plan`": "max_memory gpu_memory_limit device_map",
    "the weights that a run exports are not quantized": "quantization",
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
    "pruning during training is not supported": "llmcompressor",
    "quantization-aware training is not supported": "qat",
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
        data_seed context_parapllel_size pad_to_seq_len
    """,
    "another key must enable it": """
        eval_max_new_tokens eaft_alpha eaft_k kd_ce_alpha kd_alpha kd_temperature kd_beta
        kd_normalize_topk kd_temperature_min kd_online_server_base_url kd_online_topk
        kd_online_server kd_online_timeout scaling_softmax_factor scaling_softmax_bias
        spectrum_top_fraction spectrum_model_name grokfast_alpha grokfast_lamb adam_beta3
        adam_epsilon2 dion_lr lr_div_factor bench_source_max_len max_bench_samples
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
