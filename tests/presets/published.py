"""How large the models of presets are, and those of transformers with published configurations."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import setpoint.presets  # noqa: F401 - registers them
from setpoint.config.composition import compose
from setpoint.model.config import TransformerConfig
from setpoint.model.parameters import count_parameters_of
from setpoint.train.config import Job


def resolved(preset: str) -> tuple[Job, TransformerConfig]:
    """A preset as it is.

    Arguments:
        preset: its name.

    Returns:
        the job, and its model.
    """
    job = compose(Job, preset).resolve()
    assert isinstance(job.model, TransformerConfig)
    assert job.name == preset
    return job, job.model


def module_of(preset: str) -> nn.Module:
    """The model of a preset, without memory for its weights.

    Arguments:
        preset: its name.

    Returns:
        the module, on the meta device.
    """
    job, model = resolved(preset)
    with torch.device("meta"):
        return model.build(vocab_size=job.tokenizer.build().vocab_size)


def count(module: nn.Module) -> int:
    """Parameters, and buffers that are part of what is published.

    Arguments:
        module: ours, or of transformers.

    Returns:
        the number.
    """
    parameters = sum(p.numel() for p in {id(p): p for p in module.parameters()}.values())
    return parameters + sum(b.numel() for n, b in module.named_buffers() if _selects(n))


def _selects(name: str) -> bool:
    """Whether a buffer is the bias that only selects experts."""
    return name.endswith(("router.bias", "e_score_correction_bias"))


def assert_as_published(preset: str, parameters: int, config: Any) -> None:
    """A preset has the published number of parameters, and so has the model of transformers.

    Arguments:
        preset: its name.
        parameters: how many are published, or follow from the published configuration.
        config: of transformers, with the published values.
    """
    from transformers import AutoModelForCausalLM

    job, model = resolved(preset)
    assert count(module_of(preset)) == parameters
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(config)
    assert count(theirs) == parameters
    counts = count_parameters_of(model, job.tokenizer.build().vocab_size)
    selecting = sum(b.numel() for n, b in module_of(preset).named_buffers() if _selects(n))
    assert counts.parameters == parameters - selecting
    assert model.max_sequence_length == config.max_position_embeddings
    assert model.norm_eps == getattr(config, "rms_norm_eps", 0) or config.layer_norm_epsilon
    assert model.init_std == config.initializer_range
