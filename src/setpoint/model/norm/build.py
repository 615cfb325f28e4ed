"""The norms of a model."""

from typing import TYPE_CHECKING

from torch import nn

from setpoint.config import owner_of

if TYPE_CHECKING:
    from setpoint.model.config import Transformer as TransformerConfig


def build_norm(config: "TransformerConfig", dim: int) -> nn.Module:
    """Make one norm of a model.

    Not by `config.norm.build`, which gives one object for one section: each norm of a model has
    parameters of its own.
    """
    return owner_of(type(config.norm))(config.norm, dim=dim, eps=config.norm_eps)
