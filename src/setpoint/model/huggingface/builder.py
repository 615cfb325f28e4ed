"""Construction of transformers models, with checks of their capabilities before training."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch import nn

from setpoint.config import Problem, SetpointError
from setpoint.model.huggingface.architecture import (
    Unfit,
    architecture,
    config_keys,
    import_transformers,
    one_line,
    value_problems,
)
from setpoint.model.huggingface.attention_interface import NAME, register
from setpoint.model.huggingface.language_model import ATTENDING, HuggingFaceModel, read_logits
from setpoint.model.huggingface.model_files import read_model
from setpoint.model.huggingface.model_parallel import (
    experts_of,
    parts_of,
    tensor_plan,
    why_no_width,
)
from setpoint.model.layers import count_parameters, evaluating
from setpoint.model.pretrained.config_json import problems_of, vocabulary_of
from setpoint.model.pretrained.locate import locate_here
from setpoint.model.pretrained.tensor_files import dense_tensors

if TYPE_CHECKING:
    from setpoint.model.config import HuggingFaceConfig
    from setpoint.parallel.config import Parallel

CAUSAL = 1e-4
"""Relative tolerance for logits of earlier tokens when later ones change."""

SUPPORTS = {
    "sdpa": "_supports_sdpa",
    "flash_attention_2": "_supports_flash_attn",
    "flex_attention": "_supports_flex_attn",
}
"""Class attributes of transformers for each attention implementation."""

ON_GPU = ("flash_attention_2", "flex_attention")
"""Attention implementations for GPUs only; trial runs on the CPU use eager."""

SMALL = 2**24
"""Parameters up to which a check builds the model with values, for trial runs."""


def build_huggingface(
    config: HuggingFaceConfig, vocab_size: int, keys: Mapping[str, Any] | None = None
) -> HuggingFaceModel:
    """Build a transformers model with random weights, drawn from torch's generator.

    Returns:
        the model in training mode, with parameters in fp32.

    Raises:
        Unfit: transformers cannot build the model, its vocabulary or context is too small, a
            forward pass fails, or attention is not causal.
        SetpointError: transformers is not installed, or there is no config.json.
    """
    transformers = import_transformers()
    keys = config_keys(config) if keys is None else keys
    overrides = config.overrides.dump()
    try:
        hf_config = architecture(config, keys, overrides)
    except Unfit:
        raise
    except Exception as error:  # any error of its classes means an invalid value
        _refuse_overrides(config, keys, "transformers cannot read the architecture", error)
    text = hf_config.get_text_config()
    for problem in value_problems(config, lambda key: getattr(text, key, None), vocab_size):
        raise Unfit(config, problem)
    if type(hf_config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        why = f"transformers has no causal language model for {type(hf_config).__name__}"
        raise Unfit(config, Problem("config", why))
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(hf_config)]
    register()
    name = config.attention_backend
    if name == "auto":
        name = NAME if kind._can_set_attn_implementation() else None
    elif name in SUPPORTS and not getattr(kind, SUPPORTS[name], False):
        _refuse_attention(config, kind, f"{kind.__name__} of transformers does not support it")
    elif name == "flash_attention_2" and find_spec("flash_attn") is None:
        _refuse_attention(config, kind, "the package flash_attn is not installed")
    try:
        model = HuggingFaceModel(config, _make(hf_config, name).train())
    except Unfit:
        raise
    except Exception as error:  # of any class
        _refuse_overrides(config, keys, f"transformers cannot build a {kind.__name__}", error)
    if torch.get_default_device().type == "meta":  # where there are no values to try it with
        error = _shape_error(hf_config)
        if error is not None and _faulty_overrides(config, keys):
            _refuse_overrides(config, keys, f"{kind.__name__} cannot be called with tokens", error)
        model.assume_defaults()
        return model
    model.set_attention("eager" if name in (NAME, *ON_GPU) else name)
    _require_causal(model, keys)
    uses_setpoint = model.choose_attention(name == NAME)
    if config.attention_backend == NAME and not uses_setpoint:
        why = f"{kind.__name__} does not support it, or gives different results with it"
        _refuse_attention(config, kind, why)
    model.choose_head()
    if name in ON_GPU:
        model.set_attention(name)
    return model


def check_weights(config: HuggingFaceConfig) -> Iterator[Problem]:
    """Check the headers of weight files against a transformers model.

    Skipped if a required package is missing, or if another check reports the problem.
    """
    if find_spec("transformers") is None or find_spec("accelerate") is None:
        return
    assert config.pretrained is not None
    try:
        place = locate_here(config.pretrained)
        if place is None or place.is_checkpoint:
            return
        dense_tensors(place.directory)
        tokens = vocabulary_of(place)
        hf_config = architecture(config, config_keys(config), config.overrides.dump())
        kind = import_transformers().MODEL_FOR_CAUSAL_LM_MAPPING[type(hf_config)]
    except Exception:  # of any class of transformers
        return
    rows = getattr(hf_config, "vocab_size", None)
    if tokens is not None and rows is not None and tokens < rows:
        hf_config.vocab_size = tokens  # the model grows the others
    try:
        read_model(kind, place.directory, hf_config, torch.float32, reads=False)
    except SetpointError as error:
        yield from problems_of("pretrained", error, config.pretrained)


def try_huggingface(config: HuggingFaceConfig, vocab_size: int) -> HuggingFaceModel:
    """Build a model on the meta device; if it is small, also make the trial runs of training."""
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            outline = build_huggingface(config, vocab_size)
        if count_parameters(outline) <= SMALL:
            build_huggingface(config, vocab_size)
    return outline


def _make(hf_config: Any, attention: str | None, **more: Any) -> Any:
    """Build a model from a copy of a config, which the model modifies."""
    make = import_transformers().AutoModelForCausalLM.from_config
    # Independent of torch's current default and of the dtype in config.json.
    given = {"attn_implementation": attention, "dtype": torch.float32, **more}
    return make(copy.deepcopy(hf_config), **given)


def _refuse_attention(config: HuggingFaceConfig, kind: Any, why: str) -> NoReturn:
    """Refuse the attention of a section, and list those that the family supports."""
    has_gpu = torch.cuda.is_available()
    can_run = {
        "sdpa": True,
        "flash_attention_2": has_gpu and find_spec("flash_attn") is not None,
        "flex_attention": has_gpu,
    }
    valid = [name for name, flag in SUPPORTS.items() if can_run[name] and getattr(kind, flag, 0)]
    problem = Problem("attention_backend", why, valid=("auto", *valid, "eager"), also=("config",))
    raise Unfit(config, problem)


def _require_causal(model: HuggingFaceModel, keys: Mapping[str, Any]) -> None:
    """Run two texts that differ in the last token, and require that all other logits are equal."""
    tokens = torch.tensor([[1, 1], [1, 2]])  # not 0, which many pad with and embed as zero
    # Trials must not change later random numbers.
    with torch.random.fork_rng(devices=[]), torch.no_grad(), evaluating(model):
        try:
            one, other = model(tokens)[:, 0]
        except Exception as error:  # any error of its layers means that sizes do not fit
            reason = f"{type(model.model).__name__} cannot be called with tokens"
            _refuse_overrides(model.config, keys, reason, error)
    if (one - other).abs().max() > CAUSAL * one.abs().max():
        problem = Problem(
            "config", "attention is not causal: logits of a token depend on later tokens"
        )
        if hasattr(model.model.config, "is_decoder"):
            problem.hint = "Set model.overrides.is_decoder to true."
        raise Unfit(model.config, problem)


def _refuse_overrides(
    config: HuggingFaceConfig, keys: Mapping[str, Any], reason: str, error: Exception
) -> NoReturn:
    """Refuse the overrides that break the model, or all of them if no single one does."""
    names = [f"overrides.{key}" for key in _faulty_overrides(config, keys)]
    if not names:
        names = ["overrides"] if config.overrides.dump() else ["config"]
    also = names[1:4] if names == ["config"] else (*names[1:4], "config")
    problem = Problem(names[0], f"{reason}: {one_line(error)}", also=also)
    raise Unfit(config, problem) from error


def _faulty_overrides(config: HuggingFaceConfig, keys: Mapping[str, Any]) -> list[str]:
    """Overrides of which each, when left out, makes the shapes match."""
    given = config.overrides.dump()

    def fits(overrides: Mapping[str, Any]) -> bool:
        try:
            return _shape_error(architecture(config, keys, overrides)) is None
        except Exception:  # any error means that it cannot make the model
            return False

    if fits(given):
        return []
    return [key for key in given if fits({k: v for k, v in given.items() if k != key})]


def _shape_error(hf_config: Any) -> Exception | None:
    """Error from building a model on the meta device and calling it with tokens, or None."""
    kind = import_transformers().MODEL_FOR_CAUSAL_LM_MAPPING[type(hf_config)]
    more = {}
    if kind._can_set_experts_implementation():  # one that reads no values
        more["experts_implementation"] = "batched_mm"
    try:
        with torch.device("meta"), torch.no_grad():
            tokens = torch.ones(1, 4, dtype=torch.int64)
            # Without a mask, transformers looks for documents in the position ids.
            given = {"input_ids": tokens, "attention_mask": tokens, "use_cache": False}
            _make(hf_config, "eager", **more).eval()(**given)
    except Exception as error:  # any error of its layers
        return error
    return None


class Undivided(NamedTuple):
    """A field of `parallel` along which a model cannot be divided."""

    field: str
    why: str


def undivided(hf: HuggingFaceModel, parallel: Parallel) -> Iterator[Undivided]:
    """Axes along which a model cannot be divided.

    Arguments:
        hf: the model on the meta device, with the job's adapter.
    """
    model: Any = hf.model
    kind = type(model).__name__
    degrees = parallel.degrees
    if degrees["tensor"] > 1:
        yield from _undivided_matrices(model, degrees["tensor"])
    if degrees["pipeline"] > 1:
        try:
            parts = parts_of(model)
            if parallel.pipelining.split is None:
                yield from _too_many_stages(kind, parts, parallel)
        except SetpointError as error:
            yield Undivided("pipeline", _reason(error))
        if read_logits(model) is None:
            why = f"the output matrix of {kind} has a bias"
            yield Undivided("pipeline", why)
    for axis in ("ring", "ulysses"):
        if degrees[axis] > 1:
            yield from _undivided_sequences(hf, axis, degrees)
    if parallel.divides_experts:
        yield from _undivided_experts(model, parallel)


def _too_many_stages(kind: str, parts: list[str], parallel: Parallel) -> Iterator[Undivided]:
    ranks = parallel.degrees["pipeline"]
    count = parallel.pipelining.stages(ranks)
    if count > len(parts):
        stages = count // ranks
        total = f"{ranks} ranks with {stages} stages each = {count}" if stages > 1 else f"{count}"
        why = f"{total} stages exceed the {len(parts)} parts of {kind}: the embedding, "
        yield Undivided("pipeline", f"{why}{len(parts) - 2} layers and the output")


def _undivided_matrices(model: Any, size: int) -> Iterator[Undivided]:
    try:
        plan = tensor_plan(model)
    except SetpointError as error:
        yield Undivided("tensor", _reason(error))
        return
    for path, word in plan.items():
        name, _, pieces = word.partition(" ")
        module: Any = model.get_submodule(path.rpartition(".")[0] if name == "part" else path)
        if pieces:
            shared = "key-value " if path.endswith(("k_proj", "v_proj")) else ""
            count, unit = int(pieces.partition("*")[0]), f"{shared}heads"
        elif name == "column":
            count, unit = module.out_features, "outputs"
        elif name in ("row", "row_whole_input"):
            count, unit = module.in_features, "inputs"
        elif name == "part":
            count, unit = module.get_parameter(path.rpartition(".")[2]).shape[0], "elements"
        else:
            continue
        if count % size:
            yield Undivided("tensor", f"{size} ranks cannot divide the {count} {unit} of {path}")
            return
    rows = model.config.get_text_config().vocab_size
    if rows <= (size - 1) * -(-rows // size):
        yield Undivided(
            "tensor", f"{size} ranks leave none of the {rows} vocabulary rows for the last one"
        )


def _undivided_sequences(
    hf: HuggingFaceModel, axis: str, degrees: Mapping[str, int]
) -> Iterator[Undivided]:
    keys: Any = hf.model.config
    text = keys.get_text_config()
    kind = type(hf.model).__name__
    kinds = set(getattr(text, "layer_types", None) or ()) - ATTENDING - {"attention"}
    if hf.attention != NAME or kinds:
        cause = f"layers of {', '.join(sorted(kinds))}" if kinds else f"{hf.attention} attention"
        yield Undivided(axis, f"{kind} needs whole sequences, because it has {cause}")
    elif hf.balances:
        yield Undivided(
            axis, "model.overrides.output_router_logits = true needs the routers of whole sequences"
        )
    elif axis == "ring" and hf.demands.sinks:
        yield Undivided(axis, f"{kind} has attention sinks, which a ring does not support")
    elif axis == "ulysses":
        heads = text.num_attention_heads // degrees["tensor"]
        if heads % degrees[axis]:
            why = f"{degrees[axis]} ranks cannot divide the {heads} heads of a rank"
            yield Undivided(axis, why)


def _undivided_experts(model: nn.Module, parallel: Parallel) -> Iterator[Undivided]:
    ranks, inner = parallel.expert, parallel.expert_tensor
    all_experts = experts_of(model)
    kind = type(model).__name__
    if not all_experts:
        axis = "expert" if ranks > 1 else "expert_tensor"
        yield Undivided(axis, f"{kind} has no packed experts")
    for path, experts in all_experts:
        count = next(experts.parameters()).shape[0]
        if count % ranks:
            yield Undivided("expert", f"{ranks} ranks cannot divide the {count} experts of {kind}")
            return
        why = why_no_width(path, experts, inner) if inner > 1 else None
        if why is not None:
            yield Undivided("expert_tensor", why)
            return


def _reason(error: SetpointError) -> str:
    """The part of an error message between the field and the valid values."""
    return str(error).partition(": ")[2].partition("\n")[0]
