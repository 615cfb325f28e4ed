"""What the optimizer needs of the other sections, as far as the configuration tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from setpoint.config import Problem, SetpointError
from setpoint.model.config import Transformer
from setpoint.model.size import unknown_size
from setpoint.optim.section import pattern_problems
from setpoint.train.vocabulary_fit import known_vocabulary
from setpoint.train.when import fused

if TYPE_CHECKING:
    from setpoint.model.config import ModelConfig
    from setpoint.optim.section import OptimizerConfig
    from setpoint.shapes.parameter import Parameter
    from setpoint.train.config import Job


def optimizer_problems(job: Job) -> Iterator[Problem]:
    """Look for what the optimizer cannot do with this job."""
    if is_listed(job.model) and job.optimizer.has_patterns and _can_be_searched(job.optimizer):
        yield from _unmatched(job, vocabulary=1)
    if job.parallel.device == "cpu" and fused(job):
        yield from fused_problems(job)


def built_pattern_problems(job: Job) -> Iterator[Problem]:
    """Hold patterns against the parameters of a model that only building it tells."""
    try:
        yield from _unmatched(job, known_vocabulary(job.tokenizer) or 1)
    except SetpointError as error:
        yield Problem("model", str(error))


def fused_problems(job: Job) -> Iterator[Problem]:
    """Look whether the device is one on which fused SGD does not update weights in bf16.

    Arguments:
        job: the configuration, for which `fused`; whether an open device is a CPU is
            up to torch.
    """
    if job.parallel.device == "auto":
        from torch import cuda

        if cuda.is_available():
            return
    yield Problem(
        "optimizer.implementation",
        "PyTorch's fused SGD does not update bf16 weights on a CPU",
        valid=("auto", "foreach", "loop"),
        also=("precision.params", "parallel.device"),
    )


def is_listed(model: ModelConfig) -> bool:
    """Say whether the parameters of a model are known without building it."""
    return isinstance(model, Transformer) and unknown_size(model) is None


def trained(job: Job, vocabulary: int) -> Sequence[Parameter]:
    """List the parameters that a job will train, without their values.

    Arguments:
        vocabulary: how many tokens there are.

    Returns:
        the parameters; those of models that are not Setpoint's own are found by building the model
        on the meta device.

    Raises:
        SetpointError: the model cannot be built.
    """
    return trained_and_frozen(job, vocabulary)[0]


def trained_and_frozen(job: Job, vocabulary: int) -> tuple[Sequence[Parameter], int]:
    """List the parameters that a job will train, and count the numbers in its others.

    Arguments:
        vocabulary: how many tokens there are.

    Returns:
        the parameters, as `trained` gives them, and how many numbers frozen ones have.

    Raises:
        SetpointError: the model cannot be built.
    """
    model = job.model
    if isinstance(model, Transformer) and is_listed(model):
        from setpoint.model.parameters import parameters_of

        return list(parameters_of(model, vocabulary)), 0
    try:
        from setpoint.model.build import build_outline
        from setpoint.train.build.parameter_groups import trained_parameters
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"only the model itself knows its parameters, and building it needs the package "
            f"{error.name!r}: install PyTorch"
        ) from None
    built = build_outline(model, vocabulary)
    frozen = sum(each.numel() for each in built.parameters() if not each.requires_grad)
    return trained_parameters(built), frozen


def _unmatched(job: Job, vocabulary: int) -> Iterator[Problem]:
    from setpoint.optim.grouping import unmatched

    # Which names there are does not depend on the vocabulary.
    for problem in unmatched(job.optimizer, trained(job, vocabulary)):
        yield within_optimizer(problem)


def _can_be_searched(config: OptimizerConfig) -> bool:
    """Whether all patterns are regular expressions, which the section itself sees to."""
    patterns = [group.pattern for group in config.groups]
    for field in config.patterns:
        patterns.extend(getattr(config, field))
    return not any(True for each in patterns for _ in pattern_problems("", each))


def within_optimizer(problem: Problem) -> Problem:
    """Turn a problem of the section into one of the job."""
    return Problem(
        f"optimizer.{problem.path}",
        problem.message,
        valid=problem.valid,
        also=[f"optimizer.{path}" for path in problem.also],
        hint=problem.hint,
    )
