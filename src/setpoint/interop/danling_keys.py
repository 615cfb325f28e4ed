"""The keys of DanLing's RunnerConfig, with the defaults of its classes, and their 0.4 names."""

from __future__ import annotations

from setpoint.interop.dialect import Key, alike, keys_of

MESH = "the degrees and the device determine the mesh"
NO_CHOICE = "{} is fixed in Setpoint"
SERVICE = "this option of the tracker is not supported"
AXES = ("replicate", "shard", "context", "pipeline", "tensor", "expert", "expert_tensor")

KEYS = {
    # Without a default; the last four are of the examples.
    **alike("", """
        name seed steps epochs train_splits evaluate_splits max_grad_value score_split
        score.patience workspace.dir checkpoint resume pretrained log_interval deepspeed
        tensorboard.log_dir tensorboard.flush_secs network.type learning_rate batch_size precision
    """),
    "stack": Key("auto"),
    "deterministic": Key(False, "deterministic"),
    "accum_steps": Key(1, "batch.accumulation"),
    "max_grad_norm": Key(None, "optimizer.clip_norm"),
    **keys_of("", skip_nonfinite_loss=False, skip_nonfinite_grad=False),
    # Optimizer and schedule.
    **alike("optim.", "type lr weight_decay betas eps momentum dampening nesterov amsgrad foreach "
             "fused param_groups"),
    "optim.maximize": Key(None, refused="not supported: negate the loss in your own loss "
                                        "class", essential=True),
    "optim.capturable": Key(None, refused="CUDA graphs of the optimizer are not supported"),
    "optim.differentiable": Key(None, refused="differentiating through optimizer steps is not "
                                              "supported"),
    **alike("scheduler.", "type interval monitor total_steps warmup_steps cooldown_steps scaling "
             "final_lr_ratio final_lr min_lr step_size milestones gamma T_max T_0 T_mult eta_min "
             "max_lr base_lr patience factor"),
    "scheduler.mode": Key(None, refused="the metric determines the direction"),
    # Ranks.
    **{f"parallel.axes.{axis}": Key(1) for axis in AXES},
    **alike("parallel.", "pipeline_n_microbatches loss_parallel"),
    "parallel.module_fqns_per_model_part": Key(None,
        decision="set parallel.pipelining.split to Setpoint's names of parts"),
    **keys_of("parallel.", pipeline_schedule="1F1B", pipeline_microbatch_size=1),
    "parallel.use_device_mesh": Key(True, refused=NO_CHOICE.format("a device mesh")),
    "parallel.mesh_device_type": Key(None, refused=MESH),
    "parallel.allow_degree_change": Key(False),
    **alike("fsdp.", "reshard_after_forward mp_policy offload_policy ignored_params"),
    "fsdp.module_classes": Key(None,
        decision="set parallel.sharding.units, which takes patterns of names instead of module "
                 "classes"),
    "fsdp.enabled": Key(False),
    "fsdp.mesh": Key(None, refused=MESH),
    "fsdp.root_reshard_after_forward": Key(None, refused="the root module always stays gathered"),
    "fsdp.shard_placement_fn": Key(None, refused="weights are always sharded along their first "
                                                 "dimension"),
    "ddp.find_unused_parameters": Key(False, refused="each parameter must get a gradient in each "
                                                     "step"),
    "ddp.static_graph": Key(False, refused="a static graph is not assumed"),
    **alike("comm.", "init_timeout_seconds train_timeout_seconds"),
    "comm.backend": Key(None, "parallel.backend"),
    "comm.init_method": Key(None, refused="the launcher sets the rendezvous address"),
    "ft.enabled": Key(False),
    "ft.process_group": Key("gloo", "parallel.torchft.process_group"),
    **keys_of("ft.", process_group_timeout_ms=10_000, process_group_timeout_seconds=None),
    "ft.replica_id": Key(0, "parallel.torchft.replica_id"),
    "ft.group_size": Key(1, "parallel.torchft.group_size"),
    "ft.min_replica_size": Key(1, "parallel.torchft.min_replica_size"),
    # Data.
    **alike("dataloader.", "batch_size shuffle num_workers prefetch_factor pin_memory timeout"),
    "dataloader.drop_last": Key(None, refused="a batch may cross from one epoch into the next"),
    "dataloader.persistent_workers": Key(None, refused="workers always persist for the whole "
                                                       "session"),
    "dataloader.in_order": Key(None, refused="batches always come in the order of the stream"),
    "dataloader.snapshot_every_n_steps": Key(None, refused="each checkpoint has the data position"),
    **alike("dataloader.", "val validate test eval evaluate", Key({})),
    # Compilation, precision and memory.
    "compile.enable": Key(False),
    **alike("compile.", "backend fullgraph dynamic mode options precompile_artifact_dir"),
    "compile.optimize_ddp": Key("ddp_optimizer", values={None: None, True: True, False: False}),
    "compile.memory_policy": Key(None, refused="use [memory]"),
    **alike("fp8.", "enabled recipe recipe_cls recipe_kwargs group"),
    **keys_of("activation_checkpoint.", enabled=False, module_classes=None,
        checkpoint_impl="no_reentrant"),
    # Selection of the best.
    "score_name": Key("loss"),
    # Records.
    **keys_of("", workspace_root="experiments", lineage="lin"),
    "experiment": Key("exp", "experiment"),
    "auto_resume": Key(False),
    **alike("checkpoint.", "async_mode wait_timeout interval exclude_from_loading export_dtype "
             "ft_replica_id"),
    "checkpoint.enabled": Key(True),
    "checkpoint.dir_name": Key("checkpoints", refused=NO_CHOICE.format("checkpoints/ in a run")),
    "checkpoint.async_enabled": Key(True),
    "checkpoint.dedicated_async_process_group": Key(True, refused=NO_CHOICE.format("a group")),
    "checkpoint.async_process_group_backend": Key("gloo", refused=NO_CHOICE.format("gloo")),
    "checkpoint.backend": Key("auto", refused="there is one format for any number of ranks"),
    **keys_of("checkpoint.", keep_latest_k=0, load_only=False, last_save_model_only=False),
    "checkpoint.enable_ft_dataloader_checkpoints": Key(False,
        refused="all replica groups share one data position"),
    "checkpoint.ft_dataloader_checkpoint_prefix": Key("dataloader-replica",
        refused="the run directory of a group ends in -replica-N"),
    "log": Key(True, refused="each rank always writes its log"),
    "logging.file": Key(None, refused="logs are in the run directory"),
    "tensorboard": Key(False),
    **alike("tensorboard.", "comment purge_step max_queue filename_suffix",
            Key(None, refused=SERVICE)),
    "wandb.enabled": Key(False),
    **alike("wandb.", "project entity group name job_type tags dir mode id"),
    **alike("wandb.", "notes resume save_code sync_tensorboard", Key(None, refused=SERVICE)),
    "mlflow.enabled": Key(False),
    **alike("mlflow.", "tracking_uri experiment_name run_id run_name tags"),
    **alike("mlflow.", "registry_uri nested description log_system_metrics",
            Key(None, refused=SERVICE)),
    **keys_of("gc.", interval=None, generation=1, disable_automatic=True),
    "profiling.enabled": Key(False),
    "profiling.wait": Key(1, "profiling.wait"),
    "profiling.warmup": Key(1, "profiling.warmup"),
    "profiling.active": Key(3, "profiling.active"),
    "profiling.repeat": Key(None, "profiling.repeat"),
    "profiling.record_shapes": Key(False, "profiling.shapes"),
    "profiling.profile_memory": Key(False, "profiling.memory"),
    "profiling.with_stack": Key(False, "profiling.stacks"),
    "profiling.with_flops": Key(False, "profiling.flops"),
    "profiling.trace_dir": Key("profiles", "profiling.directory"),
    "profiling.operator_table_rows": Key(None),
    **alike("profiling.",
            "activities with_modules acc_events use_cuda post_processing_timeout_seconds",
            Key(None, refused="this option of the profiler is not supported")),
    "heartbeat.enabled": Key(False),
    "heartbeat.interval_seconds": Key(60.0, "resilience.heartbeat.every"),
    "heartbeat.dir_name": Key("heartbeats", refused=NO_CHOICE.format("heartbeats/ in a run")),
    "performance.peak_flops": Key(None, "tracking.peak_flops"),
    **alike("performance.", "model_flops_per_sample model_flops_per_token "
            "hardware_flops_per_sample hardware_flops_per_token",
            Key(None, refused="FLOPs are computed from the model")),
}  # fmt: skip
"""All keys, by their names in 0.3 where both have them, with the defaults of the classes."""
RENAMED = {
    "sched.": "scheduler.", "dist.": "comm.", "ckpt.dir": "checkpoint.dir_name",
    "ckpt.wait_timeout_seconds": "checkpoint.wait_timeout",
    "ckpt.dataloader_checkpoint.enabled": "checkpoint.enable_ft_dataloader_checkpoints",
    "ckpt.dataloader_checkpoint.replica_id": "checkpoint.ft_replica_id",
    "ckpt.dataloader_checkpoint.prefix": "checkpoint.ft_dataloader_checkpoint_prefix",
    "ckpt.": "checkpoint.", "workspace.root": "workspace_root", "workspace.lineage": "lineage",
    "workspace.experiment": "experiment", "score.split": "score_split",
    "score.metric": "score_name", "logging.enabled": "log", "logging.interval": "log_interval",
    "tensorboard.enabled": "tensorboard", "compile.enabled": "compile.enable",
    "fsdp.mixed_precision_policy": "fsdp.mp_policy",
    "parallel.pipeline_microbatches": "parallel.pipeline_n_microbatches",
    "parallel.pipeline_partitions": "parallel.module_fqns_per_model_part",
    "heartbeat.dir": "heartbeat.dir_name", "dataloader.train.": "dataloader.",
}  # fmt: skip
"""Names of 0.4, and options of the training split, which come before those of all splits."""
