"""The making of a model of transformers, and what is tried before it is trained."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from setpoint.config import Problem, SetpointError
from setpoint.model.huggingface.architecture import (
    architecture,
    config_keys,
    import_transformers,
    one_line,
    require_fit,
)
from setpoint.model.huggingface.attention import NAME, register
from setpoint.model.huggingface.language_model import HuggingFaceModel
from setpoint.model.huggingface.model_files import read_model
from setpoint.model.huggingface.values import Unfit
from setpoint.model.inspection import count_parameters, evaluating

if TYPE_CHECKING:
    from pathlib import Path

    from setpoint.model.config import HuggingFaceConfig

CAUSAL = 1e-4
"""Share of the largest logit that rounding may change where the tokens behind differ."""

SUPPORTS = {
    "sdpa": "_supports_sdpa",
    "flash_attention_2": "_supports_flash_attn",
    "flex_attention": "_supports_flex_attn",
}
"""Flags of transformers' classes by the attention that they tell of."""

ON_GPU = ("flash_attention_2", "flex_attention")
"""Attention that is trained on GPUs alone; on the CPU eager is tried in its place."""

SMALL = 2**24
"""Parameters up to which a check makes the model with values, to try what a run tries."""


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
        Unfit: transformers cannot make the model, its vocabulary does not hold the tokenizer's, it
            takes shorter sequences, it fails on tokens, or tokens see those behind them.
        SetpointError: transformers is missing, or there is no config.json.
    """
    transformers = import_transformers()
    keys = config_keys(config) if keys is None else keys
    overrides = config.overrides.dump()
    try:
        theirs = architecture(config, keys, overrides)
    except Unfit:
        raise
    except Exception as error:  # whatever its classes raise, a value is wrong
        _blame(config, keys, "transformers cannot read the architecture", error)
    require_fit(config, theirs, vocab_size)
    if type(theirs) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        why = f"{type(theirs).__name__} is of no language model that transformers has"
        raise Unfit(config, Problem("config", why))
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(theirs)]
    register()
    name = config.attention_backend
    if name == "auto":
        name = NAME if kind._can_set_attn_implementation() else None
    elif name in SUPPORTS and not getattr(kind, SUPPORTS[name], False):
        _refuse_attention(config, theirs, f"{kind.__name__} of transformers has none")
    elif name == "flash_attention_2" and find_spec("flash_attn") is None:
        _refuse_attention(config, theirs, "the package flash_attn is not installed")
    try:
        made = HuggingFaceModel(config, _make(theirs, name).train())
    except Unfit:
        raise
    except Exception as error:  # of transformers' own kinds, and of those of what it is built on
        _blame(config, keys, f"transformers cannot make a {kind.__name__}", error)
    if torch.get_default_device().type == "meta":  # where there are no values to try it with
        error = _error_of_shapes(theirs)
        if error is not None and _culprits(config, keys):
            _blame(config, keys, f"{kind.__name__} cannot be called with tokens", error)
        made.suppose_usual()
        return made
    made.attend_by("eager" if name in (NAME, *ON_GPU) else name)
    _require_causal(made, keys)
    takes_own = made.choose_attention(name == NAME)
    if config.attention_backend == NAME and not takes_own:
        why = f"{kind.__name__} has no attention that takes it, or computes something else with it"
        _refuse_attention(config, theirs, why)
    made.choose_head()
    if name in ON_GPU:
        made.attend_by(name)
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
        theirs = architecture(config, config_keys(config), config.overrides.dump())
    except Exception:  # whatever its classes raise, `build_huggingface` says it
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


def try_huggingface(config: HuggingFaceConfig, vocab_size: int) -> HuggingFaceModel:
    """Make a model on the meta device, and try what training tries as far as that costs little.

    Raises:
        SetpointError: see `build_huggingface`.
    """
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            outline = build_huggingface(config, vocab_size)
        if count_parameters(outline) <= SMALL:
            build_huggingface(config, vocab_size)
    return outline


def _make(theirs: Any, attention: str | None, **more: Any) -> Any:
    """Make the model of a copy of a config, which keeps what it is made with."""
    make = import_transformers().AutoModelForCausalLM.from_config
    # Not with torch's present default, and not with what config.json says the weights are in.
    given = {"attn_implementation": attention, "dtype": torch.float32, **more}
    return make(copy.deepcopy(theirs), **given)


def _refuse_attention(config: HuggingFaceConfig, theirs: Any, why: str) -> NoReturn:
    """Refuse the attention of a section, and name all that the family takes on this machine."""
    kind = import_transformers().MODEL_FOR_CAUSAL_LM_MAPPING[type(theirs)]
    can_run = {"sdpa": True, "flash_attention_2": False, "flex_attention": False}
    if torch.cuda.is_available():
        can_run["flash_attention_2"] = find_spec("flash_attn") is not None
        can_run["flex_attention"] = True
    valid = [name for name, flag in SUPPORTS.items() if can_run[name] and getattr(kind, flag, 0)]
    if config.attention_backend != NAME and kind._can_set_attn_implementation():
        with torch.device("meta"):
            size = count_parameters(_make(theirs, "eager"))
        with torch.device("cpu"):
            if size <= SMALL and HuggingFaceModel(config, _make(theirs, "eager")).choose_attention(
                True
            ):
                valid = [NAME, *valid]
    valid = ["auto", *valid, "eager"]
    raise Unfit(config, Problem("attention_backend", why, valid=valid, also=("config",)))


def _require_causal(model: HuggingFaceModel, keys: Mapping[str, Any]) -> None:
    """Try a model on two texts that differ in the last token: the first must not know of it."""
    tokens = torch.tensor([[1, 1], [1, 2]])  # not 0, which many pad with and embed as zero
    # Trying it must not change what random numbers come next.
    with torch.random.fork_rng(devices=[]), torch.no_grad(), evaluating(model):
        try:
            one, other = model(tokens)[:, 0]
        except Exception as error:  # whatever its layers raise, sizes do not fit
            what = f"{type(model.model).__name__} cannot be called with tokens"
            _blame(model.config, keys, what, error)
    if (one - other).abs().max() > CAUSAL * one.abs().max():
        problem = Problem(
            "config",
            "logits of a token change with the tokens behind it, so that the model would learn to "
            "copy them",
        )
        if hasattr(model.model.config, "is_decoder"):
            problem.hint = "Set model.overrides.is_decoder to true."
        raise Unfit(model.config, problem)


def _blame(
    config: HuggingFaceConfig, keys: Mapping[str, Any], what: str, error: Exception
) -> NoReturn:
    """Refuse the overrides without one of which a model can be made and called, or all of them."""
    names = [f"overrides.{key}" for key in _culprits(config, keys)]
    if not names:
        names = ["overrides"] if config.overrides.dump() else ["config"]
    also = names[1:4] if names == ["config"] else (*names[1:4], "config")
    problem = Problem(names[0], f"{what}: {one_line(error)}", also=also)
    raise Unfit(config, problem) from error


def _culprits(config: HuggingFaceConfig, keys: Mapping[str, Any]) -> list[str]:
    """Find the overrides without one of which shapes fit, where they do not with all."""
    given = config.overrides.dump()

    def fits(overrides: Mapping[str, Any]) -> bool:
        try:
            return _error_of_shapes(architecture(config, keys, overrides)) is None
        except Exception:  # whatever transformers raises, it cannot make the model
            return False

    if fits(given):
        return []
    return [key for key in given if fits({k: v for k, v in given.items() if k != key})]


def _error_of_shapes(theirs: Any) -> Exception | None:
    """The error of making a model without memory, and of calling it with tokens."""
    kind = import_transformers().MODEL_FOR_CAUSAL_LM_MAPPING[type(theirs)]
    # What experts are computed by where no value decides how.
    more = (
        {"experts_implementation": "batched_mm"} if kind._can_set_experts_implementation() else {}
    )
    try:
        with torch.device("meta"), torch.no_grad():
            tokens = torch.ones(1, 4, dtype=torch.int64)
            # Without a mask, transformers looks for documents in the position ids.
            given = {"input_ids": tokens, "attention_mask": tokens, "use_cache": False}
            _make(theirs, "eager", **more).eval()(**given)
    except Exception as error:  # whatever its layers raise
        return error
    return None
