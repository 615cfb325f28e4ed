"""DanLing's RunnerConfig as YAML, JSON or TOML, with names from 0.3 and those renamed in 0.4.

DanLing accepts the model, the data and, unless `optim` has a type, the optimizer in Python; these
need a decision. User-defined keys of a RunnerConfig are in `user`.

Formulas of DanLing: the number of ranks is the product of all axes, with replicate * shard data
ranks; a step has accum_steps batches of dataloader.batch_size per data rank. DanLing's own
schedules have the factor of `_rate` below at step s, from 1; training ends at `steps` or `epochs`.
Decay applies to all weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

from setpoint.interop.danling_keys import AXES, KEYS, RENAMED
from setpoint.interop.dialect import SAVE_MODES, Conversion, Dialect, phases_of

IN_PYTHON = "DanLing defines {} in Python: set [{}]"
CLASSES = {
    "adam": "Adam", "torch_adam": "Adam", "asgd": "ASGD", "adadelta": "Adadelta",
    "adagrad": "Adagrad", "adamax": "Adamax", "nadam": "NAdam", "radam": "RAdam",
    "rmsprop": "RMSprop", "rprop": "Rprop", "adafactor": "Adafactor",
}  # fmt: skip
"""Optimizers that are classes of torch.optim."""
STACKS = ("auto", "ddp", "torch", "graph", "graph_runner", "deepspeed", "ds", "parallel")
DTYPES = {"fp32": "fp32", "float32": "fp32", "float": "fp32", "fp16": "fp16", "float16": "fp16",
          "half": "fp16", "bf16": "bf16", "bfloat16": "bf16", "fp64": "fp64", "float64": "fp64",
          "double": "fp64"}  # fmt: skip
STATE = {"optimizer": "optimizer", "scheduler": "schedule", "lr_scheduler": "schedule",
         "dataloaders": "loader", "dataloader": "loader", "data_loader": "loader"}  # fmt: skip


SINCE_0_4 = ("name", "train_splits", "evaluate_splits", "max_grad_norm", "max_grad_value",
             "skip_nonfinite_loss", "skip_nonfinite_grad", "deepspeed", "fp8", "mlflow", "ddp",
             "performance", "activation_checkpoint", "sched", "dist", "ckpt", "workspace", "score",
             "logging")  # fmt: skip
"""First words of keys that 0.3 has not."""


def _complete(c: Conversion) -> None:
    """Convert the keys that depend on each other."""
    total = _duration(c)
    _python_objects(c)
    _ranks(c)
    _batch(c)
    _optimizer(c)
    _schedule(c, total)
    _precision(c)
    _checkpoints(c, total)
    _records(c, total)


def _duration(c: Conversion) -> int | None:
    """Set the duration and the seed; return the number of steps, if given."""
    names = {path[0] for key, path in c.paths.items() if key in KEYS}
    is_new = bool(names & {*SINCE_0_4}) or c.given("checkpoint")
    seed = c.value("seed")
    c.set("seed", 1016 if is_new and not c.given("seed") else seed, "seed")
    c.copy_given({"name": "name"})
    steps, epochs = c.number("steps"), c.number("epochs")
    if steps is not None and epochs is not None:
        c.wrong("steps", "valid together with epochs")
    elif steps is not None:
        c.set("duration", f"{steps} steps", "steps")
    elif epochs is not None:
        c.set("duration", f"{epochs} epochs", "epochs")
    else:
        c.report("needs a decision", "steps", "neither steps nor epochs are given: set duration")
    return steps if epochs is None and isinstance(steps, int) else None


def _python_objects(c: Conversion) -> None:
    """The objects that DanLing receives in Python."""
    c.report("needs a decision", "network.type", IN_PYTHON.format("the model", "model"))
    c.report("needs a decision", "dataloader.batch_size", IN_PYTHON.format("the data", "data"))
    if c.value("network.type") is not None:
        c.set("user.network.type", c.value("network.type"), "network.type")
    for key in ("train_splits", "evaluate_splits"):
        if c.value(key) is not None:
            c.report(
                "needs a decision",
                key,
                "the splits are named in Python: set data.sources and evaluation",
            )


def _ranks(c: Conversion) -> None:
    """DDP replicas, or the axes of a mesh."""
    c.set("parallel.device", "cuda")
    stack = str(c.value("stack") or "auto").strip().lower().replace("-", "_")
    if stack not in STACKS:
        c.wrong("stack", "one of " + ", ".join(STACKS))
        return
    c.copy_given({"parallel.timeout": "comm.init_timeout_seconds",
                  "parallel.step_timeout": "comm.train_timeout_seconds"})  # fmt: skip
    if c.value("ft.enabled"):
        seconds = c.number("ft.process_group_timeout_seconds")
        if seconds is None:
            seconds = c.number("ft.process_group_timeout_ms") / 1000
        keys = ("ft.process_group_timeout_seconds", "ft.process_group_timeout_ms")
        c.set("parallel.torchft.timeout", seconds, *keys)
        if c.data.get("seed") is None:
            c.report("needs a decision", "seed", "all replica groups need the same seed: set seed")
    if stack != "parallel":
        c.set("parallel.replicate", -1, "stack")
        for key in c.values:
            if key.startswith(("parallel.", "fsdp.")):
                c.value(key)
                c.report("without effect", key, f"in DanLing, too: stack is {stack}")
        if stack in ("deepspeed", "ds"):
            _deepspeed(c)
        return
    _axes(c)


def _deepspeed(c: Conversion) -> None:
    """The ZeRO stage; the rest of DeepSpeed's own configuration follows from other fields."""
    c.set("parallel.engine.type", "deepspeed", "stack")
    raw: Any = c.value("deepspeed")
    zero = raw.get("zero_optimization", {}) if isinstance(raw, dict) else {}
    stage = zero.get("stage") if isinstance(zero, dict) else None
    c.set("parallel.engine.stage", 1 if stage is None else stage, "deepspeed")
    if isinstance(raw, dict) and set(cast("dict[str, object]", raw)) - {"zero_optimization"}:
        text = "only the stage of DeepSpeed's configuration is converted: set parallel.engine"
        c.report("needs a decision", "deepspeed", text)


def _axes(c: Conversion) -> None:
    """Degrees; in DanLing ranks of experts see the same data, but different data in Setpoint."""
    axis = "parallel.axes"
    degrees = {name: c.number(f"{axis}.{name}") for name in AXES}
    experts = degrees["expert"] * degrees["expert_tensor"]
    shard = degrees["shard"] * experts if degrees["shard"] > 0 and experts > 0 else degrees["shard"]
    c.set("parallel.replicate", degrees["replicate"], f"{axis}.replicate")
    c.set("parallel.shard", shard, f"{axis}.shard", f"{axis}.expert")
    names = {"context": "ring", "pipeline": "pipeline", "tensor": "tensor", "expert": "expert"}
    for word, field in names.items():
        c.set(f"parallel.{field}", degrees[word], f"{axis}.{word}")
    if degrees["expert_tensor"] > 1:
        c.set("parallel.expert_tensor", degrees["expert_tensor"], f"{axis}.expert_tensor")
    if not c.value("fsdp.enabled") and degrees["shard"] not in (0, 1):
        text = "weights are sharded; in DanLing, each rank of the axis has a copy (fsdp.enabled)"
        c.report("differs", f"{axis}.shard", text)
    if degrees["pipeline"] not in (0, 1):
        c.pipeline("parallel.pipeline_schedule")
    if degrees["tensor"] not in (0, 1):
        loss = c.value("parallel.loss_parallel")
        c.set("parallel.loss_parallel", loss is not False, "parallel.loss_parallel")
    change = "parallel.allow_degree_change"
    c.set("checkpoint.resharding", "allow" if c.value(change) else "refuse", change)
    key = "fsdp.reshard_after_forward"
    reshard = {"always": True, "never": False}.get(str(c.value(key)), c.value(key))
    if isinstance(reshard, bool):
        c.set("parallel.reshard", reshard, key)
    elif reshard not in (None, "default"):
        c.report(
            "needs a decision",
            key,
            "resharding over some of the ranks: set parallel.reshard to their number",
        )
    if c.value("fsdp.offload_policy") is not None:
        c.set("parallel.sharding.offload", True, "fsdp.offload_policy")
    if names_of := c.names("fsdp.ignored_params"):
        c.set("parallel.sharding.replicated", names_of, "fsdp.ignored_params")


def _batch(c: Conversion) -> None:
    """Rows of a batch on each rank, divided into micro-batches if there is a pipeline."""
    size, key = c.number("dataloader.batch_size"), "dataloader.batch_size"
    if size is None:
        size, key = c.number("batch_size"), "batch_size"
    passes = c.number("accum_steps")
    if c.value("ft.enabled"):
        # In DanLing replica groups divide the micro-batches of a step; in Setpoint each has its
        # own.
        passes *= c.number("ft.group_size")
        c.set("batch.accumulation", passes, "accum_steps", "ft.group_size")
    is_mesh = c.value("stack") == "parallel"
    experts = 1
    if is_mesh:
        experts = c.number("parallel.axes.expert") * c.number("parallel.axes.expert_tensor")
    if size is not None and is_mesh and c.number("parallel.axes.pipeline") > 1:
        micro, count = "parallel.pipeline_microbatch_size", "parallel.pipeline_n_microbatches"
        given = c.number(count)
        rows = size // given if given else c.number(micro)
        if not rows or size % rows:
            c.wrong(key, f"a multiple of {micro}, but {size}")
            return
        c.set("batch.micro_size", rows, count if given else micro, key)
        c.set("batch.accumulation", size // rows * passes, key, "accum_steps")
    elif size is not None and experts > 1 and size % experts:
        text = f"{experts} expert ranks train the same {size} rows there: set batch.global_size"
        c.report("needs a decision", key, text)
    elif size is not None:
        c.set("batch.micro_size", size // max(1, experts), key)
    else:
        c.report(
            "needs a decision", key, "the data loader defines the batch size: set batch.micro_size"
        )
    for name, field in (("num_workers", "workers"), ("prefetch_factor", "prefetch"),
                        ("pin_memory", "pin_memory")):  # fmt: skip
        c.copy_given({f"data.loader.{field}": f"dataloader.{name}"})
        for split in ("val", "validate", "test", "eval", "evaluate"):
            if name in (options := c.value(f"dataloader.{split}") or {}):
                key = f"dataloader.{split}"
                c.set(f"data.loader.evaluation.{field}", options[name], key)
    if seconds := c.number("dataloader.timeout"):
        c.set("data.loader.timeout", seconds, "dataloader.timeout")
    shuffle = c.value("dataloader.shuffle")
    c.set("data.shuffle", shuffle is None or bool(shuffle), "dataloader.shuffle")


def _optimizer(c: Conversion) -> None:
    """Optimizers by name, with torch's defaults."""
    name, rate = c.value("optim.type"), c.number("optim.lr")
    key = "optim.lr"
    if rate is None:
        rate, key = c.number("learning_rate"), "learning_rate"
    c.copy_given({"optimizer.clip_value": "max_grad_value"})
    if name is None:
        c.report("needs a decision", "optim.type", IN_PYTHON.format("the optimizer", "optimizer"))
        if rate is not None:
            c.set("optimizer.lr", rate, key)
        return
    word = str(name).lower()
    kind = {"adamw": "adamw", "torch_adamw": "adamw", "ds_adamw": "adamw", "sgd": "sgd",
            "lion": "lion"}.get(word)  # fmt: skip
    if kind is None and word not in CLASSES:
        c.wrong("optim.type", "one of adamw, sgd, lion, " + ", ".join(CLASSES))
        return
    c.set("optimizer.type", kind or "import", "optim.type")
    if kind is None:
        c.set("optimizer.target", f"torch.optim.{CLASSES[word]}", "optim.type")
    c.set("optimizer.lr", 1e-3 if rate is None else rate, key)
    c.set("optimizer.no_decay", [])
    options: dict[str, object] = {
        "adamw": {"weight_decay": 0.01, "betas": [0.9, 0.999], "eps": 1e-8},
        "sgd": {"weight_decay": 0.0, "momentum": 0.0},
        "lion": {"weight_decay": 0.0},
    }.get(kind or "", {})
    for option in ("weight_decay", "betas", "eps", "momentum", "dampening", "nesterov", "amsgrad"):
        value = c.value(f"optim.{option}")
        value = options.get(option) if value is None else value
        if value is not None:
            c.set(f"optimizer.{option}", value, f"optim.{option}")
    for switch in ("fused", "foreach"):
        if c.value(f"optim.{switch}") and kind in ("adamw", "sgd"):
            c.set("optimizer.implementation", switch, f"optim.{switch}")
    groups: list[dict[str, object]] = []
    for entry in c.sections("optim.param_groups"):
        known = ("pattern", "lr_multiplier", "weight_decay_multiplier", "beta1", "beta2")
        rest = {option: value for option, value in entry.items() if option not in known}
        if "beta1" in entry or "beta2" in entry:
            base = cast(
                "list[float]", c.value("optim.betas") or options.get("betas") or [0.9, 0.999]
            )
            rest["betas"] = [entry.get("beta1", base[0]), entry.get("beta2", base[1])]
        if "pattern" not in entry:
            c.wrong("optim.param_groups", "a list of mappings with a pattern each")
            return
        groups.append({**{field: entry.get(field) for field in known[:3]}, "options": rest or None})
    if groups:
        c.set_items("optimizer.groups", groups, "optim.param_groups")


def _rate(c: Conversion, total: int, peak: float) -> Callable[[int], float] | None:
    """DanLing's own schedule: the factor on the peak at step s, from 1; None after a problem."""
    prefix = "scheduler"
    kind, least = str(c.value(f"{prefix}.type")).lower(), c.number(f"{prefix}.min_lr")
    warmup, cooldown = c.number(f"{prefix}.warmup_steps"), c.number(f"{prefix}.cooldown_steps")
    ratio, final = c.number(f"{prefix}.final_lr_ratio"), c.number(f"{prefix}.final_lr")
    warmup = total // 20 if warmup is None else warmup
    cooldown = total // 5 if cooldown is None else cooldown
    if ratio is not None and final is not None:
        c.wrong(f"{prefix}.final_lr", "valid together with final_lr_ratio")
        return None
    if warmup + cooldown > total or min(warmup, cooldown) < 0:
        c.wrong(f"{prefix}.warmup_steps", f"at most {total} steps together with cooldown_steps")
        return None
    scaling = c.value(f"{prefix}.scaling") or ("percentile" if final is None else "numerical")
    if scaling not in ("percentile", "numerical"):
        c.wrong(f"{prefix}.scaling", "percentile or numerical")
        return None
    end = (1e-3 if ratio is None else ratio) if final is None else final / peak
    low = 1e-9 / peak if least is None else least / peak
    low = min(low, end) if final is not None else low
    if scaling == "percentile" and end <= 0:
        c.wrong(f"{prefix}.final_lr_ratio", "above 0, as it is approached by ratios")
        return None

    def factor(step: int) -> float:
        progress = min(step / total, 1.0)
        done = {"linear": progress, "constant": 0.0}.get(
            kind, 1 - (1 + math.cos(math.pi * progress)) / 2
        )
        rate = end**done if scaling == "percentile" else (1 - done) * (1 - end) + end
        if warmup > step:
            rate = step / warmup * (rate - low) + low
        elif cooldown > 0 and step > total - cooldown:
            rate = (1 - (step - (total - cooldown)) / cooldown) * (rate - low) + low
        return max(low, rate)

    return factor


def _torch_rate(c: Conversion, total: int, peak: float) -> Callable[[int], float] | None:
    """A torch schedule: the factor on the peak at step s, from 1; None if it has none."""
    kind, gamma = str(c.value("scheduler.type")).lower(), c.number("scheduler.gamma")
    drop = 0.1 if gamma is None else gamma
    low = (c.number("scheduler.eta_min") or 0.0) / peak
    period, grows = c.number("scheduler.T_0"), c.number("scheduler.T_mult") or 1
    milestones = cast("list[int]", c.value("scheduler.milestones") or [])
    span = c.number("scheduler.T_max") or total

    def restarted(step: int) -> float:
        start, length = 0, period
        while step - start >= length:
            start, length = start + length, length * grows
        return low + (1 - low) * (1 + math.cos(math.pi * (step - start) / length)) / 2

    factors: dict[str, Callable[[int], float]] = {
        "multistep": lambda step: drop ** sum(step >= milestone for milestone in milestones),
        "exponential": lambda step: drop**step,
        "cosine_annealing": lambda step: (
            low + (1 - low) * (1 + math.cos(math.pi * step / span)) / 2
        ),
    }
    if size := c.number("scheduler.step_size"):
        factors["step"] = lambda step: drop ** (step // size)
    if period:
        factors["cosine_warm_restarts"] = restarted
    # Steps of torch's schedules are counted from 0.
    return (lambda step: factors[kind](step - 1)) if kind in factors else None


def _schedule(c: Conversion, total: int | None) -> None:
    """The schedule, as phases that approximate its curve at every step."""
    kind = c.value("scheduler.type")
    if kind is None:
        c.set("schedule.type", "none", "scheduler.type")
        return
    kind, peak = str(kind).lower(), c.data.get("optimizer", {}).get("lr", 1e-3)
    interval = str(c.value("scheduler.interval") or "").lower()
    if kind in ("reduce_on_plateau", "plateau"):
        _plateau(c, peak)
        return
    if interval.startswith(("epoch", "eval", "valid")):
        text = "set schedule.by and the lengths; in DanLing, a step of this schedule is an epoch"
        c.report("needs a decision", "scheduler.interval", text)
    total = c.number("scheduler.total_steps") or total
    if not isinstance(total, int) or total < 1 or not isinstance(peak, int | float) or peak <= 0:
        for key in [key for key in c.values if key.startswith("scheduler.")]:
            c.value(key)
        text = "set scheduler.total_steps or [schedule]; in DanLing, the data determines the length"
        c.report("needs a decision", "scheduler.type", text)
        return
    is_own = kind in ("linear", "cosine", "constant")
    factor = (_rate if is_own else _torch_rate)(c, total, peak)
    if factor is None:
        if not is_own:
            c.report(
                "needs a decision", "scheduler.type", f"{kind} has no equivalent: set [schedule]"
            )
        return
    factors = [factor(step) for step in range(1, total + 1)]
    c.set("schedule.type", "piecewise", "scheduler.type")
    c.set("schedule.start", factors[0], "scheduler.type")
    phases = phases_of(factors)
    c.set_items("schedule.phases", phases, "scheduler.type")
    names = ("total_steps", "warmup_steps", "cooldown_steps", "final_lr_ratio", "final_lr")
    for name in names:
        c.value(f"scheduler.{name}")


def _plateau(c: Conversion, peak: float) -> None:
    """ReduceLROnPlateau."""
    c.set("schedule.type", "plateau", "scheduler.type")
    factor, patience = c.number("scheduler.factor"), c.number("scheduler.patience")
    c.set("schedule.factor", 0.1 if factor is None else factor, "scheduler.factor")
    c.set("schedule.patience", 10 if patience is None else patience, "scheduler.patience")
    c.set("schedule.floor", (c.number("scheduler.min_lr") or 0.0) / peak, "scheduler.min_lr")
    for key in ("scheduler.monitor", "scheduler.interval"):
        if c.value(key) is not None:
            c.report(
                "needs a decision", key, "the data sets are named in Python: set schedule.monitor"
            )


def _precision(c: Conversion) -> None:
    """Dtypes, recomputation and compilation."""
    policy: Any = c.value("fsdp.mp_policy")
    words = {"precision.compute": (c.value("precision"), "precision")}
    if isinstance(policy, dict) and c.value("stack") == "parallel":
        names = cast("dict[str, object]", policy)
        for option, field in (("param_dtype", "compute"), ("reduce_dtype", "reduce")):
            if names.get(option) is not None:
                words[f"precision.{field}"] = (names[option], "fsdp.mp_policy")
    if c.value("precision") is not None and words["precision.compute"][1] != "precision":
        word = words["precision.compute"][0]
        c.report(
            "differs",
            "precision",
            f"the FSDP policy's param_dtype, {word}, determines the dtype of matrix products",
        )
    for path, (word, key) in words.items():
        dtype = DTYPES.get(str(word).lower().removeprefix("torch."))
        if word is not None and dtype is None:
            c.wrong(key, "one of " + ", ".join(DTYPES))
        elif dtype is not None:
            c.set(path, dtype, key)
    if c.value("fp8.enabled"):
        text = "recipes of Transformer Engine are not supported: set precision.float8"
        c.report("needs a decision", "fp8.enabled", text)
    if c.value("activation_checkpoint.enabled"):
        key, path = "activation_checkpoint", "memory.activation_checkpointing"
        c.set(f"{path}.type", "full", f"{key}.enabled")
        if c.value(f"{key}.module_classes"):
            text = "whole layers are recomputed; classes of modules cannot be chosen"
            c.report("differs", f"{key}.module_classes", text)
        if c.value(f"{key}.checkpoint_impl") == "reentrant":
            c.set(f"{path}.reentrant", True, f"{key}.checkpoint_impl")
    stack = str(c.value("stack"))
    if not c.value("compile.enable") and not stack.startswith("graph"):
        return
    c.set("compile", {}, "compile.enable")
    if stack.startswith("graph"):
        c.set("compile.scope", "graph", "stack")
        if folder := c.value("compile.precompile_artifact_dir"):
            c.set("compile.artifacts", folder, "compile.precompile_artifact_dir")
    names = ("backend", "fullgraph", "dynamic", "mode", "options")
    c.copy_given({f"compile.{name}": f"compile.{name}" for name in names})
    if c.value("compile.optimize_ddp") in (False, "no_optimization"):
        c.set("compile.optimize_ddp", False, "compile.optimize_ddp")


def _checkpoints(c: Conversion, total: int | None) -> None:
    """Run directory, checkpoint interval, and the checkpoint to load."""
    root, lineage = c.value("workspace_root"), c.value("lineage")
    folder = c.value("workspace.dir") or f"{root}/{lineage}"
    c.set("workspace", folder, "workspace_root", "lineage", "workspace.dir")
    interval, key = c.number("checkpoint.interval"), "checkpoint.interval"
    if total is None and c.number("epochs") is not None:
        c.set("checkpoint.every", f"{1 if interval is None else interval} epochs", key)
    else:
        default = 8192 if total is None else math.ceil(total / 20)
        c.set("checkpoint.every", f"{interval or default} steps", key)
    keep = "checkpoint.keep_latest_k"
    c.set("checkpoint.keep", c.number(keep) or None, keep)
    if c.value("checkpoint.load_only") or not c.value("checkpoint.enabled"):
        c.set("checkpoint.save", False, "checkpoint.load_only", "checkpoint.enabled")
    mode = c.value("checkpoint.async_mode")
    if mode is None:
        mode = "async" if c.value("checkpoint.async_enabled") else "disabled"
    if isinstance(mode, str) and mode in SAVE_MODES:
        keys = ("checkpoint.async_mode", "checkpoint.async_enabled")
        c.set("checkpoint.mode", SAVE_MODES[mode], *keys)
    else:
        c.wrong("checkpoint.async_mode", "one of " + ", ".join(SAVE_MODES))
    if mode != "disabled" and (seconds := c.number("checkpoint.wait_timeout")) is not None:
        c.set("checkpoint.wait_timeout", seconds, "checkpoint.wait_timeout")
    if c.value("checkpoint.last_save_model_only"):
        c.set("checkpoint.last", "weights", "checkpoint.last_save_model_only")
        if dtype := c.value("checkpoint.export_dtype"):
            word = DTYPES.get(str(dtype).lower(), dtype)
            c.set("checkpoint.last_dtype", word, "checkpoint.export_dtype")
    # `resume` is a path in 0.3, and in 0.4 a switch for the path in `checkpoint`.
    resume = c.value("resume")
    auto = bool(c.value("auto_resume")) or resume is True
    c.set("checkpoint.resume", "auto" if auto else "never", "auto_resume", "resume")
    source, key = c.value("checkpoint"), "checkpoint"
    if not isinstance(source, str):
        source, key = resume, "resume"
    if isinstance(source, str):
        c.set("checkpoint.load", source, key)
        excluded = c.names("checkpoint.exclude_from_loading")
        if excluded:
            parts = [STATE.get(name, name) for name in excluded]
            c.set("checkpoint.exclude", parts, "checkpoint.exclude_from_loading")
    if pretrained := c.value("pretrained"):
        c.set("model.pretrained", pretrained, "pretrained")


def _records(c: Conversion, total: int | None) -> None:
    """Logging, trackers, profiling and garbage collection."""
    default = 1024 if total is None else math.ceil(total / 100)
    c.set("tracking.every", f"{c.number('log_interval') or default} steps", "log_interval")
    if isinstance(tags := c.value("wandb.tags"), str):
        c.values["wandb.tags"] = [tags]
    c.track(
        ("tensorboard", "tensorboard", {
            "directory": "tensorboard.log_dir", "flush_every": "tensorboard.flush_secs"}),
        ("wandb", "wandb.enabled", {
            "project": "wandb.project lineage", "group": "wandb.group experiment",
            "directory": "wandb.dir", "run_id": "wandb.id",
            **{name: f"wandb.{name}" for name in ("entity", "name", "job_type", "mode", "tags")}}),
        ("mlflow", "mlflow.enabled", {
            "uri": "mlflow.tracking_uri", "experiment": "mlflow.experiment_name",
            "run_id": "mlflow.run_id", "name": "mlflow.run_name", "tags": "mlflow.tags"}),
    )  # fmt: skip
    metrics = ("loss", "perplexity", "accuracy")
    if c.value("score_name") not in metrics:
        c.wrong("score_name", "one of " + ", ".join(metrics))
    elif c.value("score_split") or c.value("score_name") != "loss":
        c.report(
            "needs a decision",
            "score_name",
            "the data sets are named in Python: set evaluation.best",
        )
    if c.value("score.patience") != math.inf and (patience := c.number("score.patience")):
        c.set("evaluation.early_stopping.patience", patience, "score.patience")
    if (period := c.number("gc.interval")) is None:
        c.set("resilience.gc", None, "gc.interval")
    else:
        c.set("resilience.gc.every", f"{period} steps", "gc.interval")
        c.set("resilience.gc.generation", c.number("gc.generation"), "gc.generation")
        automatic = not c.value("gc.disable_automatic")
        c.set("resilience.gc.automatic", automatic, "gc.disable_automatic")
    if c.value("skip_nonfinite_loss") or c.value("skip_nonfinite_grad"):
        keys = ("skip_nonfinite_grad", "skip_nonfinite_loss")
        c.set("resilience.non_finite.type", "skip", *keys)
    key = "profiling.operator_table_rows"
    if c.value("profiling.enabled") and c.value(key) is not None:
        c.set("profiling.top", c.number(key), key)


DIALECT = Dialect(
    name="DanLing",
    release="0.4",
    keys=KEYS,
    signature=("accum_steps", "workspace_root", "parallel.axes.shard", "checkpoint.keep_latest_k",
               "stack", "score_name", "lineage"),
    complete=_complete,
    prefixes=RENAMED,
    own_keys="user",
    switches={f"{name}.": f"{name}.enabled" for name in
              ("profiling", "heartbeat", "wandb", "mlflow", "ft", "activation_checkpoint", "fsdp")}
    | {"compile.": "compile.enable"},
)  # fmt: skip
