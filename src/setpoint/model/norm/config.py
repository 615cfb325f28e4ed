"""The norms a model can be built with."""

from __future__ import annotations

from setpoint.config import Config, ImportedComponent, field


class NormConfig(Config):
    """Normalization layer; `norm_eps` of the model applies to all."""


class RMSNorm(NormConfig, type="rms_norm", owner="setpoint.model.norm.norms:RMSNorm"):
    """Root-mean-square norm (Zhang and Sennrich, 2019): x / rms(x) * weight."""

    zero_centered: bool = field(default=False)
    """Zero-centered weight (Gemma): the parameter is weight - 1, so weight decay pulls towards
    1."""


class LayerNorm(NormConfig, type="layer_norm", owner="setpoint.model.norm.norms:LayerNorm"):
    """Layer norm (Ba et al., 2016): (x - mean(x)) / std(x) * weight + bias."""

    bias: bool = True
    """Add a learned bias."""


class ImportedNorm(
    NormConfig, ImportedComponent, type="import", owner="setpoint.model.norm.norms:build_imported"
):
    """Any torch module by its import path; other keys are its arguments.

    It maps (..., dim) to (..., dim) and initializes itself. Where it takes dim or
    normalized_shape, and eps, it gets them.
    """

    allowed_modules = ("torch.nn",)
    runtime_arguments = ("dim", "normalized_shape", "eps")
