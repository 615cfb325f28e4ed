"""The families of models that are read and written, a file each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from setpoint.model.pretrained.family import Family

FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma2",
    "gemma3_text",
    "gpt2",
)
"""The `model_type` of each, which is the name of its file, too; the plainest first, since a model
is exported as the first family that has all of it."""


def family_named(model_type: str) -> Family:
    """The family of a `model_type`.

    Arguments:
        model_type: one of `FAMILIES`.
    """
    return import_module(f"setpoint.model.pretrained.families.{model_type}").FAMILY
