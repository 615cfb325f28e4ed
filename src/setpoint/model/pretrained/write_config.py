"""From the configuration of our transformer to a config.json of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from setpoint.config import SetpointError, did_you_mean
from setpoint.model.pretrained.families import FAMILIES, family_named

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig
    from setpoint.model.pretrained.family import Family, Misfit

TOKEN_IDS: Final = ("bos_token_id", "eos_token_id", "pad_token_id")
"""The keys of special tokens; where they are absent transformers has numbers of its own."""


def family_for(config: TransformerConfig, name: str | None = None) -> Family:
    """The family that a transformer of ours can be written as.

    Arguments:
        name: one of `FAMILIES`; None: the first that has all of it.

    Raises:
        SetpointError: if there is none, naming the fields that stand in the way of the nearest.
    """
    if name is not None and name not in FAMILIES:
        meant = did_you_mean(name, FAMILIES, " ")
        raise SetpointError(
            f"there is no family {name!r} of models here.{meant} Known: {', '.join(FAMILIES)}"
        )
    nearest: tuple[list[Misfit], Family] | None = None
    for each in FAMILIES if name is None else (name,):
        family = family_named(each)
        misfits = list(family.misfits(config))
        if not misfits:
            return family
        if nearest is None or _distance(misfits) < _distance(nearest[0]):
            nearest = (misfits, family)
    assert nearest is not None
    misfits, family = nearest
    lines = "\n  ".join(f"{m.field} = {m.value}; it would have to be {m.wanted}" for m in misfits)
    which = f"{family.model_type} models cannot be" if name else "no family of transformers is"
    raise SetpointError(
        f"the model cannot be written in the format of Hugging Face: {which} what it is. "
        + ("" if name else f"The nearest is {family.model_type}, but for:\n  ")
        + (f"In the way stands:\n  {lines}" if name else lines)
    )


def _distance(misfits: Sequence[Misfit]) -> tuple[bool, int]:
    # A family without experts is far from a model with them, whatever else it has.
    return any(misfit.field == "moe" for misfit in misfits), len(misfits)


def write_config(
    config: TransformerConfig,
    family: Family,
    *,
    vocab_size: int,
    dtype: str,
    token_ids: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of a config.json.

    Arguments:
        token_ids: values of `TOKEN_IDS`; null for those left out.

    Returns:
        keys and values; both transformers 4 and 5 read them.
    """
    return {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": vocab_size,
        **family.write(config),
        **{key: (token_ids or {}).get(key) for key in TOKEN_IDS},
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
