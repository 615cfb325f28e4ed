"""The model of a job, built in stages: outline, memory, first weights, frozen parameters, dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from setpoint.model.build import build_model
from setpoint.model.config import HuggingFaceModel, Transformer
from setpoint.model.initialize import Initializable, initialize
from setpoint.model.layers import layers_of
from setpoint.model.moe.exchange import build_exchange
from setpoint.model.parts import stage_sizes
from setpoint.model.pretrained.start import start_from
from setpoint.model.skeleton import materialize, move_buffers, skeleton
from setpoint.parallel.apply import divide
from setpoint.parallel.world import World
from setpoint.precision.build import shard_dtypes, sharding_policy, store_in
from setpoint.train.build.adapter import (
    adapter_rules,
    add_adapter,
    materialize_adapter,
    start_adapter,
    start_magnitudes,
)
from setpoint.train.build.parameter_groups import freeze, trained_parameters
from setpoint.units.dtype import DType

if TYPE_CHECKING:
    from setpoint.adapter.plan import Described
    from setpoint.model.moe.dispatch import Exchange
    from setpoint.parallel.experts import ExpertRanks
    from setpoint.parallel.pipeline import Stage
    from setpoint.shapes.parameter import Parameter
    from setpoint.shapes.reading import OneReader
    from setpoint.train.config import Job


Empty = Callable[[nn.Module, torch.device, torch.dtype], None]
"""Gives what lies on the meta device memory, as `materialize` does."""


class FirstModel(NamedTuple):
    """A model with its first weights, on its device.

    Arguments:
        full: fp32 weights by name, which become the masters; none where there are no masters.
        pretrained: what the record says of the weights that it starts from; None for random ones.
        stages: of a pipeline, that this rank has; none where the model is not cut.
        described: all parameters that the whole model would train, where this rank has a part.
        adapted: what its adapter adapts, trains and freezes; None without one.
    """

    module: nn.Module
    full: dict[str, Tensor]
    pretrained: dict[str, Any] | None
    stages: list[Stage]
    described: list[Parameter] | None
    adapted: Described | None = None


def build_first_model(
    job: Job,
    vocab_size: int,
    device: torch.device,
    fresh: bool = True,
    keys: Mapping[str, Any] | None = None,
    division: Callable[[nn.Module], list[Stage]] = lambda model: [],
    one: OneReader | None = None,
    empty: Empty | None = None,
) -> FirstModel:
    """Build a model and give it its first weights.

    Setpoint's own begins without memory, gets it on its device in the dtype that it is kept in, and
    is filled there, so that no copy of it is held anywhere else; what shards it has its place
    before that. Others begin in memory, as only they know how they start: those without rules have
    initialized themselves, from the generators of the process.

    Arguments:
        fresh: whether the run begins now, so that `model.pretrained` counts.
        keys: of the config.json of a model of transformers; None: of `model.config`.
        division: leaves each rank its part of the parameters, which may have no values yet.
        one: the rank that reads for all of its group; None: each rank reads what it holds.
        empty: gives it memory of any content in place of first weights; None: it gets those.

    Raises:
        SetpointError: the model cannot be built, or the weights to start from do not fit it.
    """
    assert job.seed is not None
    pretrained = None
    offload = job.parallel.uses_fsdp and job.parallel.sharding.offload
    begins = torch.device("cpu") if offload or job.parallel.init_device == "cpu" else device
    starts = empty is None and fresh and job.model.pretrained is not None
    cut = job.parallel.divides_layers
    if isinstance(job.model, Transformer):
        model = skeleton(job.model, vocab_size)
        _use_float8(job, model, device)
        adapted = add_adapter(job, model)
        described = trained_parameters(model) if cut else None
        stages = division(model)
        # Masters are taken from the weights before these are rounded.
        dtype = torch.float32 if job.precision.master else DType(job.precision.params).torch()
        if starts:
            has_more = cut or job.adapter is not None
            whole = skeleton(job.model, vocab_size) if has_more else None
            pretrained = start_from(job.model, model, begins, dtype, whole, one)
            materialize_adapter(model, begins, dtype)
            start_adapter(model, job.seed)
        else:
            (empty or materialize)(model, begins, dtype)
            if empty is None:
                initialize(model, job.seed, adapter_rules(model))
                start_magnitudes(model)
    else:
        # Without memory where it gets no weights, as only a family of transformers can begin.
        is_planned = empty is not None and isinstance(job.model, HuggingFaceModel)
        with torch.device("meta") if is_planned else nullcontext():
            model = build_model(job.model, vocab_size, keys)
        if empty is None and isinstance(model, Initializable):
            initialize(model, job.seed)
        if starts:
            pretrained = start_from(job.model, model, one=one)
        _use_float8(job, model, device)
        adapted = add_adapter(job, model)
        if empty is None:
            start_adapter(model, job.seed)
        described = trained_parameters(model) if cut else None
        stages = division(model if is_planned else model.to(begins))
        if empty is not None and is_planned:
            empty(model, begins, DType(job.precision.params).torch())
    if job.precision.float8 is not None:
        from setpoint.precision.float8 import require_parts_fit

        require_parts_fit(job.precision.float8, model, job.parallel.degrees["tensor"])
    freeze(job.optimizer, model, described)
    full = store_in(job.precision, model, _shards(job, model, stages))
    if offload:
        move_buffers(model, device)
    elif begins != device:
        model.to(device)
    return FirstModel(model, full, pretrained, stages, described, adapted)


def _use_float8(job: Job, model: nn.Module, device: torch.device) -> None:
    """Let linear layers multiply in float8, where the job says so; before they are adapted."""
    if job.precision.float8 is not None:
        from setpoint.precision.float8 import require_float8, use_float8

        require_float8(job.precision.float8, device)
        use_float8(job.precision.float8, model)


def divide_model(job: Job, world: World, model: nn.Module) -> list[Stage]:
    """Leave this rank its part of a model's parameters, where the job divides them.

    Returns:
        see `setpoint.parallel.apply.divide`.

    Raises:
        SetpointError: `[precision]` asks for what divided parameters cannot do.
    """
    policy = partial(sharding_policy, job.precision)

    def exchange(ranks: ExpertRanks) -> Exchange:
        of_ranks = ranks.group, ranks.alike, ranks.divides
        is_compiled = job.compile is not None
        return build_exchange(job.parallel.dispatch, job.model, *of_ranks, is_compiled)

    keeps_columns = type(job.loss).takes_columns and job.parallel.loss_parallel is not False
    layers = layers_of(model)
    is_cut = world.degrees.get("pipeline", 1) > 1
    tokens: int = getattr(model, "vocab_size", 0)
    sizes = stage_sizes(job.model, tokens, job.batch.sequence_length) if is_cut else None
    gathers = not keeps_columns
    return divide(job.parallel, world, model, layers, policy, exchange, gathers, sizes)


def set_shard_dtypes(job: Job, model: nn.Module, stages: Sequence[Stage]) -> None:
    """Choose in which dtypes FSDP2, where it shards a model, gathers and reduces each weight."""
    if job.parallel.uses_fsdp:
        from setpoint.parallel.gather import set_dtypes

        set_dtypes(stages or [model], shard_dtypes(job.precision, model))


def _shards(job: Job, model: nn.Module, stages: Sequence[Stage]) -> list[nn.Parameter]:
    """This rank's parts of the weights that FSDP2 shards."""
    if not job.parallel.uses_fsdp:
        return []
    from setpoint.parallel.gather import sharded_weights

    return [weight.shard for weight in sharded_weights(stages or [model])]
