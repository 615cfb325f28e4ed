"""d9d's files for training and inference: sections of its jobs and of user-defined providers.

d9d accepts the model, the data and the mesh in Python. Its examples keep them in the same file, as
`model` or `model_provider`, `data`, `auto_data`, `mesh`, `optimizer`, `lr_scheduler` and `lora`,
and are read that way. Anything that a file leaves to Python needs a decision.

Formulas of d9d: gradients are a mean over the global batch, weighted by its tokens; phases of the
learning rate are fractions of all steps; the seed is that of the pipeline rank.
"""

from __future__ import annotations

import re
from typing import Any

from setpoint.config import Invalid, Problem
from setpoint.config.types.base import compiled_pattern
from setpoint.interop.dialect import REQUIRED, Conversion, Dialect, Key, keys_of

STATELESS = "an inference job saves no state"
TRAINING = ("run.", "schedule.", "logging.", "gradient_", "optimizer.", "lr_scheduler.", "lora.")
"""Beginnings of keys that a training has alone."""
SIGN = "not supported: negate the loss in your own loss class"
BALANCED = "stages are balanced by FLOPs; parallel.pipelining.split sets them"
MODULES = {f"self_attn.{letter}_proj": f"attention.{word}" for letter, word in
           (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))}  # fmt: skip
MODULES |= {f"mlp.{name}_proj": f"feed_forward.{name}" for name in ("gate", "up", "down")}
"""Names of linear layers of a layer, and what they are here."""
TRACKERS = {
    "aim": {"repo": "repo", "system_parameters": "log_system_params",
            "terminal": "capture_terminal_logs", "system_interval": "system_tracking_interval"},
    "wandb": {"project": "project", "entity": "entity", "group": "group", "tags": "tags",
              "mode": "mode", "directory": "dir"},
    "mlflow": {"experiment": "experiment", "uri": "tracking_uri"},
    "tensorboard": {"directory": "log_dir"},
}  # fmt: skip
"""Fields of trackers, and what they are there."""
PERIODS = {"last_step": "last_step", "disable": "never"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}

KEYS = {
    "run.name": Key(REQUIRED, "name"),
    "run.description": Key(None, "description"),
    "run.hparams": Key({}, "user"),
    "schedule.total_steps": Key(None),
    # Ranks.
    "mesh.pipeline_parallel": Key(1, "parallel.pipeline"),
    **keys_of("mesh.", data_parallel_replicate=1, data_parallel_shard=1,
        context_parallel_replicate=1, context_parallel_shard=1),
    "mesh.tensor_parallel": Key(1, "parallel.tensor"),
    "mesh.expert_parallel": Key(1, "parallel.expert"),
    **keys_of("pipelining.schedule.", schedule="gpipe", num_stages_per_rank=None,
        zero_bubble=False),
    "timeout.init_timeout": Key(10_000, "parallel.timeout"),
    "timeout.step_timeout": Key(100, "parallel.step_timeout"),
    # Batch and loader.
    "batching.global_batch_size": Key(REQUIRED, "batch.global_size"),
    "batching.microbatch_size": Key(REQUIRED, "batch.micro_size"),
    "data_loading.num_workers": Key(0, "data.loader.workers"),
    "data_loading.pin_memory": Key(True, "data.loader.pin_memory"),
    "data_loading.persistent_workers": Key(False),
    "auto_data.drop_last": Key(True, refused="a batch may cross from one epoch into the next"),
    "auto_data.shuffle": Key(False, "data.shuffle"),
    "auto_data.prefetch_factor": Key(None, "data.loader.prefetch", optional=True),
    "auto_data.timeout": Key(0.0, "data.loader.timeout", optional=True),
    "auto_data.shard_indexing_mode": Key("sequential",
        refused="ranks take sequences in turn from one order"),
    "data_prefetch.prefetch_factor": Key(1, refused="only the loader queues batches"),
    # Data, as the examples name it.
    **keys_of("data.", dataset=None, dataset_config=None, split="train", text_column="text",
        use_samples=None, shuffle_seed=None, tokenizer=None, max_length=None, num_proc=None,
        presort_buffer_size=None),
    "data.presort_pack_size": Key(None, idle="length buckets always group rows of similar length"),
    # Model, with the parameters of Qwen 3.
    **keys_of("model.layer.", hidden_size=None, intermediate_size=None, num_experts=None,
        experts_top_k=None, num_attention_heads=None, num_key_value_heads=None, rms_norm_eps=1e-6,
        head_dim=None),
    **keys_of("model.", num_hidden_layers=None, rope_base=10_000.0, max_position_ids=None,
        split_vocab_size={}, split_vocab_order=[]),
    "model.pipeline_num_virtual_layers_pre": Key(0, refused=BALANCED),
    "model.pipeline_num_virtual_layers_post": Key(0, refused=BALANCED),
    "model_provider.checkpointing": Key(False),
    "model_stage_factory.source_checkpoint": Key(None, "model.pretrained"),
    "model_stage_factory.checkpoint_only_trainable_parameters": Key(False),
    "lora.kind": Key("lora", refused="trained weights are chosen by optimizer.frozen and "
                                     "[adapter]"),
    "lora.module_name_pattern": Key(None),
    **keys_of("lora.params.", r=None, alpha=None, dropout=0.0),
    # Optimizer and schedule.
    **keys_of("optimizer.", name=None, lr=None, betas=(0.9, 0.999), eps=1e-8, weight_decay=None,
        state_dtype=None, amsgrad=False),
    "optimizer.maximize": Key(False, refused=SIGN, essential=True),
    **keys_of("optimizer.", decoupled_weight_decay=False, momentum=0.0, dampening=0.0,
        nesterov=False),
    "lr_scheduler.name": Key(None),
    **keys_of("lr_scheduler.scheduler.", initial_multiplier=None, phases=[]),
    "gradient_clipping.max_norm": Key(None, "optimizer.clip_norm"),
    "gradient_clipping.log_total_steps": Key(None, refused="each row of metrics has the gradient "
                                                           "norm"),
    **keys_of("gradient_manager.", grad_dtype=None, bucket_size_mb=None),
    # Records.
    "determinism.base_seed": Key(REQUIRED, "seed"),
    "gc.period_steps": Key(None),
    "logging.period_steps": Key(REQUIRED),
    "logging.max_pending_steps": Key(2, refused="metrics are read at the interval tracking.every"),
    **keys_of("logging.tracker.", provider=None, repo=None, log_system_params=True,
        capture_terminal_logs=True, system_tracking_interval=10, experiment=None,
        tracking_uri=None, log_dir=None, project=None, entity=None, group=None, tags=[],
        mode="online", dir=None),
    "checkpointing.save_dir": Key(REQUIRED, "workspace"),
    "checkpointing.period_steps": Key(REQUIRED),
    "checkpointing.num_to_keep": Key(None, "checkpoint.keep"),
    "profiling.enabled": Key(False),
    "profiling.record_shapes": Key(True, "profiling.shapes"),
    "profiling.with_stack": Key(True, "profiling.stacks"),
    "profiling.traces_dir": Key("traces", "profiling.directory"),
    "profiling.period_steps": Key(10),
    "profiling.warmup_steps": Key(1, "profiling.warmup"),
    "profiling.active_steps": Key(1, "profiling.active"),
    "export_to": Key(None),
}  # fmt: skip
"""All keys, with the defaults of the schemas."""


def _prepare(c: Conversion) -> None:
    """Turn on the profiler if its section has no switch."""
    options = [key for key in c.values if key.startswith("profiling.")]
    if options and "profiling.enabled" not in options:
        c.values["profiling.enabled"], c.paths["profiling.enabled"] = True, c.paths[options[0]]


def _complete(c: Conversion) -> None:
    """Convert the keys that depend on each other."""
    if _infers(c):
        _inference(c)
        return
    total = c.number("schedule.total_steps")
    c.set("duration", f"{total} steps" if total else "1 epoch", "schedule.total_steps")
    _ranks(c)
    _model(c)
    _data(c)
    _optimizer(c)
    _schedule(c)
    _records(c)


def _infers(c: Conversion) -> bool:
    """True for an inference file, which has an inference section or no training section."""
    if any(path[0] == "inference" for path in c.paths.values()):
        return True
    sections = ("batching.", "model_stage_factory.", "determinism.", "timeout.")
    is_training = any(key.startswith(TRAINING) and c.value(key) is not None for key in c.values)
    return not is_training and all(
        any(key.startswith(section) for key in c.values) for section in sections
    )


def _inference(c: Conversion) -> None:
    """Convert an inference job; d9d receives its forward passes in Python."""
    c.data.clear()
    c.places.clear()
    for key in [key for key in c.values if key in c.dialect.keys]:
        if key.startswith(TRAINING) and c.value(key) is not None:
            c.wrong(key, "a section of a training job, but the file has an inference job")
        elif key.startswith("checkpointing.") and c.value(key) is not None:
            c.report("refused", key, STATELESS)
    if path := c.text("model_stage_factory.source_checkpoint"):
        c.set("weights.path", path, "model_stage_factory.source_checkpoint")
    else:
        text = "d9d defines the weights in Python: set weights.path"
        c.report("needs a decision", "model_stage_factory.source_checkpoint", text)
        c.set("weights.path", "./weights", "model_stage_factory.source_checkpoint")
    for key in [key for key in c.values if key.startswith("model.")]:
        c.value(key)
    if c.given("model.layer.hidden_size"):
        text = "the config.json in weights.path defines the model"
        c.report("not converted", "model.layer.hidden_size", text)
    c.copy_given({"batch.global_size": "batching.global_batch_size",
                  "batch.sequence_length": "data.max_length", "seed": "determinism.base_seed",
                  "data.loader.workers": "data_loading.num_workers",
                  "data.loader.pin_memory": "data_loading.pin_memory",
                  "parallel.timeout": "timeout.init_timeout",
                  "parallel.step_timeout": "timeout.step_timeout"})  # fmt: skip
    c.number("batching.microbatch_size")  # per rank; the global size is a multiple
    c.set("parallel.device", "cuda")
    for axis, field in (
        ("data_parallel_replicate", "replicate"), ("data_parallel_shard", "shard"),
        ("tensor_parallel", "tensor"), ("pipeline_parallel", "pipeline"),
        ("expert_parallel", "expert"), ("context_parallel_shard", "ring"),
    ):  # fmt: skip
        if (degree := c.number(f"mesh.{axis}")) > 1:
            c.set(f"parallel.{field}", degree, f"mesh.{axis}")
    if c.value("gc.period_steps") in (None, "disable"):
        c.set("resilience.gc", None, "gc.period_steps")
    else:
        _period(c, "resilience.gc.every", "gc.period_steps")
    _profile(c)
    if c.value("profiling.enabled"):
        c.copy({"profiling.warmup": "profiling.warmup_steps",
                "profiling.active": "profiling.active_steps",
                "profiling.directory": "profiling.traces_dir"})  # fmt: skip
    if tokenizer := c.text("data.tokenizer"):
        c.tokenizer(tokenizer, "data.tokenizer")
    if path := c.text("export_to"):
        c.set("export.path", path, "export_to")
    if isinstance(c.value("data.dataset"), str):
        c.set("evaluation.sides", [])
        items = [{"name": "data", "sources": [_source(c)]}]
        c.set("evaluation.sets", items, "data.dataset")
    elif not path:
        text = "d9d defines the task in Python: set evaluation, generation, harness or export"
        c.report("needs a decision", "data.dataset", text)


def _ranks(c: Conversion) -> None:
    """Degrees of the mesh; ranks of a context have parts of sequences, as copies or in shards."""
    c.set("parallel.device", "cuda")
    replicate, shard = "mesh.data_parallel_replicate", "mesh.data_parallel_shard"
    c.set("parallel.replicate", c.number(replicate), replicate)
    c.set("parallel.shard", c.number(shard), shard)
    axes = ("pipeline_parallel", "data_parallel_shard", "context_parallel_replicate",
            "context_parallel_shard", "tensor_parallel", "expert_parallel")  # fmt: skip
    bucket, is_ddp = "gradient_manager.bucket_size_mb", c.number(replicate) > 1
    # With other axes, the gradients of each unit are summed separately.
    if is_ddp and all(c.number(f"mesh.{axis}") == 1 for axis in axes) and c.number(bucket):
        c.set("parallel.bucket_size", float(c.number(bucket)), bucket)
    copies, parts = "mesh.context_parallel_replicate", "mesh.context_parallel_shard"
    if (ranks := c.number(copies) * c.number(parts)) > 1:
        c.set("parallel.ring", ranks, copies, parts)
        c.set("parallel.shard_over_context", "none" if c.number(copies) > 1 else "all", copies)
        if c.number(copies) > 1 and c.number(parts) > 1:
            text = (
                "all ranks of a context keep copies of the weights; shards within a context as "
                "well are not supported"
            )
            c.report("differs", copies, text)
    if c.number("mesh.pipeline_parallel") > 1:
        _pipeline(c)


def _pipeline(c: Conversion) -> None:
    """The pipeline schedule; 1f1b with several stages per rank means interleaved."""
    key, stages = "pipelining.schedule.schedule", "pipelining.schedule.num_stages_per_rank"
    words = ("gpipe", "looped_bfs", "1f1b", "zero_bubble_v", "dual_pipe_v")
    name, count = c.choice(key, *words), c.number(stages) or 1
    if name is None:
        return
    if name == "1f1b" and count > 1:
        bubble = c.value("pipelining.schedule.zero_bubble")
        name = "interleaved_zero_bubble" if bubble else "interleaved_1f1b"
    names = {"gpipe": "gpipe", "looped_bfs": "looped_bfs", "1f1b": "1f1b",
             "interleaved_1f1b": "interleaved_1f1b", "zero_bubble_v": "zbv_zero_bubble",
             "interleaved_zero_bubble": "interleaved_zero_bubble",
             "dual_pipe_v": "dual_pipe_v"}  # fmt: skip
    c.set("parallel.pipelining.schedule", names[name], key)
    if count > 1 and name not in ("zero_bubble_v", "dual_pipe_v"):
        c.set("parallel.pipelining.stages_per_rank", count, stages)


def _model(c: Conversion) -> None:
    """The decoder of Qwen 3, dense or with experts, with the parameters used in the examples."""
    plain = {"hidden_size": "dim", "num_attention_heads": "heads", "head_dim": "head_dim",
             "num_key_value_heads": "kv_heads"}  # fmt: skip
    if not c.given("model.layer.hidden_size"):
        place = "model_stage_factory.source_checkpoint"
        c.report("needs a decision", place, "d9d defines the model in Python: set [model]")
    else:
        c.set("model.type", "transformer")
        c.set("model.qk_norm", True)
        c.copy({"model.norm_eps": "model.layer.rms_norm_eps", "model.rope_base": "model.rope_base"})
        c.copy_given({f"model.{field}": f"model.layer.{name}" for name, field in plain.items()})
        c.copy_given({"model.layers": "model.num_hidden_layers",
                      "model.max_sequence_length": "model.max_position_ids"})  # fmt: skip
        parts = c.value("model.split_vocab_size").values()
        sizes = [size for size in parts if isinstance(size, int)]
        if sizes:
            keys = ("model.split_vocab_size", "model.split_vocab_order")
            c.set("model.vocab_size", sum(sizes), *keys)
        width = c.number("model.layer.intermediate_size")
        if experts := c.number("model.layer.num_experts"):
            c.set("model.moe.experts", experts, "model.layer.num_experts")
            top_k = c.number("model.layer.experts_top_k") or 1
            c.set("model.moe.top_k", top_k, "model.layer.experts_top_k")
            c.set("model.moe.expert_dim", width, "model.layer.intermediate_size")
            c.set("model.moe.balance_loss", 0.0)
        elif width:
            c.set("model.ffn_dim", width, "model.layer.intermediate_size")
    if c.value("model_provider.checkpointing"):
        path = "memory.activation_checkpointing.type"
        c.set(path, "full", "model_provider.checkpointing")
    if (rank := c.number("lora.params.r")) is not None:
        c.set("adapter.type", "lora", "lora.params.r")
        c.set("adapter.rank", rank, "lora.params.r")
        c.set("adapter.alpha", float(c.number("lora.params.alpha") or rank), "lora.params.alpha")
        c.set("adapter.dropout", c.number("lora.params.dropout"), "lora.params.dropout")
        if pattern := c.value("lora.module_name_pattern"):
            _targets(c, str(pattern))
    only = "model_stage_factory.checkpoint_only_trainable_parameters"
    if c.value(only):
        c.set("checkpoint.save_frozen", False, only)


def _targets(c: Conversion, pattern: str) -> None:
    """The linear layers whose names in d9d match a pattern in every layer."""
    key = "lora.module_name_pattern"
    try:
        compiled = compiled_pattern(pattern)
    except Invalid as error:
        c.problems.append(Problem(key, error.message, hint=error.hint, origin=c.place(key)))
        return
    matching = [{module for d9d_name, module in MODULES.items()
                 if compiled.fullmatch(f"model.layers.{layer}.{d9d_name}")}
                for layer in (0, 1, 10)]  # fmt: skip
    if matching[0] and matching[0] == matching[1] == matching[2]:
        targets = [f"{re.escape(name)}$" for name in MODULES.values() if name in matching[0]]
        c.set("adapter.targets", targets, key)
    else:
        text = "a pattern of d9d's module names: use Setpoint's, such as attention.query for q_proj"
        c.report("needs a decision", key, text)


def _source(c: Conversion) -> dict[str, object]:
    """The rows of the data set."""
    split, count = c.value("data.split"), c.number("data.use_samples")
    source = {
        "type": "huggingface", "path": c.value("data.dataset"),
        "subset": c.value("data.dataset_config"), "field": c.value("data.text_column"),
        "split": f"{split}[:{count}]" if count else split,
    }  # fmt: skip
    return {name: value for name, value in source.items() if value is not None}


def _data(c: Conversion) -> None:
    """Text from a data set, one document per row, sorted by length within buffers."""
    name = c.value("data.dataset")
    if not isinstance(name, str):
        c.report("needs a decision", "data.dataset", "d9d defines the data in Python: set [data]")
        return
    c.set_items("data.sources", [_source(c)], "data.dataset")
    c.set("data.held_out", 0)
    c.set("evaluation", None)
    c.set("data.packing.method", "none")
    if longest := c.number("data.max_length"):
        c.set("batch.sequence_length", longest, "data.max_length")
        c.set("data.packing.too_long", "truncate", "data.max_length")
    else:
        text = "set batch.sequence_length; in d9d, the longest row of a batch determines it"
        c.report("needs a decision", "data.dataset", text)
    if c.value("auto_data.shuffle") and (seed := c.number("data.shuffle_seed")) is not None:
        c.set("data.seed", seed, "data.shuffle_seed")
    if c.value("data.presort_buffer_size"):
        c.set("data.packing.length_buckets", True, "data.presort_buffer_size")
    if tokenizer := c.value("data.tokenizer"):
        c.tokenizer(tokenizer, "data.tokenizer")
    c.copy_given({"data.prepare.workers": "data.num_proc"})


def _optimizer(c: Conversion) -> None:
    """Optimizers by name, with torch's defaults; decay applies to all weights."""
    if c.value("optimizer.name") is None or c.number("optimizer.lr") is None:
        text = "d9d defines the optimizer in Python: set [optimizer]"
        c.report("needs a decision", "optimizer.name", text)
        return
    names = {"adamw": "adamw", "stochastic_adamw": "anyprecision_adamw", "sgd": "sgd",
             "adam": "adamw"}  # fmt: skip
    name, decay = c.choice("optimizer.name", *names), c.number("optimizer.weight_decay")
    if name is None:
        return
    is_decoupled = c.value("optimizer.decoupled_weight_decay")
    is_adam = name == "adam" and bool(decay) and not is_decoupled  # decays in the gradient
    c.set("optimizer.type", "import" if is_adam else names[name], "optimizer.name")
    if is_adam:
        c.set("optimizer.target", "torch.optim.Adam", "optimizer.decoupled_weight_decay")
    c.set("optimizer.lr", c.number("optimizer.lr"), "optimizer.lr")
    default = {"sgd": 0.0, "adam": 0.0}.get(name, 0.01)
    c.set("optimizer.weight_decay", default if decay is None else decay, "optimizer.weight_decay")
    c.set("optimizer.no_decay", [])
    if name == "sgd":
        for key in ("momentum", "dampening", "nesterov"):
            if (value := c.value(f"optimizer.{key}")) or key == "momentum":
                c.set(f"optimizer.{key}", value, f"optimizer.{key}")
    else:
        c.copy({"optimizer.betas": "optimizer.betas", "optimizer.eps": "optimizer.eps"})
    if names[name] == "adamw" and c.value("optimizer.amsgrad"):
        c.set("optimizer.amsgrad", True, "optimizer.amsgrad")
    key = "gradient_manager.grad_dtype"
    reduce = None if c.value(key) is None else c.choice(key, *DTYPES)
    if name == "stochastic_adamw":
        # It rounds bf16 weight updates stochastically.
        c.set("precision.params", "bf16", "optimizer.name")
        c.set("precision.compute", "bf16", "optimizer.name")
        state = c.choice("optimizer.state_dtype", *DTYPES)
        if state is not None:
            c.set("precision.optimizer_state", DTYPES[state], "optimizer.state_dtype")
        if reduce is not None:
            c.set("precision.reduce", DTYPES[reduce], key)
    else:
        text = "d9d's model defines the dtype of the weights in Python: set precision.params"
        c.report("needs a decision", "optimizer.name", text)


def _schedule(c: Conversion) -> None:
    """Phases with a length in steps, as a fraction of all steps, or of the remaining steps."""
    key = "lr_scheduler.scheduler.phases"
    if c.value("lr_scheduler.name") is None:
        c.report(
            "needs a decision",
            "lr_scheduler.name",
            "d9d defines the schedule in Python: set [schedule]",
        )
        return
    phases = c.sections(key)
    if c.choice("lr_scheduler.name", "piecewise") is None or not phases:
        c.wrong("lr_scheduler.name", "piecewise with phases")
        return
    curves = {"linear": "linear", "cosine": "cosine", "poly": "polynomial",
              "exponential": "exponential"}  # fmt: skip
    items: list[dict[str, object]] = []
    for phase in phases:
        curve: Any = phase.get("curve")
        kind = str(curve.get("type")) if isinstance(curve, dict) else ""
        if kind not in curves:
            c.wrong(key, f"given with a curve of {', '.join(curves)} each")
            return
        share, steps = phase.get("percentage"), phase.get("steps")
        mode = phase.get("mode")
        length = f"{100 * share:.10g} %" if isinstance(share, int | float) else f"{steps} steps"
        power = curve.get("power", 2.0) if kind == "poly" else None
        items.append({"target": phase.get("target_multiplier"), "curve": curves[kind],
                      "power": power, "length": None if mode == "rest" else length})  # fmt: skip
    start = "lr_scheduler.scheduler.initial_multiplier"
    c.set("schedule.type", "piecewise", "lr_scheduler.name")
    c.set("schedule.start", c.number(start) or 0.0, start)
    c.set_items("schedule.phases", items, key)


def _period(c: Conversion, path: str, key: str) -> None:
    value = c.value(key)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        c.set(path, f"{value} steps", key)
    elif isinstance(value, str) and value in PERIODS:
        c.set(path, PERIODS[value], key)
    else:
        c.wrong(key, "a positive int, last_step or disable")


def _profile(c: Conversion) -> None:
    """Traces, recorded in cycles with a period."""
    if c.value("profiling.enabled"):
        warmup, active = c.number("profiling.warmup_steps"), c.number("profiling.active_steps")
        period = "profiling.period_steps"
        c.set("profiling.wait", max(0, c.number(period) - warmup - active), period)
        c.set("profiling.repeat", None, period)


def _records(c: Conversion) -> None:
    """Periods, the tracker, profiles and exports."""
    _period(c, "tracking.every", "logging.period_steps")
    _period(c, "checkpoint.every", "checkpointing.period_steps")
    if c.value("gc.period_steps") in (None, "disable"):
        c.set("resilience.gc", None, "gc.period_steps")
    else:
        _period(c, "resilience.gc.every", "gc.period_steps")
    switch = "logging.tracker.provider"
    provider = None if c.value(switch) in (None, "null", "log") else c.choice(switch, *TRACKERS)
    if provider is None:
        c.values.pop(switch, None)
    fields = TRACKERS.get(provider or "", {})
    c.track((provider or "", switch, {f: f"logging.tracker.{key}" for f, key in fields.items()}))
    _profile(c)
    if c.value("export_to"):
        c.set("checkpoint.export", {}, "export_to")


DIALECT = Dialect(
    name="d9d",
    release="0.24",
    keys=KEYS,
    signature=("model_stage_factory.source_checkpoint", "determinism.base_seed",
               "checkpointing.save_dir", "logging.tracker.provider"),
    complete=_complete,
    prepare=_prepare,
    switches={"profiling.": "profiling.enabled", "data.shuffle_seed": "auto_data.shuffle"},
    prefixes={"trainer.": "", "inference.": "", "model_provider.model.model.": "model.",
              "peft.": "lora.",
              "data.global_batch_size": "batching.global_batch_size",
              "data.microbatch_size": "batching.microbatch_size",
              "data.num_workers": "data_loading.num_workers", "data.shuffle": "auto_data.shuffle",
              "auto_data.global_batch_size": "batching.global_batch_size",
              "auto_data.microbatch_size": "batching.microbatch_size",
              "auto_data.num_workers": "data_loading.num_workers",
              "auto_data.pin_memory": "data_loading.pin_memory",
              "auto_data.persistent_workers": "data_loading.persistent_workers"},
)  # fmt: skip
