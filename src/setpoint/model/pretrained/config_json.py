"""Conversion between config.json and the configuration of a transformer, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from setpoint.config import (
    MISSING,
    Config,
    ConfigError,
    SetpointError,
    did_you_mean,
    resolve,
    to_plain,
)
from setpoint.model.attention.config import MLA
from setpoint.model.config import TransformerConfig
from setpoint.model.moe.config import MoE, SigmoidTopK, SoftmaxTopK
from setpoint.model.pretrained.config_document import ConfigDocument, reasons
from setpoint.model.pretrained.convert import PLAIN, SIZES, Family, Misfit, meaning_of, named, shown
from setpoint.model.pretrained.families import FAMILIES
from setpoint.model.pretrained.locate import CONFIG, Place, locate, read_keys

TOKEN_IDS: Final = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Keys of special tokens; transformers has its own defaults if they are absent."""

TRAINING: Final = (
    "balance_loss",
    "sequence_balance_loss",
    "router_z_loss",
    "gradient_scale",
    "load_sequences",
    "bias_rate",
    "bias_schedule",
    "packed",
    "implementation",
)
"""Fields of sections that affect training only, or the memory layout of weights."""

LACKING: Final = {
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "olmo_hybrid"),
        "gated delta nets",
    ),
    **dict.fromkeys(
        ("mamba", "mamba2", "jamba", "bamba", "falcon_mamba", "falcon_h1", "nemotron_h",
         "granitemoehybrid", "zamba", "zamba2"),
        "state-space layers",
    ),
    **dict.fromkeys(("recurrent_gemma", "rwkv", "xlstm"), "recurrent layers"),
    **dict.fromkeys(("lfm2", "lfm2_moe"), "convolutions"),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), "sparse attention"),
    "minimax": "linear attention",
}  # fmt: skip
"""Layers that Setpoint's transformer lacks, by `model_type`."""

_ROUTERS: Final = {
    "softmax_top_k": SoftmaxTopK,
    "sigmoid_top_k": SigmoidTopK,
    "sigmoid_top_k without bias": partial(SigmoidTopK, bias_rate=None),
}


def config_from_pretrained(path: str | Path) -> TransformerConfig:
    """Read the configuration of a pretrained model, without importing torch.

    Arguments:
        path: the directory of a Hugging Face model, a run or a checkpoint; or a Hub id.

    Returns:
        the resolved configuration, with the model's own `max_sequence_length`.

    Raises:
        SetpointError: there is no such model, or Setpoint's transformer does not support it.
    """
    return config_of(locate(str(path), weights=False))


def config_of(place: Place) -> TransformerConfig:
    """Read the configuration of a located model.

    Raises:
        SetpointError: Setpoint's transformer does not support it.
    """
    if place.kind == "huggingface":
        return read_config(place.directory)[0]
    from setpoint.model.pretrained.locate import job_of

    config = job_of(place.directory).model
    if not isinstance(config, TransformerConfig):
        tag = type(config).__setpoint__.tag
        raise SetpointError(f"{place.name} has a model of type = {tag}, not of type = transformer")
    return config


def read_config(directory: Path) -> tuple[TransformerConfig, Family]:
    """Read the config.json of a directory."""
    return config_from_keys(read_keys(directory), directory / CONFIG)


def config_from_keys(keys: Mapping[str, Any], file: Path) -> tuple[TransformerConfig, Family]:
    """Convert the keys of a config.json.

    Raises: as `read_config` does.
    """
    family = _family_of(keys, file)
    document = ConfigDocument(keys, str(file))
    fields = family.read(document)
    document.finish()
    try:
        return resolve(_transformer(fields)), family
    except ConfigError as error:
        raise SetpointError(
            f"{file} describes a model that Setpoint's transformer does not support: "
            f"{reasons(error)}"
        ) from error


def _family_of(keys: Mapping[str, Any], file: Path) -> Family:
    kind = keys.get("model_type")
    way_out = '`type = "huggingface"` trains all models of transformers.'
    if not isinstance(kind, str) or kind not in FAMILIES:
        lacks = LACKING.get(kind) if isinstance(kind, str) else None
        if lacks is None and keys.get("vision_config"):
            text = keys.get("text_config")
            part = text.get("model_type") if isinstance(text, dict) else None
            lacks = "an image encoder" + (f"; {part} is supported" if part in FAMILIES else "")
        if lacks is not None:
            fault = f"the unsupported model_type {kind!r}, which needs {lacks}"
            raise SetpointError(f"{file} has {fault}\n{way_out}")
        fault = "no model_type" if kind is None else f"model_type {kind!r}, which is not supported"
        raise SetpointError(f"{file} has {fault}. Valid: {', '.join(FAMILIES)}\n{way_out}")
    family = FAMILIES[kind]
    names = keys.get("architectures") or [family.architecture]
    if names != [family.architecture]:
        listed = ", ".join(map(str, cast(list[Any], names))) if isinstance(names, list) else names
        raise SetpointError(
            f"{file} has the architecture {listed}, but for {kind} only {family.architecture} is "
            f"supported, a decoder with a language-model head\n{way_out}"
        )
    return family


def _transformer(fields: Mapping[str, Any]) -> TransformerConfig:
    """A draft in which default values are left unset, so that no value is set without effect."""
    declared = TransformerConfig.__setpoint__.fields
    given: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {"moe": {}, "mla": {}}
    for path, value in fields.items():
        section, _, name = path.partition(".")
        if name:
            sections[section][name] = value
        elif section not in sections:
            default = declared[path].initial()
            if default is MISSING or named(default) != named(value):
                given[path] = value.evolve() if isinstance(value, Config) else value
    mla, moe, layers = sections["mla"], sections["moe"], fields["layers"]
    head = mla["nope_head_dim"] + mla["rope_head_dim"] if mla else fields["head_dim"]
    if given.get("attention_scale") == head**-0.5:
        del given["attention_scale"]  # the default scale
    if moe:
        router = _ROUTERS[moe.pop("router", "softmax_top_k")]
        chosen = router(normalize=moe.pop("router.normalize", True))
        given["moe"] = MoE(**moe, router=chosen)
        if all(given["moe"].has_experts(layer) for layer in range(layers)):
            given.pop("ffn_dim", None)  # no layer has a feed-forward network of that width
    if mla:
        given["mla"] = MLA(**mla)
    return TransformerConfig(**given)


def family_for(
    config: TransformerConfig, name: str | None = None, origin: str | None = None
) -> Family:
    """The family as which a transformer can be exported.

    Arguments:
        name: one of `FAMILIES`; None: the first that can express the whole model.
        origin: `model_type` of the initial weights, if any; it is tried first.

    Raises:
        SetpointError: no family fits; names the fields that the nearest one cannot express.
    """
    if name is not None and name not in FAMILIES:
        meant = did_you_mean(name, FAMILIES, " ")
        raise SetpointError(
            f"there is no model family {name!r}.{meant} Known: {', '.join(FAMILIES)}"
        )
    nearest: tuple[list[Misfit], Family] | None = None
    known = [FAMILIES[origin]] if origin in FAMILIES else []
    for family in [*known, *FAMILIES.values()] if name is None else [FAMILIES[name]]:
        misfits = family.misfits(config)
        if not misfits:
            return family
        if nearest is None or _distance(misfits) < _distance(nearest[0]):
            nearest = (misfits, family)
    assert nearest is not None
    misfits, family = nearest
    lines = "\n  ".join(f"{misfit.field} {misfit.reason}" for misfit in misfits)
    subject = f"family {family.model_type}" if name else f"nearest family, {family.model_type},"
    raise SetpointError(
        f"the model cannot be exported to the format of Hugging Face. The {subject} does not "
        f"support:\n  {lines}"
    )


def _distance(misfits: Sequence[Misfit]) -> tuple[bool, int]:
    # A family without experts is far from a model with experts, whatever else it has.
    return any(misfit.field in ("moe", "mla") for misfit in misfits), len(misfits)


def write_config(
    config: TransformerConfig,
    family: Family,
    *,
    vocab_size: int,
    dtype: str,
    token_ids: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of a config.json that transformers 4 and 5 can read.

    Arguments:
        token_ids: values of `TOKEN_IDS`; null for missing ones.
    """
    return {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        **family.write(config),
        "vocab_size": vocab_size,
        **{key: (token_ids or {}).get(key) for key in TOKEN_IDS},
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


class FieldDifference(NamedTuple):
    """A field with different values in a model and in stored weights."""

    field: str
    value: str
    stored: str


def differences(config: TransformerConfig, stored: TransformerConfig) -> list[FieldDifference]:
    """Compare the fields that affect weights or logits.

    The number of positions matters only for learned position embeddings. Dropout, initialization
    and the vocabulary, which may grow, do not matter.
    """
    names = [*SIZES, *PLAIN]
    if "learned" not in (config.positions, stored.positions):
        names.remove("max_sequence_length")
    if all(c.moe is not None and c.moe.layers_with_experts(c.layers) == c.layers
           for c in (config, stored)):  # fmt: skip
        names.remove("ffn_dim")  # no layer has it, except perhaps experts
    result: list[FieldDifference] = []
    for name in names:
        left, right = getattr(config, name), getattr(stored, name)
        if isinstance(left, Config) and type(left) is type(right):
            inside = _differences_inside(name, left, right)
            # Experts without a separate width have that of the feed-forward network.
            widths = {moe.width(c.ffn_dim) for c in (config, stored) if (moe := c.moe) is not None}
            result += [d for d in inside if d.field != "moe.expert_dim" or len(widths) > 1]
        elif meaning_of(config, name) != meaning_of(stored, name):
            values = shown(meaning_of(config, name)), shown(meaning_of(stored, name))
            result.append(FieldDifference(name, *values))
    return result


def _differences_inside(name: str, section: Config, stored: Config) -> list[FieldDifference]:
    left, right = (_weight_fields(to_plain(part)) for part in (section, stored))
    return [
        FieldDifference(f"{name}.{key}", shown(left[key]), shown(right[key]))
        for key in left
        if left[key] != right[key]
    ]


def _weight_fields(section: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a section, and of its router, that affect weights or logits."""
    kept = {key: value for key, value in section.items() if key not in TRAINING}
    if "router" in kept:
        router = {k: v for k, v in kept["router"].items() if k not in TRAINING}
        kept["router"] = {**router, "bias": kept["router"].get("bias_rate") is not None}
    return kept
