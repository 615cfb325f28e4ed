"""Architectures of transformers: their config.json, with the overrides of a section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from setpoint.config import Problem, SetpointError, did_you_mean, nearest
from setpoint.model.huggingface.values import Unfit, type_problems, value_problems
from setpoint.model.pretrained.document import read_keys
from setpoint.model.pretrained.locate import locate
from setpoint.model.pretrained.quantized import KEY
from setpoint.shapes.torchao import quiet_torchao

if TYPE_CHECKING:
    from setpoint.model.config import HuggingFaceConfig

_PACKAGE = "model.type = huggingface needs the package {}: install 'setpoint[huggingface]'"


def config_keys(config: HuggingFaceConfig) -> dict[str, Any]:
    """Read the config.json that a section names, without its overrides.

    Returns:
        the keys; of a kind of models, which has no file, its name alone.

    Raises:
        SetpointError: if there is no such file.
    """
    if config.names_a_kind:
        return {"model_type": config.config}
    try:
        place = locate(config.config, weights=False)
    except SetpointError as error:
        raise type(error)(f"model.config = {error}") from error
    if place.kind == "checkpoint":
        raise Unfit(
            config,
            Problem(
                "config",
                "is a run or checkpoint of Setpoint, which holds weights and no config.json of "
                "transformers",
                hint="Set it to what the run's own model.config is.",
            ),
        )
    return read_keys(place.directory)


def architecture(
    config: HuggingFaceConfig, keys: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Any:
    """Make the config of transformers.

    Arguments:
        keys: of the config.json.
        overrides: those of the section, or some of them.

    Raises:
        Unfit: transformers has no such kind of models, no such key, or one of another type.
        Exception: as its classes raise it, where a value is wrong.
    """
    transformers = import_transformers()
    raw = {key: value for key, value in keys.items() if key != KEY}  # weights are made dense
    kind, kinds = str(raw.get("model_type")), list(transformers.CONFIG_MAPPING)
    if kind not in kinds:
        named = "" if config.names_a_kind else f", which its config.json names as {kind!r}"
        hint = "It is such a kind, a directory with a config.json, or an id of the hub."
        if raw.get("auto_map"):
            hint = "Program code that comes with it (auto_map, trust_remote_code) is not run."
        raise Unfit(
            config,
            Problem(
                "config",
                f"transformers {transformers.__version__} has no such kind of models{named}",
                valid=nearest(kind, kinds, 3) if config.names_a_kind else (),
                hint=hint,
            ),
        )
    # Of the class, so that no code that a directory brings is run.
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


def require_fit(config: HuggingFaceConfig, keys: Any, vocab_size: int) -> None:
    """Refuse an architecture whose numbers do not go together, or with the section.

    Raises:
        Unfit: see `value_problems`.
    """
    text = keys.get_text_config()
    for problem in value_problems(config, lambda key: getattr(text, key, None), vocab_size):
        raise Unfit(config, problem)


def import_transformers() -> Any:
    """Import the package, whose models import torchao where it is installed.

    Raises:
        SetpointError: it is not installed.
    """
    quiet_torchao()
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise SetpointError(_PACKAGE.format(repr(error.name))) from None
    return transformers


def one_line(error: Exception) -> str:
    """What an error of transformers says, on one line and not too long."""
    text = " ".join(str(error).split())
    if not text or isinstance(error, LookupError):  # which says no more than a key
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."
