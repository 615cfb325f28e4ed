"""Parameters of a job: trained and frozen, their groups, and their memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from setpoint.config import SetpointError
from setpoint.model.config import TransformerConfig
from setpoint.model.parameters import fused_parts_of, parameters_of
from setpoint.optim.config import (
    AdafactorConfig,
    AdamWConfig,
    AnyPrecisionAdamWConfig,
    LionConfig,
    MuonConfig,
    ScheduleFreeAdamWConfig,
    SGDConfig,
)
from setpoint.optim.grouping import gather, is_frozen
from setpoint.shapes.parameter import Parameter

if TYPE_CHECKING:
    from torch import Tensor, nn

    from setpoint.adapter.targets import AdapterReport, Described
    from setpoint.optim.config import OptimizerConfig
    from setpoint.optim.grouping import Gathered, Groups
    from setpoint.train.config import Job

WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of a number."""
STEP = 4
"""Bytes of the count of steps that some optimizers keep for each parameter, in fp32."""


def trained(job: Job, vocabulary: int) -> list[Parameter]:
    """List the parameters that a job will train.

    Arguments:
        vocabulary: the number of tokens.

    Raises:
        SetpointError: the model cannot be built.
    """
    parameters, _ = trainable_parameters(job, vocabulary)
    return [param for param in parameters if not is_frozen(job.optimizer, param.name)]


def trainable_parameters(job: Job, vocabulary: int) -> tuple[Sequence[Parameter], int]:
    """List the parameters that a job, with its adapter, would train without `optimizer.frozen`.

    Models other than Setpoint's own are built on the meta device.

    Returns:
        the parameters, and the number of elements frozen by the model itself or its adapter.

    Raises:
        SetpointError: the model cannot be built.
    """
    model = job.model
    if isinstance(model, TransformerConfig) and model.parameters_known:
        adapted_model = adapted(job, vocabulary)
        if adapted_model is not None:
            return adapted_model.trained, sum(prod(param.shape) for param in adapted_model.frozen)
        return list(parameters_of(model, vocabulary)), 0
    try:
        from setpoint.model.build import build_outline
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"only the model itself knows its parameters, and building it needs the package "
            f"{error.name!r}: install PyTorch"
        ) from None
    built = build_outline(model, vocabulary)
    add_adapter(job, built)
    frozen = sum(param.numel() for param in built.parameters() if not param.requires_grad)
    return trained_parameters(built), frozen


def add_adapter(job: Job, model: nn.Module) -> Described | None:
    """Add the job's adapter, if any, to its model, and freeze other parameters.

    Arguments:
        model: the whole model, on the meta device or with its weights, before it is divided.

    Returns:
        the parameters that it adapts, trains and freezes; None without an adapter.

    Raises:
        SetpointError: the section does not suit the model.
    """
    if job.adapter is None:
        return None
    from setpoint.adapter.low_rank import adapt

    fused = fused_parts_of(job.model) if isinstance(job.model, TransformerConfig) else {}
    return adapt(job.adapter, model, trained_parameters(model), fused, job.seed or 0)


def adapted(job: Job, vocabulary: int) -> Described | None:
    """Describe the adapter of a job from a list of parameters.

    Returns:
        None without an adapter, or if the description requires building the model.
    """
    model = job.model
    if (
        job.adapter is None
        or not isinstance(model, TransformerConfig)
        or not model.parameters_known
    ):
        return None
    from setpoint.adapter.targets import describe

    base = list(parameters_of(model, vocabulary))
    return describe(job.adapter, base, fused_parts_of(model))


def adapter_report(job: Job, adapter: Described) -> AdapterReport:
    """Count adapted, trained and frozen parameters, including `optimizer.frozen`."""
    from setpoint.adapter.targets import report_of

    frozen = [param for param in adapter.trained if is_frozen(job.optimizer, param.name)]
    names = {param.name for param in frozen}
    trained = [param for param in adapter.trained if param.name not in names]
    others = adapter._replace(trained=trained, frozen=[*adapter.frozen, *frozen])
    width = WIDTHS[job.precision.params]
    return report_of(others, width, width)


def state_widths(job: Job, parameter: Parameter) -> tuple[tuple[int, int], bool] | None:
    """Bytes of optimizer state per parameter element, and per parameter.

    Returns:
        both, and True if the state includes the elements counted by `factored`; None for imported
        optimizers and user classes, whose state is unknown.
    """
    optimizer = job.optimizer
    kept = job.precision.updated
    width, state_width = WIDTHS[kept], WIDTHS[job.precision.optimizer_state or kept]
    match optimizer:
        case AdamWConfig():
            return ((3 if optimizer.amsgrad else 2) * width, STEP), False
        case AnyPrecisionAdamWConfig():
            return (2 * state_width, STEP), False
        case ScheduleFreeAdamWConfig():
            return (2 * width, 0), False
        case SGDConfig():
            return (width * bool(optimizer.momentum), 0), False
        case LionConfig():
            return (state_width, 0), False
        case MuonConfig():
            is_muon = optimizer.treatment(parameter)["algorithm"] == "muon"
            return ((state_width, 0) if is_muon else (2 * state_width, STEP)), False
        case AdafactorConfig():
            return (width, STEP), True
        case _:
            return None


def factored(shape: tuple[int, ...]) -> int:
    """Count the row and column means of a matrix, or all numbers of another shape."""
    if len(shape) < 2:
        return prod(shape)
    return prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]


def trained_parameters(
    model: nn.Module, named: Iterable[tuple[str, Tensor]] | None = None
) -> list[Parameter]:
    """List the properties of parameters that determine their groups.

    Arguments:
        model: the model as it will be trained, possibly on the meta device.
        named: the tensor passed to the optimizer for each parameter name; None: the model's own.

    Raises:
        SetpointError: the model sets learning rates for parameters that do not exist.
    """
    from setpoint.model.build import inputs_first, packed_experts, parameter_kinds
    from setpoint.optim.grouping import multipliers_of

    kinds, rates, turned = parameter_kinds(model), multipliers_of(model), inputs_first(model)
    packed = packed_experts(model)
    tensors: Iterable[tuple[str, Any]] = model.named_parameters() if named is None else named
    return [
        Parameter(
            name,
            tuple(tensor.shape),
            kinds[name],
            rates.get(name, 1.0),
            name in turned,
            packed.get(name, ""),
            tensor,
        )
        for name, tensor in tensors
        if tensor.requires_grad
    ]


def freeze(config: OptimizerConfig, model: nn.Module) -> None:
    """Freeze the parameters whose names match patterns of `optimizer.frozen`.

    Tied parameters count as one, under its first name.
    """
    for name, parameter in model.named_parameters():
        if is_frozen(config, name):
            parameter.requires_grad_(False)


def groups_of(
    config: OptimizerConfig,
    model: nn.Module,
    named: Iterable[tuple[str, Tensor]] | None = None,
    all_trained: Sequence[Parameter] | None = None,
) -> Groups:
    """Assign the parameters of a model to its optimizer's parameter groups.

    Arguments:
        named: the tensor passed to the optimizer for each parameter name; None: the model's own.
        all_trained: all parameters of the whole model, if this is only a part; None: this is the
            whole model.

    Returns:
        groups in PyTorch's form; see `parameter_groups`. A part has all groups of the whole model,
        some of which may be empty.

    Raises:
        SetpointError: nothing is trainable.
    """
    from setpoint.optim.grouping import parameter_groups

    if all_trained is None:
        return parameter_groups(config, trained_parameters(model, named))
    tensors: dict[str, Any] = dict(model.named_parameters() if named is None else named)
    groups = parameter_groups(config, _unfrozen(config, all_trained))
    for group in groups:
        group["params"] = [(name, tensors[name]) for name, _ in group["params"] if name in tensors]
        if not group["params"]:
            group["param_names"] = []  # PyTorch requires them for all groups or none
    return groups


def gathered(
    config: OptimizerConfig, model: nn.Module, all_trained: Sequence[Parameter] | None = None
) -> list[Gathered]:
    """The groups of a model's parameters, with their settings.

    Arguments:
        all_trained: all parameters of the whole model, if this is only a part; None: this is the
            whole model.
    """
    parameters = all_trained and _unfrozen(config, all_trained)
    return gather(config, parameters or trained_parameters(model))


def _unfrozen(config: OptimizerConfig, all_trained: Sequence[Parameter]) -> list[Parameter]:
    return [param for param in all_trained if not is_frozen(config, param.name)]
