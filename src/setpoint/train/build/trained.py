"""What a job trains: its model, divided and on its device, its loss and its optimizer; no data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from setpoint.checkpoint.optimizer_state import Options, options_of
from setpoint.compile.apply import Compiled, compile_step
from setpoint.memory.apply import save_activations, save_state
from setpoint.model.layers import layers_of
from setpoint.optim.build import build_optimizer
from setpoint.parallel.apply import reader_of
from setpoint.parallel.engines import zero_settings
from setpoint.parallel.replicas import Replicas, TorchReplicas
from setpoint.parallel.zero import ZeroReplicas
from setpoint.precision.autocast import compute_in
from setpoint.precision.build import build_weights, state_dtype
from setpoint.train.build.model import (
    Empty,
    build_first_model,
    divide_model,
    set_shard_dtypes,
)
from setpoint.train.build.parameter_groups import groups_of, trained_parameters
from setpoint.train.build.parameters import adapter_report
from setpoint.train.objective import Objective, PipelineObjective, build_pipeline

if TYPE_CHECKING:
    import torch
    from torch import nn

    from setpoint.adapter.plan import AdapterReport
    from setpoint.parallel.pipeline import Pipeline
    from setpoint.parallel.world import World
    from setpoint.precision.weights import OptimizerParams
    from setpoint.shapes.parameter import Parameter
    from setpoint.train.config import Job


class Trained(NamedTuple):
    """Parts of `Components` that need no data; see there."""

    model: nn.Module
    objective: Objective
    replicas: Replicas
    weights: OptimizerParams
    optimizer: torch.optim.Optimizer
    options: Options
    pipeline: Pipeline | None
    described: list[Parameter] | None
    compiled: Compiled | None
    pretrained: dict[str, Any] | None
    adapter: AdapterReport | None = None


def build_trained(
    job: Job,
    vocab_size: int,
    world: World,
    sources: int = 1,
    fresh: bool = True,
    keys: Mapping[str, Any] | None = None,
    empty: Empty | None = None,
) -> Trained:
    """Build the model of a job, its loss and its optimizer.

    Arguments:
        sources: of the training data.
        fresh, keys, empty: see `build_first_model`.

    Raises:
        SetpointError: the model cannot be built, divided or stored as the job says.
    """
    assert job.seed is not None
    device = world.device
    model, full, pretrained, stages, described, adapted = build_first_model(
        job,
        vocab_size,
        device,
        fresh,
        keys,
        partial(divide_model, job, world),
        reader_of(job.parallel, world),
        empty,
    )
    layers = layers_of(model)
    has_layers = bool(layers) or not stages  # the last stage may be the output alone
    if has_layers:
        save_activations(job.memory, model, layers, device)
    compiled, is_graph = None, job.compile is not None and job.compile.scope == "graph"
    if job.compile is not None and has_layers and not is_graph:
        splits = job.parallel.splits_backward
        compiled = job.compile.build(model=model, layers=layers, splits_backward=splits)
    set_shard_dtypes(job, model, stages)
    float8 = job.precision.float8
    if float8 is not None and job.parallel.uses_fsdp and float8.gathers(job.parallel.reshard):
        from setpoint.precision.float8_gather import gather_in_float8

        gather_in_float8(stages or [model])
    weights = build_weights(job.precision, model, full, job.parallel.uses_fsdp)
    groups = groups_of(job.optimizer, model, weights.named_parameters(), described)
    optimizer = build_optimizer(job.optimizer, groups, state_dtype(job.precision), job.seed)
    save_state(job.memory, optimizer, device)
    if job.parallel.uses_deepspeed:
        described = trained_parameters(model)
    options = options_of(optimizer)
    replicas, settings = None, zero_settings(job)
    if settings is not None and world.size > 1:
        formats = job.precision
        computing = partial(compute_in, formats.compute, formats.params, world.device)
        replicas = ZeroReplicas(settings, world, model, optimizer, computing)
    # DDP would read values of the weights.
    by_hand = is_graph or empty is not None
    replicas = replicas or TorchReplicas(job.parallel, world, model, by_hand)
    loss, pipeline = job.loss.build(), None
    if job.parallel.splits_backward and hasattr(loss, "retains"):
        loss.retains = True
    if stages:
        pipeline = build_pipeline(job, world, model, stages)
        objective = PipelineObjective(model, loss, sources, pipeline)
    else:
        objective = Objective(model, loss, sources, replicas.model)
    if job.compile is not None and is_graph:
        compiled = compile_step(job.compile, objective)
    return Trained(
        model,
        objective,
        replicas,
        weights,
        optimizer,
        options,
        pipeline,
        described,
        compiled,
        pretrained,
        None if adapted is None else adapter_report(job, adapted),
    )
