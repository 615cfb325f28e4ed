"""Architecture of a transformers model: its config.json with a section's overrides, and checks.

This file imports neither torch nor transformers until `architecture` is called, so that `check` and
the model can share its functions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from setpoint.config import ConfigError, Problem, SetpointError, did_you_mean, is_mapping, nearest
from setpoint.config.resolving.checks import describe_value
from setpoint.config.words.names import nearest_divisors, nearest_multiples
from setpoint.model.pretrained.config_json import problems_of, vocabulary_in
from setpoint.model.pretrained.locate import locate, locate_here, read_keys
from setpoint.model.pretrained.tensor_files import KEY
from setpoint.shapes.torchao import quiet_torchao

if TYPE_CHECKING:
    from setpoint.model.config import HuggingFaceConfig

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Keys for the number of experts of a layer."""
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
"""Keys for the number of experts of a token."""


class Unfit(SetpointError):
    """A field of the section that prevents building the model."""

    def __init__(self, section: HuggingFaceConfig, problem: Problem) -> None:
        super().__init__(section, problem)
        self.section = section
        self.problem = problem

    def __str__(self) -> str:
        value, origin = self._describe(self.problem.path)
        also = ["model.{} = {} ({})".format(name, *self._describe(name))
                for name in self.problem.also]  # fmt: skip
        placed = self.problem.placed(f"model.{self.problem.path}", value, origin, also)
        return str(ConfigError([placed]))

    def _describe(self, path: str) -> tuple[str | None, str | None]:
        return describe_value(self.section, ("model",), path)


def value_problems(
    section: HuggingFaceConfig, read: Callable[[str], Any], vocab_size: int | None = None
) -> Iterator[Problem]:
    """Find values that conflict with each other, or with the section."""
    given = section.overrides.dump()
    rows, longest = _number(read, ("vocab_size",))[1], longest_in(read)
    if None not in (rows, vocab_size) and rows < vocab_size:
        yield Problem(
            "overrides.vocab_size",
            f"{rows} embedding rows are fewer than the {vocab_size} tokens of the tokenizer",
            valid=(str(vocab_size),),
            also=("config",),
            hint="Rows of new tokens are initialized to the mean of the pretrained rows."
            if section.pretrained is not None
            else f"Or a tokenizer with {rows} tokens or less.",
        )
    if longest is not None and section.max_sequence_length > longest:
        yield Problem(
            "max_sequence_length",
            f"{section.max_sequence_length} is more than the {longest} positions of config.json",
            valid=(str(longest),),
            also=("config",),
        )
    heads, shared = read("num_attention_heads"), read("num_key_value_heads")
    names = [key for key in ("num_key_value_heads", "num_attention_heads") if key in given]
    # Latent attention has one key-value head per head, regardless of this value.
    is_read = type(heads) is type(shared) is int and not read("kv_lora_rank")
    if names and is_read and (shared < 1 or heads % shared):
        yield Problem(
            f"overrides.{names[0]}",
            f"{heads} heads cannot be shared evenly by {shared} key-value heads",
            valid=[str(count) for count in nearest_divisors(heads, shared)]
            if names[0] == "num_key_value_heads"
            else [str(count) for count in nearest_multiples(heads, shared)],
            also=[*(f"overrides.{key}" for key in names[1:]), "config"],
        )
    # Overrides may use another name of a key.
    counts, choices = (sorted(keys, key=lambda key: key not in given) for keys in (EXPERTS, TOP_K))
    (count_key, count), (key, chosen) = _number(read, counts), _number(read, choices)
    if count is not None and chosen is not None and chosen > count > 0:
        overridden = [name for name in (*TOP_K, *EXPERTS) if name in given]
        path = f"overrides.{overridden[0]}" if overridden else "config"
        too_few = bool(overridden) and overridden[0] in EXPERTS
        yield Problem(
            path,
            f"a token cannot be routed to {chosen} experts ({key}) of {count} ({count_key})",
            valid=(f"{chosen} or more" if too_few else f"1 to {count}",) if overridden else (),
            also=[f"overrides.{name}" for name in overridden[1:]],
        )


def type_problems(given: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[Problem]:
    """Find overrides whose type differs from the value in config.json."""
    for key, value in given.items():
        expected, got = _type_of(stored.get(key)), _type_of(value)
        if None in (expected, got) or expected == got or key.endswith("_token_id"):
            continue
        yield Problem(
            f"overrides.{key}",
            f"must be {expected}, as in config.json ({stored[key]!r}), but is {got}",
            also=("config",),
        )


def longest_in(read: Callable[[str], Any]) -> int | None:
    """Maximum number of positions of the model; None if its config.json does not say."""
    return _number(read, ("max_position_embeddings", "n_positions"))[1]


def _number(read: Callable[[str], Any], names: Sequence[str]) -> tuple[str, Any]:
    """The first of some keys that has an int, with its value; None instead if there is none."""
    values = ((name, read(name)) for name in names)
    return next(((name, value) for name, value in values if type(value) is int), (names[0], None))


def _type_of(value: object) -> str | None:
    """The type of a JSON value, described; None for null, which may be of any type."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a str"
    if is_mapping(value):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else None


def config_keys(config: HuggingFaceConfig) -> dict[str, Any]:
    """Read the config.json that a section names, without overrides.

    Returns:
        its keys; for a model type of transformers, which has no file, only the type.

    Raises:
        SetpointError: the file does not exist.
    """
    if config.names_model_type:
        return {"model_type": config.config}
    try:
        place = locate(config.config, weights=False)
    except SetpointError as error:
        raise type(error)(f"model.config = {error}") from error
    if place.is_checkpoint:
        raise Unfit(
            config,
            Problem(
                "config",
                "is a run or checkpoint of Setpoint, which has weights but no config.json of "
                "transformers",
                hint="Set it to the model.config of that run.",
            ),
        )
    return read_keys(place.directory)


def architecture(
    config: HuggingFaceConfig, keys: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Any:
    """Build transformers' config object.

    Raises:
        Unfit: transformers does not know the model type or a key, or a key has another type.
        Exception: any error that the classes of transformers raise for an invalid value.
    """
    transformers = import_transformers()
    raw = {key: value for key, value in keys.items() if key != KEY}  # weights are made dense
    kind, kinds = str(raw.get("model_type")), list(transformers.CONFIG_MAPPING)
    if kind not in kinds:
        named = "" if config.names_model_type else f", which its config.json names as {kind!r}"
        hint = "It is such a model type, a directory with a config.json, or a hub id."
        if raw.get("auto_map"):
            hint = "Program code that comes with it (auto_map, trust_remote_code) is not run."
        raise Unfit(
            config,
            Problem(
                "config",
                f"transformers {transformers.__version__} has no such model type{named}",
                valid=nearest(kind, kinds, 3) if config.names_model_type else (),
                hint=hint,
            ),
        )
    # Of the class, so that no code in a directory is run.
    known = transformers.AutoConfig.for_model(kind)
    for key in overrides:
        if key not in raw and not hasattr(known, key):
            raise Unfit(
                config,
                Problem(
                    f"overrides.{key}",
                    f"{type(known).__name__} of transformers has no such key",
                    also=("config",),
                    hint=did_you_mean(key, [*known.to_dict(), *raw]),
                ),
            )
    for problem in type_problems(overrides, raw):
        raise Unfit(config, problem)
    return type(known).from_dict({**raw, **overrides})


def import_transformers() -> Any:
    """Import transformers.

    Raises:
        SetpointError: transformers is not installed.
    """
    quiet_torchao()  # some models of transformers import it
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"model.type = huggingface needs the package {error.name!r}: install "
            f"'setpoint[huggingface]'"
        ) from None
    return transformers


def one_line(error: Exception) -> str:
    """The message of an error of transformers, on one line of at most 200 characters."""
    text = " ".join(str(error).split())
    if not text or isinstance(error, LookupError):  # a LookupError has only the key
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


def check_config(config: HuggingFaceConfig) -> Iterator[Problem]:
    """Check the section of a transformers model against its config.json, if it is local."""
    given, stored = config.overrides.dump(), dict[str, Any]()
    if not config.names_model_type:
        try:
            place = locate_here(config.config)
            if place is None or place.is_checkpoint:
                return
            stored = read_keys(place.directory)
        except SetpointError as error:
            yield from problems_of("config", error, config.config)
            return
    yield from type_problems(given, stored)
    yield from value_problems(config, {**stored, **given}.get)


def check_package(config: HuggingFaceConfig) -> Iterator[Problem]:
    """Report that transformers is missing, without importing it."""
    if importlib.util.find_spec("transformers") is None:
        yield Problem(
            "config",
            "the package transformers, which type = huggingface needs, is not installed",
            hint="Install 'setpoint[huggingface]'.",
        )


def declared_vocabulary(config: HuggingFaceConfig) -> int | None:
    """Vocabulary size of a transformers model; None if its config.json is not local."""
    rows = config.overrides.dump().get("vocab_size")
    if isinstance(rows, int) or config.names_model_type:
        return rows if isinstance(rows, int) else None
    place = locate_here(config.config)
    if place is None or place.is_checkpoint:
        return None
    return vocabulary_in(read_keys(place.directory))
