"""Checks across sections of an inference job."""

from __future__ import annotations

import os
from collections.abc import Iterator

from setpoint.config import Caution, ConfigError, Problem, SetpointError, is_set
from setpoint.infer.adopt import find_weights, kept_tokenizer
from setpoint.infer.config import CONTROLS_AS_TEXT, FORWARD, Inference
from setpoint.model.attention.selection import determinism_problems, placement_problems
from setpoint.model.config import HuggingFaceConfig, TransformerConfig
from setpoint.model.parameters import vocab_error
from setpoint.model.pretrained.locate import is_on_hub, locate_here
from setpoint.precision.config import fp16_problems
from setpoint.profile.config import rank_problems, snapshot_problem

UNTRAINED = "adds tokens that these weights were not trained with"


def added_token_problems(job: Inference) -> Iterator[Problem]:
    """Report tokens added to the tokenizer of a complete model."""
    try:
        place = locate_here(job.weights.path)
    except SetpointError:
        return  # finding the weights says why
    if place is not None and not place.is_checkpoint:
        yield Problem("tokenizer.added", UNTRAINED, valid=("[]",), also=("weights.path",))


def precision_problems(job: Inference) -> Iterator[Problem]:
    """Report fp16 without a GPU."""
    yield from fp16_problems("precision.compute", job.precision.compute, job.parallel.device)
    yield from fp16_problems("weights.dtype", job.weights.dtype, job.parallel.device)


def adapter_problems(job: Inference) -> Iterator[Problem]:
    """Report adapter settings without an adapter, or settings that it does not support."""
    if job.adapter is not None:
        has_names = isinstance(job.model, TransformerConfig | HuggingFaceConfig)
        if job.export is not None and job.export.adapter and not has_names:
            kind = type(job.model).__setpoint__.tag
            yield Problem(
                "export.adapter",
                f"the adapter of a model of type = {kind} has no names that PEFT knows",
                valid=("false",),
                also=("model",),
            )
        given = is_set(job.weights, "merge_adapter") and job.weights.merge_adapter
        if given and not job.merges_adapter:
            why = (
                "ranks divide the weights of a model of type = transformer before they are read"
                if job.divides_weights
                else "an export in PEFT's format needs a separate adapter"
            )
            yield Problem(
                "weights.merge_adapter",
                f"is not possible: {why}",
                valid=("false",),
                also=("parallel",) if job.divides_weights else ("export.adapter",),
            )
        return
    if job.export is not None and job.export.adapter:
        yield Problem(
            "export.adapter",
            "there is no adapter: the weights were trained directly",
            valid=("false",),
            also=("adapter",),
        )


def export_problems(job: Inference) -> Iterator[Problem]:
    """Report a family of models that is unknown or cannot express the model."""
    from setpoint.model.pretrained.config_json import family_for

    assert job.export is not None and isinstance(job.model, TransformerConfig)
    try:
        family_for(job.model, job.export.family)
    except SetpointError as error:
        yield Problem.of(error, "export.family")


def pass_problems(job: Inference) -> Iterator[Problem]:
    """Report settings for the time between forward passes that have no effect."""
    profiling, gc = job.profiling, job.resilience.gc
    sections = {"profiling": profiling, "resilience.gc": gc}
    if not job.runs_model:
        for path in [path for path, section in sections.items() if section is not None]:
            yield Problem(
                path,
                "has no effect: no task runs the model",
                also=FORWARD,
                hint="Remove it.",
            )
        return
    if profiling is not None:
        yield from rank_problems(profiling, job.parallel)
        if profiling.snapshot and job.parallel.device == "cpu":
            yield snapshot_problem("the device is cpu")
        if job.output is None and not os.path.isabs(os.path.expanduser(profiling.directory)):
            yield Problem(
                "profiling.directory",
                "is relative to the results directory, but none is given",
                also=("output",),
                hint="Set output, or give an absolute folder.",
            )
    if gc is not None and gc.every.unit not in ("steps", "seconds", "never"):
        yield Problem(
            "resilience.gc.every",
            "is counted in units of training; here a step is a forward pass",
            valid=("100 steps", "10 min"),
        )


def snapshot_problems(job: Inference) -> Iterator[Problem]:
    """Report GPU snapshots on a machine without a GPU."""
    from torch import cuda

    if not cuda.is_available():
        yield snapshot_problem("PyTorch sees no GPU on this machine")


def attention_problems(job: Inference) -> Iterator[Problem]:
    """Report an attention backend that does not support the device type."""
    assert isinstance(job.model, TransformerConfig)
    yield from placement_problems(job.model, job.parallel.device, _compute(job), training=False)
    if job.deterministic:
        yield from determinism_problems(job.model)


def attention_device_problems(job: Inference) -> Iterator[Problem]:
    """Report an attention backend that does not run on this device."""
    from setpoint.model.attention.choose_backend import device_problems

    assert isinstance(job.model, TransformerConfig)
    yield from device_problems(job.model, job.parallel.device, _compute(job), training=False)


def _compute(job: Inference) -> str:
    """Dtype of queries, keys and values."""
    compute = job.precision.compute
    return job.weights.dtype if compute == "fp32" else compute


def vocabulary_problems(job: Inference) -> Iterator[Problem]:
    """Compare embedding rows with the tokenizer's vocabulary."""
    from setpoint.data.vocabulary import vocabulary_size

    assert isinstance(job.model, TransformerConfig)
    tokens = vocabulary_size(job.tokenizer)
    reason = None if tokens is None else vocab_error(job.model, tokens)
    if reason is not None:
        yield Problem("model.vocab_size", reason, also=("tokenizer",))


def prompt_problems(job: Inference) -> Iterator[Problem]:
    """Report prompts that cannot be formatted, and invalid stop tokens."""
    section = job.generation
    if section is None and job.chat is None:
        return
    from setpoint.data.sources.chat import with_controls
    from setpoint.data.vocabulary import chat_facts
    from setpoint.infer.prompts import (
        chat_template,
        prompts_of,
        read_prompts,
        stop_ids,
    )

    try:
        if section is not None and section.prompts_file is not None:
            read_prompts(section.prompts_file)
        if is_on_hub(job.weights.path):
            return  # checked when it is fetched
        place = find_weights(job.weights.path, job.weights.checkpoint)
        facts = chat_facts(kept_tokenizer(job.tokenizer, place))
        if facts is not None:
            size = max(facts.tokens.values()) + 1
        elif job.ids is not None:
            size = job.ids.count
        else:
            return  # a user's tokenizer, or one of the Hub, which is known when it is built
        if job.chat is not None:
            chat_template(job.chat, facts, place.directory)
        given = facts, place.directory, job.ids
        prompts = [] if section is None else prompts_of(section, job.chat, *given)
    except SetpointError as error:
        field = str(error).partition(": ")[0]
        if field.startswith(("chat", "generation")):
            yield Problem.of(error, field, field, also=("tokenizer",))
        else:
            yield Problem.of(error, "generation.prompts_file")
        return
    if section is None:
        return
    try:
        stop_ids(section, facts, size)
    except ConfigError as error:
        yield from error.problems
    if facts is None:
        return
    count = len(section.prompts)
    fields = {"prompts": prompts[:count], "prompts_file": prompts[count:]}
    for name, part in fields.items():
        texts = [prompt.text for prompt in part if not prompt.is_whole]
        pieces = [piece for text in texts for piece in with_controls(text, facts.controls)]
        spelled = list(dict.fromkeys(piece.text for piece in pieces if piece.control))
        if spelled:
            shown = ", ".join(spelled[:3]) + (" ..." if len(spelled) > 3 else "")
            yield Caution(
                CONTROLS_AS_TEXT,
                f"generation.{name}",
                f"the prompt spells the control token{'s' * (len(spelled) > 1)} {shown}, which the "
                f"model reads as plain text",
                hint="For conversations use chat (`setpoint generate --chat`); "
                "generation.control_tokens = true (--control-tokens) reads them as control tokens.",
            )
