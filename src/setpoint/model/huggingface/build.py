"""The making of a model of transformers, and what is tried before it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from setpoint.config import SetpointError
from setpoint.model.huggingface.architecture import (
    architecture,
    import_transformers,
    one_line,
    require_fit,
)
from setpoint.model.huggingface.attention import NAME, register
from setpoint.model.huggingface.language_model import HuggingFaceModel
from setpoint.model.huggingface.model_files import read_model
from setpoint.model.layers import evaluating

if TYPE_CHECKING:
    from pathlib import Path

    from setpoint.model.foreign import HuggingFaceModel as HuggingFaceConfig

CAUSAL = 1e-4
"""Share of the largest logit that rounding may change where the tokens behind differ."""

SUPPORTS = {
    "sdpa": "_supports_sdpa",
    "flash_attention_2": "_supports_flash_attn",
    "flex_attention": "_supports_flex_attn",
}
"""Flags of transformers' classes by the attention that they tell of."""


def build_huggingface(
    config: HuggingFaceConfig, vocab_size: int, keys: Mapping[str, Any] | None = None
) -> HuggingFaceModel:
    """Make a model of transformers, with random weights from torch's generator.

    Arguments:
        vocab_size: how many tokens the tokenizer has.
        keys: of the config.json; None: they are read from where `config.config` says.

    Returns:
        the model in training mode, its parameters in fp32.

    Raises:
        SetpointError: if transformers is missing or cannot make the model, its vocabulary does not
            hold the tokenizer's, it takes shorter sequences, it fails on tokens, or tokens see
            those behind them.
    """
    theirs = architecture(config, keys)
    require_fit(config, theirs, vocab_size)
    transformers = import_transformers()
    if type(theirs) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise SetpointError(
            f"model.config = {config.config}: {type(theirs).__name__} is of no language model that "
            f"transformers has"
        )
    register()
    make = transformers.AutoModelForCausalLM.from_config
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(theirs)]
    name = config.attention_backend
    if name == "auto":
        name = NAME if kind._can_set_attn_implementation() else None
    elif name in SUPPORTS and not getattr(kind, SUPPORTS[name], False):
        valid = [each for each, flag in SUPPORTS.items() if getattr(kind, flag, False)]
        raise SetpointError(
            f"model.attention_backend = {name}: {kind.__name__} of transformers has none\n"
            f"Valid: {', '.join(['auto', *valid, 'eager'])}"
        )
    try:
        # Not with torch's present default, and not with what config.json says the weights are in.
        model = make(theirs, attn_implementation=name, dtype=torch.float32)
    except Exception as error:  # of transformers' own kinds, and of those of what it is built on
        raise SetpointError(
            f"model.config = {config.config}: transformers makes no causal language model of it: "
            f"{one_line(error)}"
        ) from error
    made = HuggingFaceModel(config, model.train())
    if torch.get_default_device().type != "meta":  # where there are no values to try it with
        made.attend_by("eager" if name == NAME else name)
        _require_causal(made)
        made.choose_attention(name == NAME)
        made.choose_head()
    else:
        made.suppose_usual()
    return made


def unfit_weights(
    config: HuggingFaceConfig, directory: Path, tokens: int | None
) -> SetpointError | None:
    """Say why the weights of a directory are not those of a model, by the headers of files.

    Arguments:
        tokens: for which they have rows, where a model with more grows those of others.

    Returns:
        None if they are, or transformers makes no such model.
    """
    try:
        theirs = architecture(config, None)
    except SetpointError:
        return None
    kinds = import_transformers().MODEL_FOR_CAUSAL_LM_MAPPING
    if type(theirs) not in kinds:
        return None
    rows = getattr(theirs, "vocab_size", None)
    if tokens is not None and rows is not None and tokens < rows:
        theirs.vocab_size = tokens
    try:
        read_model(kinds[type(theirs)], directory, theirs, torch.float32, reads=False)
    except SetpointError as error:
        return error
    return None


def _require_causal(model: HuggingFaceModel) -> None:
    """Try a model on two texts that differ in the last token: the first must not know of it."""
    name = f"model.config = {model.config.config}"
    tokens = torch.tensor([[1, 1], [1, 2]])  # not 0, which many pad with and embed as zero
    # Trying it must not change what random numbers come next.
    with torch.random.fork_rng(devices=[]), torch.no_grad(), evaluating(model):
        try:
            one, other = model(tokens)[:, 0]
        except Exception as error:  # whatever its layers raise, sizes do not fit
            raise SetpointError(
                f"{name}: the model that transformers makes of it cannot be called with tokens: "
                f"{one_line(error)}"
            ) from error
    if (one - other).abs().max() > CAUSAL * one.abs().max():
        decoder = hasattr(model.model.config, "is_decoder")
        hint = "; set model.overrides.is_decoder = true" if decoder else ""
        raise SetpointError(
            f"{name}: what the model says of a token changes with the tokens behind it, so that it "
            f"would learn to copy them{hint}"
        )
