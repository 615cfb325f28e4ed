"""Model FLOPs utilization (MFU)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from setpoint.config import SetpointError
from setpoint.model.config import TransformerConfig
from setpoint.model.layers import count_parameters
from setpoint.model.parameters import FORMULAS, all_parameters, pair_size, training_flops
from setpoint.train.config import Job


@dataclass(frozen=True, slots=True)
class Utilization:
    """Formula and numbers of the model FLOPs utilization (MFU) of a run.

    Arguments:
        flops_per_token: what it gives; None where it cannot be computed.
        peak: operations per second of one device; None where unknown.
    """

    formula: str
    text: str
    meaning: str
    flops_per_token: float | None
    unknown: str | None
    peak: float | None
    source: str | None
    ranks: int

    @property
    def total_peak(self) -> float | None:
        """Operations per second of all devices; None where unknown."""
        return None if self.peak is None else self.peak * self.ranks

    def record(self) -> dict[str, Any]:
        """The entry in the record of a run.

        Returns:
            a mapping of plain values; `mfu` in the rows is tokens_per_second * flops_per_token /
            (peak_flops * ranks), the tokens being those of all ranks.
        """
        return {
            "formula": self.formula,
            "text": self.text,
            "meaning": self.meaning,
            "flops_per_token": self.flops_per_token,
            **({} if self.unknown is None else {"unknown": self.unknown}),
            "peak_flops": self.peak,
            "peak_source": self.source,
            "ranks": self.ranks,
        }


def utilization_of(
    job: Job, model: nn.Module, vocab_size: int, device: torch.device, parameters: int | None = None
) -> Utilization:
    """Find the inputs of MFU.

    Arguments:
        parameters: of the whole model, where `model` is a part of it; None: count them.
    """
    name = job.tracking.flops
    text, meaning = FORMULAS[name]
    flops, unknown = None, None
    try:
        flops = _flops_of(job, model, vocab_size, parameters)
    except SetpointError as error:
        unknown = str(error)
    peak, source = _peak_of(job, device)
    ranks = job.parallel.world_size
    return Utilization(name, text, meaning, flops, unknown, peak, source, ranks)


def _flops_of(job: Job, model: nn.Module, vocab_size: int, parameters: int | None) -> float:
    section, formula, length = job.model, job.tracking.flops, job.batch.sequence_length
    if formula == "all_parameters":
        pairs = _pair_sizes(job, model)
        return all_parameters(parameters or count_parameters(model), pairs, length)
    if not isinstance(section, TransformerConfig):
        tag = type(section).__setpoint__.tag
        raise SetpointError(
            f"tracking.flops = {formula}: which parameters of a model of type = {tag} are in "
            f"matrix products is not known; --tracking.flops all_parameters counts all of them"
        )
    return training_flops(section, formula, vocab_size=vocab_size, sequence_length=length)


def _pair_sizes(job: Job, model: nn.Module) -> int:
    """L H (Q + V): elements of a query and a value of all heads of all layers."""
    if isinstance(job.model, TransformerConfig):
        return job.model.layers * pair_size(job.model)
    from setpoint.model.huggingface.language_model import HuggingFaceModel

    # A model of the user's own may say it in the words of transformers, too.
    inner = model.model if isinstance(model, HuggingFaceModel) else model
    keys = getattr(inner, "config", None)
    layers = getattr(keys, "num_hidden_layers", None)
    heads = getattr(keys, "num_attention_heads", None)
    width = getattr(keys, "hidden_size", None)
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(width, int)):
        raise SetpointError(
            "tracking.flops = all_parameters: the model does not give the number of layers and "
            "heads of its attention"
        )
    size = getattr(keys, "head_dim", None) or width // heads
    return layers * heads * 2 * size


def _peak_of(job: Job, device: torch.device) -> tuple[float | None, str | None]:
    if job.tracking.peak_flops is not None:
        return job.tracking.peak_flops, "tracking.peak_flops"
    if device.type != "cuda":
        return None, None
    from setpoint.track.accelerators import peak_of

    peak = peak_of(torch.cuda.get_device_name(device))
    return (None, None) if peak is None else (peak.flops, peak.source)
