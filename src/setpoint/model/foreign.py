"""The sections of models that are not ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

from setpoint.config import (
    RUNTIME,
    Free,
    ImportedComponent,
    Invalid,
    Problem,
    Rule,
    check,
    derive,
    derived,
    field,
)
from setpoint.model.section import ModelConfig


class ImportedModel(
    ModelConfig, ImportedComponent, type="import", owner="setpoint.model.build:build_imported"
):
    """Any torch module by its import path; other keys are its arguments.

    It maps (B, S) int64 tokens to (B, S, V) logits, and initializes itself. Where it takes
    vocab_size and max_sequence_length, it gets them.
    """

    allowed_modules = ("torch.nn",)
    runtime_arguments = ("vocab_size",)


class HuggingFaceModel(
    ModelConfig,
    type="huggingface",
    owner="setpoint.model.huggingface.build:build_huggingface",
    rules=(
        Rule("setpoint.model.pretrained.check:check_config",
             "Whether its config.json is there and goes with the section", needs="files"),
        Rule("setpoint.model.pretrained.check:check_package",
             "Whether the package transformers is installed", needs="import"),
        Rule("setpoint.model.pretrained.check:check_weights",
             "Whether the weights to start from are those of the model that transformers makes",
             needs="import", when=lambda model: model.pretrained is not None),
    ),
):  # fmt: skip
    """Causal language model of the transformers library."""

    takes_documents = True

    config: str = derived()
    """Hugging Face config.json: a directory, a Hub id, or a model_type of transformers (llama) with
    its defaults. Unless given, the one beside the pretrained weights."""

    overrides: Free = field(factory=Free)
    """Overrides of config.json, by its own keys, such as num_hidden_layers."""

    attention_backend: Literal[
        "auto", "setpoint", "eager", "sdpa", "flash_attention_2", "flex_attention"
    ] = field(default="auto", role=RUNTIME)
    """Attention implementation: setpoint, which is that of type = transformer with its masks and
    kernels; one of transformers by its name (attn_implementation); or auto: setpoint where the
    family takes it, else transformers' first choice."""

    @derive("config")
    def _derive_config(self) -> str:
        if self.pretrained is None:
            raise Invalid(
                "must be set, unless pretrained is: no architecture is named",
                hint="Set it to a directory with a config.json, or to the id of a model.",
            )
        return self.pretrained

    @check
    def _check_config(self) -> Iterator[Problem]:
        if self.config.lower() in ("null", "none", "~", ""):
            yield Problem(
                "config",
                "names no model",
                hint="Set it to a directory with a config.json, or to the id of a model.",
            )

    @property
    def names_a_kind(self) -> bool:
        """Whether `config` is a kind of models, and no place of a config.json."""
        return self.config.isidentifier() and not os.path.exists(self.config)
