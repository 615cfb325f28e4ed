"""Conversion between config.json and the configuration of a transformer, comparison, and checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from setpoint.config import (
    MISSING,
    Config,
    ConfigError,
    Problem,
    SetpointError,
    did_you_mean,
    resolve,
    to_plain,
)
from setpoint.data.config import BYTES_VOCABULARY, Bytes
from setpoint.model.attention.config import MLA
from setpoint.model.config import HuggingFaceConfig, ModelConfig, TransformerConfig
from setpoint.model.moe.config import MoE, SigmoidTopK, SoftmaxTopK
from setpoint.model.parameters import embedding_rows
from setpoint.model.pretrained.convert import (
    PLAIN,
    SECTIONS,
    SIZES,
    ConfigDocument,
    Family,
    Misfit,
    meaning_of,
    named,
    reasons,
    shown,
)
from setpoint.model.pretrained.families import FAMILIES
from setpoint.model.pretrained.locate import (
    CONFIG,
    Place,
    description_of,
    job_of,
    locate,
    locate_here,
    read_keys,
    require_no_adapter,
    tokenizer_of,
)
from setpoint.model.pretrained.tensor_files import dense_tensors
from setpoint.model.pretrained.weight_names import require_files

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
        path: the directory of a Hugging Face model, a run or a checkpoint; or a hub id.

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
    if not place.is_checkpoint:
        return read_config(place.directory)[0]
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


def check_directory(config: ModelConfig) -> Iterator[Problem]:
    """Check a model against a local directory of weights; hub ids are skipped."""
    assert config.pretrained is not None
    try:
        place = locate_here(config.pretrained)
        if place is None:
            return
        directory, different = place.directory, list[FieldDifference]()
        if place.is_checkpoint:
            require_no_adapter(directory)
        if isinstance(config, TransformerConfig):
            different = differences(config, config_of(place))
        for difference in different:
            yield Problem(
                difference.field,
                f"the pretrained weights have {difference.stored}",
                valid=() if difference.stored in SECTIONS.values() else (difference.stored,),
                also=("pretrained",),
                hint=f"`setpoint import {place.name}` writes a configuration for them.",
            )
        if place.is_checkpoint:
            return
        if not isinstance(config, TransformerConfig | HuggingFaceConfig):
            yield Problem("pretrained", foreign_names(config))
        if isinstance(config, TransformerConfig) and not different:
            stored, family = read_config(directory)
            require_files(directory, family, stored)
        else:
            dense_tensors(directory)
    except SetpointError as error:
        yield from problems_of("pretrained", error, config.pretrained)


def vocabulary_of(place: Place) -> int | None:
    """Vocabulary size of weights; None if only the model itself knows it."""
    if not place.is_checkpoint:
        return vocabulary_in(read_keys(place.directory))
    job = job_of(place.directory)
    model, tokenizer = job.model, job.tokenizer
    if isinstance(model, HuggingFaceConfig):
        return model.overrides.dump().get("vocab_size") or vocabulary_in(
            description_of(place.directory) or {}
        )
    if not isinstance(model, TransformerConfig):
        return None
    if model.vocab_size is not None:
        return model.vocab_size
    if isinstance(tokenizer, Bytes):
        return BYTES_VOCABULARY
    return tokenizer_of(place.directory, tokenizer).vocab_size


def vocabulary_difference(
    config: TransformerConfig, tokens: int, place: Place
) -> FieldDifference | None:
    """Describe why a model cannot accept the embedding rows of weights: it has fewer.

    Arguments:
        tokens: vocabulary size of the model, without padding rows.
    """
    known = vocabulary_of(place)
    if known is None:
        return None
    if tokens < known:
        value = f"null, {tokens} tokens" if config.vocab_size is None else str(tokens)
        return FieldDifference("vocab_size", value, str(known))
    rows, saved = embedding_rows(config, tokens), config_of(place)
    stored = embedding_rows(saved, known)
    if not place.is_checkpoint or rows >= stored:
        return None
    if config.vocab_size is not None:
        return FieldDifference("vocab_size", str(rows), str(stored))
    value = f"{config.vocab_multiple_of}, {rows} rows"
    return FieldDifference("vocab_multiple_of", value, str(saved.vocab_multiple_of))


def vocabulary_in(keys: Mapping[str, Any]) -> int | None:
    """Vocabulary size in a config.json; multimodal models have it in a sub-section."""
    text = keys.get("text_config")
    rows = keys.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    return rows if isinstance(rows, int) else None


def foreign_names(config: ModelConfig) -> str:
    """Reason why a custom model cannot start from a Hugging Face directory."""
    tag = type(config).__setpoint__.tag
    return (
        f"a model of type = {tag} can start from a run or a checkpoint of Setpoint, not from a "
        f"directory of Hugging Face, which uses other tensor names"
    )


def problems_of(field: str, error: SetpointError, name: str) -> Iterator[Problem]:
    """Problems for an error, without the path, which is shown as the field's value."""
    head, *lines = str(error).removeprefix(f"{name}: ").removeprefix(f"{Path(name)} ").splitlines()
    findings = [line.strip() for line in lines if line.startswith("  ")]
    hint = " ".join(line for line in lines if not line.startswith("  "))
    for finding in findings or [""]:
        message, _, valid = f"{head} {finding}".strip().partition(". Valid: ")
        listed = valid.split(", ") if valid else ()
        yield Problem(field, message, valid=listed, hint=hint, kind=error.kind)
