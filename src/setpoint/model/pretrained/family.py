"""What a family of models is: the way from its config.json to ours and back, and its tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from setpoint.config import Config
from setpoint.model.config import LayerNormConfig, RMSNormConfig
from setpoint.model.pretrained.decoder import decoder_pieces
from setpoint.model.pretrained.document import Document
from setpoint.model.pretrained.kinds import layer_kinds

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig
    from setpoint.model.pretrained.pieces import Piece

GATED: Final = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
    "relu": "reglu",
}
"""Names of the activation, and what they stand for in a gated feed-forward network."""

UNGATED: Final = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
}
"""The same in one that is not gated."""

SIZES: Final = (
    "max_sequence_length",
    "dim",
    "layers",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn_dim",
    "rope_base",
    "norm_eps",
    "tie_embeddings",
)
"""Fields that every family writes."""

PLAIN: Final[Mapping[str, object]] = {
    "activation": "swiglu",
    "ffn_bias": False,
    "positions": "rotary",
    "rope_scaling": None,
    "rope_base_sliding": None,
    "attention_pattern": ("full",),
    "sliding_window": None,
    "attention_scale": None,
    "attention_soft_cap": None,
    "logit_soft_cap": None,
    "qk_norm": False,
    "qkv_bias": False,
    "attention_output_bias": False,
    "mla": None,
    "moe": None,
    "norm": "rms_norm",
    "norm_placement": "pre",
    "mup": None,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
}
"""What fields that change the logits must be for a family that does not write them."""


SECTIONS: Final = {"MLA": "latent attention", "MoE": "a mixture of experts", "MuP": "muP"}
"""What the sections are called, of which there is one kind."""


class Misfit(NamedTuple):
    """A value that a family has no word for.

    Arguments:
        field: of `TransformerConfig`.
    """

    field: str
    value: str
    wanted: str


class Family(ABC):
    """One `model_type` of transformers, with Llama's tensors unless it says otherwise."""

    model_type: str
    """The name in config.json."""

    architecture: str
    """The class that has its weights, with the head of a language model."""

    base: str = "model."
    """What stands before the names of all tensors but the head's."""

    writes: Sequence[str] = ()
    """The fields of `PLAIN` that it writes, whatever their value."""

    fixed: ClassVar[Mapping[str, object]] = {}
    """The fields of `PLAIN` that are something else in all its models."""

    surplus: Sequence[str] = (r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)
    """Patterns of the names, behind the base, of tensors that old files hold and that are computed
    here."""

    @abstractmethod
    def read(self, document: Document) -> dict[str, Any]:
        """Read the fields of our configuration."""

    @abstractmethod
    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """Write the keys of config.json but for those that all families have."""

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        """What this family cannot be."""
        wanted = {**PLAIN, **self.fixed}
        for name, value in wanted.items():
            if name not in self.writes and (found := meaning_of(config, name)) != value:
                yield Misfit(name, shown(found), shown(value))

    def pieces(self, config: TransformerConfig) -> list[Piece]:
        """How its tensors and ours are made of each other."""
        return decoder_pieces(config)


def meaning_of(config: TransformerConfig, name: str) -> object:
    """The value of a field, with what is said in other words brought to one form.

    Returns:
        None for a scale of attention that is the usual one; the pattern of the layers there are;
        a norm and a rule of positions by name.
    """
    value = getattr(config, name)
    if name == "attention_scale" and value == config.head_dim**-0.5:
        return None
    if name == "attention_pattern":
        kinds = tuple(layer_kinds(config))
        return kinds[:1] if len(set(kinds)) == 1 else kinds
    if isinstance(value, RMSNormConfig):
        return "rms_norm, zero-centered" if value.zero_centered else "rms_norm"
    if isinstance(value, LayerNormConfig):
        return "layer_norm" if value.bias else "layer_norm without bias"
    if isinstance(value, Config):
        return type(value).__setpoint__.tag or SECTIONS[type(value).__name__]
    return value


def activation_name(config: TransformerConfig, names: Mapping[str, str]) -> str:
    """The name of the activation in config.json.

    Arguments:
        names: `GATED` or `UNGATED`.
    """
    return next(name for name, meaning in names.items() if meaning == config.activation)


def unfit_activation(config: TransformerConfig, names: Mapping[str, str]) -> Iterator[Misfit]:
    """The misfit of an activation that has no name.

    Arguments:
        names: `GATED` or `UNGATED`.
    """
    if config.activation not in names.values():
        known = " or ".join(dict.fromkeys(names.values()))
        yield Misfit("activation", config.activation, known)


def shown(value: object) -> str:
    """A value as a file would have it.

    Arguments:
        value: of a field, or what `meaning_of` made of it.
    """
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, tuple):
        return f"[{', '.join(str(item) for item in value)}]"
    return str(value)
