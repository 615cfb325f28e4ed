"""Arguments of Megatron-LM: shell scripts, plain lists, and YAML of its tests or for --yaml-cfg.

Scripts are not run: variables, arrays and sums assigned in the same file are resolved, an `if` that
compares them is followed, and the arguments are those after the name of a Python file. Values that
a script takes from its own arguments or the environment need a decision.

Formulas of Megatron-LM (core 0.15): data ranks = ranks / (tensor * pipeline * context); a step has
global-batch-size sequences, or micro-batch-size per data rank. The schedule counts samples; the
rate of step s, from 0, is s / W of the peak in a warm-up, then min + (max - min) times a curve of
(s - W) / (D - W). A ramp of the batch over R samples has made floor(n samples / R) of its n
increments. Decay applies to tensors of two dimensions or more. Biases, learned positions,
LayerNorm, GELU, tied embeddings and dropout of 0.1 are on unless turned off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from setpoint.config import FileDocument
from setpoint.config.files.file_document import MIB, names_file
from setpoint.config.files.read import read_file
from setpoint.interop.dialect import Conversion, Dialect, phases_of
from setpoint.interop.megatron_arguments import CORE, ENCODERS, FAMILIES, KEYS, LISTS, argument_of
from setpoint.interop.megatron_model import convert_model
from setpoint.interop.shell_script import number_of, read_arguments
from setpoint.train.batch_ramp import BatchStage, stages_of

PLACES = {"save": "runs", "tensorboard-dir": "tensorboard", "tokenizer-model": "./tokenizer"}
"""Substitutes for paths that are passed to the script at start."""
FIELDS = {"save": "workspace", "tensorboard-dir": "tracking.trackers", "load": "model.pretrained",
          "tokenizer-model": "tokenizer.path", "data-path": "data.sources",
          "train-data-path": "data.sources", "valid-data-path": "data.validation"}  # fmt: skip
"""Fields that answer for arguments that are passed to the script at start."""
UNEVEN_STAGES = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
OTHER_PROGRAM = re.compile(
    r"bert|t5|mamba|hybrid|vlm|mimo|multimodal|llava|retro|_ict|vision|biencoder|server|generat"
    r"|inference|finetune|lora|convert|preprocess|export|quantize|train_rl|^main"
)
"""Names of programs that train another kind of model, or do not train."""


def _complete(c: Conversion) -> None:
    """Convert the keys that depend on each other."""
    convert_model(c)
    total = _loop(c)
    _ranks(c)
    _precision(c)
    _optimizer(c)
    _schedule(c, total)
    _memory(c)
    _data(c)
    _records(c)


def _prepare(c: Conversion) -> None:
    """Normalize names, and drop values that are passed to the script at the start."""
    if OTHER_PROGRAM.search(str(c.value("program")).rpartition("/")[2]):
        c.refuse("program", "is not a program that pretrains a decoder, such as pretrain_gpt.py")
        return
    for name, value in [*c.values.items()]:
        plain, value = argument_of(name, value)
        if value is None:
            del c.values[name]  # not given
        elif plain != name:
            c.paths[plain] = c.paths.pop(name)
            del c.values[name]
            c.values.setdefault(plain, value)  # an override has the plain name
    if str(c.value("vocab-file")).endswith(".txt"):
        text = "is not the vocab.json of a decoder: a .txt belongs to BERT or T5"
        c.refuse("vocab-file", text)
        return
    if c.given("activation-func"):
        _core_fields(c)
    for name, value in [*c.values.items()]:
        key = KEYS.get(name) or c.dialect.family_of(name)
        words = cast("list[object]", value) if isinstance(value, list) else [value]
        is_started = any(isinstance(word, str) and "$" in word for word in words)
        if is_started and name != "program" and not (key and (key.idle or key.refused)):
            shown = " ".join(map(str, words))
            answer = f"set {FIELDS[name]}" if name in FIELDS else f"add -- --{name} VALUE"
            text = f"{shown} is set when the script starts: {answer}"
            c.report("needs a decision", name, text)
            if name in PLACES:
                c.values[name] = PLACES[name]
            elif not name.endswith("data-path"):
                del c.values[name]
            else:
                c.values[name] = [re.sub(r"\$\{(\w+)\}", r"$\1", str(word)) for word in words]
        elif key is None:
            continue
        elif (key.refused or key.idle) and value is False:
            del c.values[name]
        elif name in LISTS.split():
            # The tests write lists as "[a b]".
            c.values[name] = value.strip("[]").split() if isinstance(value, str) else words
        elif name == "num-experts" and c.value("deepspeed"):
            if value == 1:
                del c.values[name]
            else:
                c.wrong(name, "those of Megatron-LM, not DeepSpeed's experts")
        elif isinstance(key.default, str) and not isinstance(value, str) and value is not None:
            c.values[name] = str(value)


def _core_fields(c: Conversion) -> None:
    """Replace fields of the core's classes in a file for --yaml-cfg, which gives every argument."""
    words = {"swiglu": "swiglu", "squaredrelu": "squared-relu", "gelu": "no-bias-gelu-fusion"}
    for name in words.values():
        c.values.pop(name, None)
    place = c.paths.get("activation-func", ())  # none for an override
    if activation := c.choice("activation-func", *words):
        c.values[words[activation]], c.paths[words[activation]] = True, place
    c.values["group-query-attention"] = c.given("num-query-groups")
    c.paths["group-query-attention"] = place
    for name in [*c.values]:
        key = KEYS.get(name) or c.dialect.family_of(name)
        if (key is not None and key.refused == ENCODERS) or name == "adlr-autoresume-interval":
            del c.values[name]  # a pretraining of a decoder does not read it


def _loop(c: Conversion) -> int | None:
    """The batch, and the length of the run, from iterations or samples.

    Returns:
        the length in the unit of the schedule; see `_unit`.
    """
    micro, size = c.number("micro-batch-size"), c.number("global-batch-size")
    if not micro:
        c.wrong("micro-batch-size", "given")
    else:
        c.set("batch.micro_size", micro, "micro-batch-size")
    if size:
        c.set("batch.global_size", size, "global-batch-size")
    else:
        c.set("batch.accumulation", 1, "global-batch-size")
    if length := c.number("seq-length"):
        c.set("batch.sequence_length", length, "seq-length")
    else:
        c.wrong("seq-length", "given")
    stages = _ramp(c, size)
    lengths = c.number("train-iters"), _length(c, "train-tokens"), _length(c, "train-samples")
    total = steps = min(filter(None, lengths), default=None)
    end: list[str] = [f"{total} {_unit(c)}"] if total else []
    if total and stages and _unit(c) == "tokens":
        samples, ramp = total // c.number("seq-length"), number_of(c.value("rampup-batch-size")[2])
        steps = _steps_of_samples(samples, ramp, stages)
        end = [f"{steps} steps"]
    if (stop := c.number("exit-interval")) and (not steps or stop < steps):
        end = [f"{stop} steps"]
        c.report(
            "differs",
            "exit-interval",
            "the run ends there; in Megatron-LM, another session continues it",
        )
    if minutes := c.number("exit-duration-in-mins"):
        end.append(f"{minutes} min")
    if end:
        keys = ("exit-interval", "train-iters", "train-tokens", "train-samples")
        c.set("duration", end if len(end) > 1 else end[0], *keys)
    else:
        c.report("needs a decision", "train-iters", "set duration")
    c.value("calculate-per-token-loss")
    return total


def _steps_of_samples(samples: int, ramp: int, stages: Sequence[BatchStage]) -> int:
    """Steps of a number of samples, as Megatron-LM counts them.

    Up to the end of the ramp, a step follows while no more than the samples were read; after it,
    an incomplete batch is left out.

    Arguments:
        ramp: length of the ramp in samples.
    """
    stage = [stage for stage in stages if stage.sequences <= samples][-1]
    steps = (samples - stage.sequences) // stage.size
    if stage is not stages[-1]:
        steps += 1
    elif stage.sequences == ramp:
        steps = max(steps, 1)
    return stage.step + steps


def _ramp(c: Conversion, size: int | None) -> Sequence[BatchStage]:
    """The ramp of the batch size; its stages, in samples, or none."""
    key = "rampup-batch-size"
    words = [number_of(word) for word in c.value(key) or ()]
    if not words:
        return ()
    if len(words) != 3 or not all(isinstance(word, int) and word > 0 for word in words):
        c.wrong(key, "a start, an increment and a number of samples, above 0")
        return ()
    start, increment, samples = words
    if not size or not c.number("seq-length"):
        c.report(
            "needs a decision",
            key,
            "the ramp ends at the global batch size: set --global-batch-size",
        )
        return ()
    if start == size:
        return ()
    tokens = samples * c.number("seq-length")
    c.set("batch.ramp", {"start": start, "increment": increment, "over": f"{tokens} tokens"}, key)
    if c.number("train-iters"):
        c.report("differs", key, "Megatron-LM accepts it only with train-samples")
    return stages_of(start, increment, samples, 1, size)


def _unit(c: Conversion) -> str:
    """The unit of lengths in samples: tokens where samples are not proportional to steps."""
    grows = "ramp" in c.data["batch"] and not c.number("train-iters")
    return "tokens" if grows else "steps"


def _length(c: Conversion, key: str) -> int | None:
    """Samples or tokens in a key, converted to the unit of the schedule."""
    samples, size = c.number(key), c.number("global-batch-size")
    if samples and key.endswith("tokens"):
        samples //= c.number("seq-length") or 1
    if samples and _unit(c) == "tokens":
        return samples * c.number("seq-length")
    if samples and not size:
        c.report(
            "needs a decision", key, "converting samples to steps needs --global-batch-size: set it"
        )
    return samples // size if samples and size else None


def _ranks(c: Conversion) -> None:
    """The mesh; with the distributed optimizer, weights stay gathered throughout a step."""
    c.set("parallel.device", "cuda")
    seconds = 60 * c.number("distributed-timeout-minutes")
    c.set("parallel.timeout", float(seconds), "distributed-timeout-minutes")
    if timeout := c.number("distributed-timeout-seconds-after-init"):
        c.set("parallel.step_timeout", float(timeout), "distributed-timeout-seconds-after-init")
    strategy = c.value("data-parallel-sharding-strategy") if c.value("use-megatron-fsdp") else ""
    zero = c.number("zero-stage")
    is_whole = strategy == "optim_grads_params" or c.value("use-torch-fsdp2") or zero == 3
    tensor = c.number("tensor-model-parallel-size")
    stages = c.number("pipeline-model-parallel-size")
    keys = ("use-distributed-optimizer", "use-megatron-fsdp", "use-torch-fsdp2", "zero-stage")
    if is_whole or zero or strategy in ("optim", "optim_grads") or c.value(keys[0]) or (
        c.number("expert-model-parallel-size") > 1
    ):  # fmt: skip
        c.set("parallel.shard", -1, *(key for key in keys if c.given(key)))
        if not is_whole or c.value("torch-fsdp2-no-reshard-after-forward"):
            c.set("parallel.reshard", False, *keys)
        if is_whole:
            c.value("ddp-bucket-size")  # of replicas
        if (copies := c.number("num-distributed-optimizer-instances")) > 1:
            c.set("parallel.replicate", copies, "num-distributed-optimizer-instances")
    elif tensor == stages == c.number("context-parallel-size") == 1 and (
        size := c.number("ddp-bucket-size")
    ):  # with other axes, the gradients of each unit are summed separately
        c.set("parallel.bucket_size", 4 * size / MIB, "ddp-bucket-size")
    c.value("sequence-parallel")
    if tensor > 1:
        divides = c.value("sequence-parallel")
        if stages > 1 and divides:
            c.report("differs", "sequence-parallel", "off, as pipeline stages send whole sequences")
            divides = False
        elif not divides and stages == 1 and c.number("attention-dropout"):
            # Ranks that divide heads draw different numbers; in Setpoint this requires sequence
            # parallelism.
            c.report("differs", "sequence-parallel", "on, so that dropout differs between ranks")
            divides = True
        if not divides and c.number("attention-dropout"):
            text = (
                "no dropout with both tensor and pipeline parallelism, as ranks would drop the "
                "same elements"
            )
            c.report("differs", "attention-dropout", text)
            c.set("model.attention_dropout", 0.0, "attention-dropout")
        c.set("parallel.sequence_parallel", divides, "sequence-parallel")
        if divides and c.value("tp-comm-overlap"):
            c.set("parallel.async_tensor_parallel", True, "tp-comm-overlap")
            c.set("compile", {}, "tp-comm-overlap")
    if (ranks := c.number("context-parallel-size")) > 1:
        kinds = c.value("cp-comm-type") or ["p2p"]
        sizes = c.value("hierarchical-context-parallel-sizes")
        if kinds == ["a2a"]:
            c.set("parallel.ulysses", ranks, "context-parallel-size", "cp-comm-type")
        elif (
            kinds == ["a2a+p2p"] and isinstance(sizes, list) and len(cast("list[int]", sizes)) == 2
        ):
            inner, outer = cast("list[int]", sizes)
            c.set("parallel.ulysses", inner, "hierarchical-context-parallel-sizes")
            c.set("parallel.ring", outer, "hierarchical-context-parallel-sizes")
        else:
            c.set("parallel.ring", ranks, "context-parallel-size", "cp-comm-type")
            if kinds not in (["p2p"], ["allgather"]):
                c.report(
                    "differs",
                    "cp-comm-type",
                    "all layers use one kind of communication: ring attention",
                )
    if c.number("num-experts"):
        expert_tensor = c.number("expert-tensor-parallel-size")
        degree = tensor if expert_tensor is None else expert_tensor
        if degree > 1:
            c.set("parallel.expert_tensor", degree, "expert-tensor-parallel-size")
    if stages > 1:
        layers = c.number("num-layers") or 0
        parts = c.number("num-virtual-stages-per-pipeline-rank")
        if depth := c.number("num-layers-per-virtual-pipeline-stage"):
            parts = layers // stages // depth
            is_even = not any(map(c.given, UNEVEN_STAGES))
            if is_even and layers // stages % depth:
                expected = f"a divisor of the {layers // stages} layers of a stage"
                c.wrong("num-layers-per-virtual-pipeline-stage", expected)
        name = "interleaved_1f1b" if parts and parts > 1 else "1f1b"
        key = "num-layers-per-virtual-pipeline-stage"
        c.set("parallel.pipelining.schedule", name, key)
        if parts and parts > 1:
            c.set("parallel.pipelining.stages_per_rank", parts, key)
        _stages(c, stages, layers)


def _stages(c: Conversion, stages: int, layers: int) -> None:
    """Layers of each stage, from a layout such as `Et*3|(tt|)*29m|L`, or from first and last."""
    keys = [*UNEVEN_STAGES]
    layout, first, last = c.value("pipeline-model-parallel-layout"), *map(c.number, keys)
    if layout is not None:
        keys = ["pipeline-model-parallel-layout"]
        text = re.sub(r"[\\\s,]", "", str(layout))
        for group in (r"\(([^()*]*)\)\*(\d{1,4})", r"([A-Za-z|])\*(\d{1,4})"):
            text = re.sub(group, lambda match: match[1] * int(match[2]), text)
        if not re.fullmatch(r"E[tm|]*L", text) or text.count("t") != layers:
            c.wrong(keys[0], f"E, {layers} times t, and L, in stages divided by |")
            return
        counts = [stage.count("t") for stage in text.split("|")]
        if len(counts) % stages:
            c.wrong(keys[0], f"a multiple of {stages} stages, but {len(counts)}")
            return
        if len(counts) > stages:
            c.set("parallel.pipelining.schedule", "interleaved_1f1b", *keys)
            c.set("parallel.pipelining.stages_per_rank", len(counts) // stages, *keys)
    elif first or last:
        middle = stages - bool(first) - bool(last)
        each, rest = divmod(layers - (first or 0) - (last or 0), max(1, middle))
        if rest or each < 0 or "stages_per_rank" in c.data["parallel"].get("pipelining", {}):
            text = "set parallel.pipelining.split to the layers of each stage"
            c.report("needs a decision", next(filter(c.given, keys)), text)
            return
        counts = [first] * bool(first) + [each] * middle + [last] * bool(last)
    else:
        return
    split = [
        [f"layers.{sum(counts[:i]) + n}" for n in range(counts[i])] for i in range(len(counts))
    ]
    split[0].insert(0, "embedding")
    split[-1].append("output")
    c.set("parallel.pipelining.split", split, *keys)


def _precision(c: Conversion) -> None:
    """Weights in bf16 with fp32 copies that the optimizer updates, and float8."""
    if c.value("bf16"):
        for field, dtype in (("params", "bf16"), ("compute", "bf16"), ("master", "fp32")):
            c.set(f"precision.{field}", dtype, "bf16")
        low = c.value("grad-reduce-in-bf16") or c.value("main-grads-dtype") == "bf16"
        c.set("precision.reduce", "bf16" if low else "fp32", "grad-reduce-in-bf16")
        c.value("accumulate-allreduce-grads-in-fp32")
    elif c.value("fp16"):
        c.set("precision.compute", "fp16", "fp16")
        c.set("precision.loss_scale.initial", c.number("initial-loss-scale"), "initial-loss-scale")
        window = int(c.number("loss-scale-window"))
        c.set("precision.loss_scale.growth_interval", window, "loss-scale-window")
        here = "weights stay in fp32, and the loss scale is reduced at the first overflow"
        c.differs("fp16", here, "at the second")
    if c.value("use-precision-aware-optimizer"):
        states = {c.value("exp-avg-dtype"), c.value("exp-avg-sq-dtype")}
        if states == {"bf16"}:
            c.set("precision.optimizer_state", "bf16", "exp-avg-dtype", "exp-avg-sq-dtype")
        elif states != {"fp32"}:
            c.report("refused", "exp-avg-dtype", "optimizer state is in fp32 or bf16")
    if c.value("fp8-format"):
        recipes = {"tensorwise": "tensorwise", "mxfp8": "mxfp8", "delayed": "tensorwise",
                   "blockwise": "rowwise"}  # fmt: skip
        if name := c.choice("fp8-recipe", *recipes):
            c.set("precision.float8.recipe", recipes[name], "fp8-recipe", "fp8-format")
            if name in ("delayed", "blockwise"):
                here = "scales are those of the current step, per tensor or row"
                c.differs("fp8-recipe", here, "they are those of earlier steps, or per block")
    if c.value("fp4-format"):
        c.set("precision.float8.recipe", "nvfp4", "fp4-format")
    if not c.value(kept := "first-last-layers-bf16"):
        return
    if not (c.value("fp8-format") or c.value("fp4-format")):
        c.report("without effect", kept, "in Megatron-LM, too: neither fp8 nor fp4 is on")
        return
    layers = min(c.number("num-layers") or 0, 10_000)
    start, end = (c.number(f"num-layers-at-{side}-in-bf16") for side in ("start", "end"))
    kept_layers = [*range(start), *range(max(start, layers - end), layers)]
    others = ["^output$"] * bool(c.value("untie-embeddings-and-output-weights"))
    if kept_layers:
        others.append(rf"^layers\.({'|'.join(map(str, kept_layers))})\.")
    c.set("precision.float8.skip", others, kept)


def _optimizer(c: Conversion) -> None:
    """AdamW, SGD or Muon; decay excludes biases and vectors."""
    names = ("adam", "sgd", "lion", "muon", "dist_muon")
    name, rate = c.choice("optimizer", *names), c.number("lr")
    if name is None:
        return
    if not rate:
        c.wrong("lr", "given")
        return
    kind = {"adam": "adamw", "sgd": "sgd", "lion": "lion"}.get(name, "muon")
    if kind == "adamw" and c.data.get("precision", {}).get("optimizer_state") == "bf16":
        kind = "anyprecision_adamw"
        c.set("optimizer.rounding", "nearest", "exp-avg-dtype")
    c.set("optimizer.type", kind, "optimizer")
    c.set("optimizer.lr", float(rate), "lr")
    clip = c.number("clip-grad")
    c.set("optimizer.clip_norm", float(clip) if clip else None, "clip-grad")
    kinds = ["bias", "norm", "vector"]
    if c.value("embedding-init-method-std") is not None:
        kinds.append("embedding")
        std = c.number("embedding-init-method-std")
        c.set("model.init_std_embedding", std, "embedding-init-method-std")
    if c.number("weight-decay"):
        c.set("optimizer.no_decay", kinds, "weight-decay")
    if kind != "sgd":
        betas = [f"{'lion' if kind == 'lion' else 'adam'}-beta{index}" for index in (1, 2)]
        c.set("optimizer.betas", [c.number(key) for key in betas], *betas)
    if kind == "muon":
        c.set("optimizer.adamw_lr", float(rate), "lr")
        mode, factor = c.value("muon-scale-mode"), c.number("muon-extra-scale-factor")
        if (mode, factor) == ("spectral", 0.2):
            c.set("optimizer.adjust_lr", "match_rms_adamw", "muon-scale-mode")
        elif (mode, factor) != ("shape_scaling", 1.0):
            there = "by the scale mode and muon-extra-scale-factor"
            c.differs("muon-scale-mode", "steps are scaled by sqrt(max(1, out / in))", there)
    if output_rate := c.number("decoupled-lr"):
        group = {"pattern": "^(embedding|output)", "lr_multiplier": output_rate / rate}
        c.set_items("optimizer.groups", [group], "decoupled-lr")


def _schedule(c: Conversion, total: int | None) -> None:
    """Warm-up and decay to an absolute floor, in steps or samples."""
    unit = _unit(c)
    for key in ("lr-decay-iters", "lr-warmup-iters", "lr-wsd-decay-iters"):
        if unit == "tokens" and c.number(key):
            c.wrong(key, "given in samples, like train-samples")
            return
    names = {"constant": "constant", "linear": "linear", "cosine": "cosine",
             "inverse-square-root": "inverse_sqrt", "WSD": "wsd"}  # fmt: skip
    name, peak = c.choice("lr-decay-style", *names), c.number("lr")
    end = c.number("lr-decay-iters") or _length(c, "lr-decay-tokens")
    end = end or _length(c, "lr-decay-samples") or total
    if name is None or not peak or not end:
        return
    fraction = c.number("lr-warmup-fraction")
    warmup = c.number("lr-warmup-iters") or _length(c, "lr-warmup-tokens")
    warmup = warmup or _length(c, "lr-warmup-samples") or 0
    if fraction is not None:  # above 0, the rate of the first step is 0
        warmup = max(1, round(fraction * end)) if fraction else 0
    keys = [
        key
        for key in (f"lr-warmup-{unit}" for unit in ("fraction", "iters", "tokens", "samples"))
        if c.given(key)
    ]
    floor = c.number("min-lr") / peak
    c.set("schedule.type", names[name], "lr-decay-style")
    if (
        name == "WSD"
        and c.choice("lr-wsd-decay-style", "exponential", "linear", "cosine", "minus_sqrt")
        == "exponential"
    ):
        if unit == "steps":
            _exponential(c, warmup, end, floor, min(total or end, 100_000))
            return
        c.differs("lr-wsd-decay-style", "the learning rate decays by 1 - sqrt(t)", "exponentially")
    c.warm_up(f"{warmup} {unit}", *keys)
    if warmup and (start := c.number("lr-warmup-init")):
        c.set("schedule.warmup_from", start / peak, "lr-warmup-init")
    if name == "constant":
        return
    c.set("schedule.floor", min(1.0, floor), "min-lr", "lr")
    names = (f"lr-decay-{unit}" for unit in ("iters", "tokens", "samples"))
    c.set("schedule.horizon", f"{end} {unit}", *names, "train-iters")
    if name == "inverse-square-root":
        del c.data["schedule"]["horizon"]
        c.set("schedule.timescale", f"{max(1, warmup)} {unit}", *keys)
        if floor:
            c.differs(
                "min-lr",
                "the learning rate decays towards the floor",
                "it decays towards 0 and is clamped to the floor",
            )
    if name == "WSD":
        part = c.number("lr-wsd-decay-iters") or _length(c, "lr-wsd-decay-samples")
        curve = {"linear": "linear", "cosine": "cosine"}.get(
            c.value("lr-wsd-decay-style"), "one_minus_sqrt"
        )
        if not part:
            c.wrong("lr-wsd-decay-iters", "given with the style WSD")
            return
        keys = ("lr-wsd-decay-iters", "lr-wsd-decay-samples")
        c.set("schedule.decay_length", f"{part} {unit}", *keys)
        c.set("schedule.decay", curve, "lr-wsd-decay-style")


def _exponential(c: Conversion, warmup: int, end: int, floor: float, total: int) -> None:
    """WSD with the curve 2 * 0.5^t - 1, in phases."""
    part = c.number("lr-wsd-decay-iters") or _length(c, "lr-wsd-decay-samples")
    if not part:
        c.wrong("lr-wsd-decay-iters", "given with the style WSD")
        return
    factors: list[float] = []
    for step in range(total):
        t = min(1.0, max(0.0, (step - end + part) / part))
        curve = floor + (1 - floor) * (2 * 0.5**t - 1)
        factors.append(step / warmup if step < warmup else curve)
    c.set("schedule.type", "piecewise", "lr-decay-style")
    c.set_items("schedule.phases", phases_of(factors), "lr-wsd-decay-style", "lr-wsd-decay-iters")


def _memory(c: Conversion) -> None:
    """Recomputation of whole layers, of attention, or of named parts."""
    path, key = "memory.activation_checkpointing", "recompute-granularity"
    kind = c.value(key) or ("selective" if c.value("recompute-activations") else None)
    if c.value("checkpoint-activations"):
        kind = "full"
    modules = [str(name) for name in c.value("recompute-modules") or ["core_attn"]]
    if c.value("moe-layer-recompute"):
        kind, modules = "selective", ["moe"]
    if kind == "full":
        c.set(f"{path}.type", "full", key, "checkpoint-activations")
        if c.value("recompute-method") == "block":
            text = "all layers are recomputed; in Megatron-LM, only the first of each stage"
            c.report("differs", "recompute-method", text)
        c.value("recompute-num-layers")
    elif kind == "selective" and {"mlp", "moe", "shared_experts", "moe_act"} & {*modules}:
        if others := {*modules} - {"core_attn", "mlp", "moe", "shared_experts"}:
            text = f"{', '.join(sorted(others))}: whole feed-forward networks are recomputed"
            c.report("differs", "recompute-modules", text)
        parts = ["attention"] * ("core_attn" in modules) + ["feed_forward"]
        c.set(f"{path}.type", "parts", "recompute-modules", key)
        c.set(f"{path}.parts", parts, "recompute-modules")
    elif kind == "selective":
        c.set(f"{path}.type", "operators", key, "recompute-activations")
        exchange = ["exchange"] * (c.number("expert-model-parallel-size") > 1)
        c.set(f"{path}.save", ["matmul", *exchange], "recompute-modules")
    elif kind is not None:
        c.wrong(key, "one of full, selective")
    offload = "fine-grained-activation-offloading"
    if not c.value(offload):
        offload = "cpu-offloading-num-layers"
    if c.value(offload) and c.number("pipeline-model-parallel-size") > 1:
        text = "activations of several micro-batches in a pipeline stage stay on the device"
        c.report("refused", offload, text)
        c.value("offload-modules")
    elif c.value(offload):
        c.set("memory.activation_offload", {}, offload)
        if c.value("offload-modules"):
            text = "activations of all modules are offloaded, by their size"
            c.report("differs", "offload-modules", text)
    if c.number("empty-unused-memory-level"):
        c.set("memory.empty_cache", "1 step", "empty-unused-memory-level")


def _blend(c: Conversion, key: str) -> list[dict[str, object]]:
    """Sources from one prefix, several prefixes, or weights with prefixes."""
    words = cast("list[object]", c.value(key) or [])
    weighted = len(words) > 1 and all(
        isinstance(w, int | float) for w in map(number_of, words[::2])
    )
    pairs = [(None, word) for word in words]
    if weighted:
        if len(words) % 2:
            c.wrong(key, "weights with a prefix each")
            return []
        pairs = [(number_of(words[index]), words[index + 1]) for index in range(0, len(words), 2)]
    sources: list[dict[str, object]] = []
    for weight, prefix in pairs:
        text = str(prefix)
        source: dict[str, object] = {
            "type": "tokens", "paths": [text if text.endswith(".bin") else f"{text}.bin"]
        }  # fmt: skip
        if weight is not None:
            source["weight"] = float(weight)
        sources.append(source)
    return sources


def _data(c: Conversion) -> None:
    """Token files in one stream, with a held-out split."""
    key = "train-data-path" if c.given("train-data-path") else "data-path"
    sources = _blend(c, key)
    shares = [
        number_of(part.strip(" '\"")) for part in str(c.value("split") or "969,30,1").split(",")
    ]
    if not all(isinstance(share, int | float) and share >= 0 for share in shares) or not sum(
        shares
    ):
        c.wrong("split", "proportions such as 969,30,1")
        shares = [1.0]
    if c.value("mock-data"):
        sources = [{"type": "random", "pattern": "uniform"}]
    if sources:
        c.set_sources("data.sources", sources, key, "mock-data")
    else:
        c.report("needs a decision", "data-path", "set data.sources")
    if validation := _blend(c, "valid-data-path"):
        c.set_sources("data.validation", validation, "valid-data-path")
    else:
        c.set("data.held_out", round(sum(shares[1:]) / sum(shares), 12), "split")
    masks = ("reset-attention-mask", "dataloader-inter-document-masking")
    isolate = any(map(c.value, masks))
    c.set("data.packing.isolate", isolate, *filter(c.given, masks), "reset-position-ids")
    if c.value("reset-position-ids") != isolate:
        text = "documents isolated from each other always have their own positions"
        c.report("differs", "reset-position-ids", text)
    if c.value("dataloader-type") is not None:
        word = c.choice("dataloader-type", "single", "cyclic", "batch", "external")
        if word == "single":
            c.set("data.shuffle", True, "dataloader-type")
        elif word == "external":
            c.report(
                "needs a decision", "dataloader-type", "the data is loaded in Python: set [data]"
            )
    model = c.value("tokenizer-model")
    is_known = "vocab_size" in c.data.get("model", {})
    if c.value("tokenizer-type") == "HuggingFaceTokenizer" and isinstance(model, str):
        is_known = False
    if not is_known:
        c.tokenizer(str(model or PLACES["tokenizer-model"]), "tokenizer-model", "tokenizer-type")
    elif not c.value("mock-data"):
        c.set("tokenizer.type", "ids", "tokenizer-type", "data-path")
        c.value("tokenizer-model")


def _records(c: Conversion) -> None:
    """Evaluation, checkpoints, trackers, profiles and garbage collection."""
    batches = c.number("eval-iters")
    size = c.number("eval-global-batch-size") or c.number("global-batch-size")
    if (
        batches is None
        or batches < 1
        or (c.data["data"].get("held_out") == 0 and "validation" not in c.data["data"])
    ):
        c.set("evaluation", None, "eval-iters", "split", "eval-interval")
    else:
        c.set("evaluation.every", f"{c.number('eval-interval')} steps", "eval-interval")
        count = None if c.value("full-validation") else batches * size if size else 64
        c.set("evaluation.sequences", count, "eval-iters", "global-batch-size")
    if save := c.text("save"):
        c.set("workspace", save, "save")
    if interval := c.number("save-interval"):
        c.set("checkpoint.every", f"{interval} steps", "save-interval")
        c.set("checkpoint.keep", None, "save-interval")
        if retained := c.number("save-retain-interval"):
            c.set("checkpoint.keep", 1, "save-retain-interval")
            c.set("checkpoint.keep_every", f"{retained} steps", "save-retain-interval")
    elif not c.given("save"):
        c.set("checkpoint.save", False, "save")
    else:
        c.set("checkpoint.every", "last_step", "save-interval")
    for key in ("load", "pretrained-checkpoint"):
        path = c.text(key)
        if path and (path != c.value("save") or c.value("finetune")):
            text = (
                f"{path} is a checkpoint of Megatron-LM: import it with `setpoint checkpoint "
                f"import`, then set model.pretrained"
            )
            c.report("needs a decision", key, text)
    source = c.value("load")
    resumes = source is not None and source == c.value("save") and not c.value("finetune")
    if c.value("exit-on-missing-checkpoint") and resumes:
        c.set("checkpoint.resume", "must", "exit-on-missing-checkpoint")
    # Without a resume, only the weights of another run are loaded, which these leave as they are.
    for key in ("no-load-optim", "no-load-rng", "ckpt-step"):
        if c.value(key) and resumes:
            c.report(
                "refused", key, "a run always resumes from its latest checkpoint with all state"
            )
    c.set("resilience.gc", None, "manual-gc")
    if c.value("manual-gc"):
        if interval := c.number("manual-gc-interval"):
            c.set("resilience.gc", {"every": f"{interval} steps"}, "manual-gc-interval")
        else:
            c.differs("manual-gc", "garbage collection is automatic", "it runs only at evaluations")
    c.track(("tensorboard", "tensorboard-dir", {"directory": "tensorboard-dir"}),
            ("wandb", "wandb-project", {"project": "wandb-project", "entity": "wandb-entity",
                                        "name": "wandb-exp-name"}))  # fmt: skip
    if c.value("use-pytorch-profiler"):
        c.trace("profile-step-start", "profile-step-end")
        if ranks := c.value("profile-ranks"):
            c.set("profiling.ranks", ranks, "profile-ranks")
    elif c.value("profile"):
        c.report("refused", "profile", "PyTorch's profiler is used: set [profiling]")
        for key in ("profile-step-start", "profile-step-end"):
            c.value(key)


def _read(path: str) -> FileDocument:
    """A script, a list of arguments, or YAML with the arguments of Megatron's own tests."""
    if names_file(path):
        document = read_file(path)
        if "MODEL_ARGS" in document.data:  # without the metrics of its tests
            document.data = {"MODEL_ARGS": document.data["MODEL_ARGS"]}
        return document
    flags = {name for name, key in KEYS.items() if key.default is False}
    return read_arguments(path, LISTS.split(), flags)


def _spell(name: str) -> str:
    """The name of an argument for a key of YAML, such as `MODEL_ARGS.--num-layers`."""
    section, _, last = name.rpartition(".")
    is_argument = section in ("", "MODEL_ARGS", "language_model", "model_parallel")
    return last.replace("_", "-").lstrip("-") if is_argument else name


DIALECT = Dialect(
    name="Megatron-LM",
    release="core 0.15",
    keys=KEYS,
    signature=("tensor-model-parallel-size", "micro-batch-size", "num-attention-heads"),
    complete=_complete,
    spell=_spell,
    prefixes={**CORE, "persistent-save-interval": "save-interval", "batch-size": "micro-batch-size",
              "model-parallel-size": "tensor-model-parallel-size",
              "patch-tokenizer-type": "tokenizer-type", "warmup": "lr-warmup-fraction",
              "muon-nesterov": "muon-use-nesterov"},
    families=FAMILIES,
    prepare=_prepare,
    read=_read,
    switches={**dict.fromkeys(("moe-", "expert-", "topk", "mlp-type", "create-moe-",
                               "disable-moe-"), "num-experts"),
              **dict.fromkeys(("q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim",
                               "v-head-dim"), "multi-latent-attention"),
              "mup-": "use-mup", "profile-": "profile use-pytorch-profiler",
              "num-layers-at-": "first-last-layers-bf16", "sgd-momentum": "optimizer=sgd",
              "muon-": "optimizer=muon|dist_muon", "adam-eps": "optimizer=adam|muon|dist_muon",
              "num-query-groups": "group-query-attention"},
)  # fmt: skip
