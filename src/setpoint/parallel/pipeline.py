"""Pipeline parallelism: this rank's stages, and the schedules that run them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, distributed, nn

from setpoint.config import SetpointError
from setpoint.parallel.buckets import sum_in_buckets
from setpoint.parallel.hangs import limit_waits, meeting_time
from setpoint.parallel.pipelining import balanced, ranks_of_stages
from setpoint.shapes.outcome import supports_head
from setpoint.shapes.parameter import StagePart
from setpoint.shapes.protocols import NamesParts, Staged

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from setpoint.parallel.pipelining import Pipelining
    from setpoint.shapes.outcome import Outcome

T = TypeVar("T")


class Stage(nn.Module):
    """A pipeline stage: a contiguous part of a model.

    Its modules are shared with this rank's model, not copies.

    Arguments:
        number: the index of the stage among all `count` stages of the pipeline.
        full_model: this rank's model; the stage follows its mode (training or evaluation).
    """

    def __init__(self, model: nn.Module, number: int, count: int, full_model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._full_model = (full_model,)  # not a submodule
        self.number = number
        self.is_first, self.is_last = number == 0, number == count - 1
        self.compute: Callable[[Stage, Tensor], Tensor] | None = None
        """Called by a schedule in place of the model; see `Pipeline.run`."""

    def forward(self, x: Tensor, **given: Any) -> Any:
        """Call the model; if a schedule passes only `x`, run the schedule's own computation."""
        self.model.training = self._full_model[0].training
        if given:
            return self.model(x, **given)
        assert self.compute is not None
        return self.compute(self, x)


def keep_stages(
    config: Pipelining, model: nn.Module, ranks: int, rank: int, sizes: Sequence[StagePart] | None
) -> list[Stage]:
    """Reduce a model to this rank's pipeline stages.

    Arguments:
        model: changed in place; on the meta device, without values.
        ranks, rank: number of ranks in the pipeline, and the index of this rank.
        sizes: sizes that determine the split, unless it is configured; None: parameter counts of
            the parts.

    Returns:
        this rank's stages, in model order.

    Raises:
        SetpointError: the model cannot be split, or not into that many stages.
    """
    split = split_of(config, model, ranks, sizes)
    places = ranks_of_stages(ranks, len(split), config.known.is_v)
    stages = [stage for stage, place in enumerate(places) if place == rank]
    assert isinstance(model, Staged)
    model.keep_parts([name for stage in stages for name in split[stage]])
    if len(stages) == 1:
        return [Stage(model, stages[0], len(split), model)]
    return [Stage(part_of(model, split[stage]), stage, len(split), model) for stage in stages]


def split_of(
    config: Pipelining, model: nn.Module, ranks: int, sizes: Sequence[StagePart] | None
) -> list[list[str]]:
    """Assign the parts of a model to stages; see `keep_stages`.

    Raises:
        SetpointError: the model cannot be split, or not into that many stages.
    """
    parts = parts_of(model)
    count = config.stages(ranks)
    if config.split is not None:
        split = [list(names) for names in config.split]
        if [name for names in split for name in names] != parts:
            raise SetpointError(
                f"parallel.pipelining.split: the stages do not list the parts of the model, a "
                f"{type(model).__name__}, in order\nValid: stages of {', '.join(parts)}"
            )
        return split
    if count > len(parts):
        raise SetpointError(
            f"parallel.pipeline = {ranks}: the model, a {type(model).__name__}, has "
            f"{len(parts)} parts, but there are {count} stages\n"
            f"Valid: {len(parts)} stages or fewer"
        )
    return balanced(sizes or [_measured(model, name) for name in parts], count)


def parts_of(model: nn.Module) -> list[str]:
    """List the parts into which a model can be split.

    Raises:
        SetpointError: the model does not define its parts.
    """
    if not isinstance(model, Staged) or not supports_head(model):
        raise SetpointError(
            f"parallel.pipeline: the model, a {type(model).__name__}, does not define its pipeline "
            f"stages\nValid: 1, a model of type = transformer, or one with supports_head = "
            f"True, stream_width, stage_parts and keep_parts (setpoint.shapes.protocols.Staged)"
        )
    if any(True for _ in model.parameters(recurse=False)):
        raise SetpointError(
            f"parallel.pipeline: the model, a {type(model).__name__}, has parameters outside its "
            f"parts, which would belong to no stage\nValid: parameters in modules"
        )
    return model.stage_parts()


def _measured(model: nn.Module, part: str) -> StagePart:
    """Part of a model, with its number of parameters as cost."""
    if isinstance(model, NamesParts):
        modules = model.part_modules(part)
    else:
        modules = [module for name, module in model.named_modules() if name == part]
    size = sum(parameter.numel() for module in modules for parameter in module.parameters())
    return StagePart(part, size, size)


def part_of(model: nn.Module, names: Sequence[str]) -> nn.Module:
    """A model that shares some parts of another."""
    part = copy.copy(model)
    for key, value in vars(part).items():
        # Hooks, and which modules there are, are its own.
        if isinstance(value, dict):
            part.__dict__[key] = value.copy()
    assert isinstance(part, Staged)
    part.keep_parts(names)
    return part


class Pipeline:
    """Runner of this rank's stages, with a schedule of `torch.distributed.pipelining`.

    Activations and gradients are sent from rank to rank; everything else in a batch is available on
    all ranks of the pipeline. Shapes are given in advance, so no shape inference runs.

    Arguments:
        group: the ranks of the pipeline.
        dtype, transfer: dtypes of the residual stream, and of transfers between stages.
        backward_pass: returns a context for backward passes of a kind: `full`, `input` or `weight`.
    """

    def __init__(
        self,
        config: Pipelining,
        stages: Sequence[Stage],
        group: ProcessGroup,
        device: torch.device,
        dtype: torch.dtype,
        transfer: torch.dtype,
        backward_pass: Callable[[Any], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.config, self.stages, self.group = config, list(stages), group
        self.device, self.dtype, self.transfer = device, dtype, transfer
        self.backward_pass = backward_pass
        self.size = distributed.get_world_size(group)
        self.count = config.stages(self.size)
        self.places = ranks_of_stages(self.size, self.count, config.known.is_v)
        self.has_first = any(stage.is_first for stage in self.stages)
        self.has_last = any(stage.is_last for stage in self.stages)
        self.width = cast("Staged", self.stages[0].model).stream_width
        self.elsewhere: frozenset[str] = frozenset()
        """Names of tensors on other ranks of the pipeline."""
        self.counted_elsewhere: list[str] = []
        """Names of local parameters that an earlier rank has as well."""
        self._shared: list[tuple[nn.Parameter, ProcessGroup]] = []
        self._built: tuple[tuple[int, int], int] | None = None
        self._schedule: Any = None
        self._done: dict[Stage, int] = {}

    def run(
        self,
        shape: tuple[int, int],
        count: int,
        compute: Callable[[Stage, int, Tensor | None], Tensor],
    ) -> None:
        """Run the forward and backward passes of a step.

        Arguments:
            shape: (B, S) of every micro-batch.
            count: number of micro-batches.
            compute: called with a stage, a micro-batch index and the (B, S, dim) residual stream
                (None for the first stage); returns the residual stream, or in the last stage the
                scalar from which the backward pass starts.
        """
        if self._built != (shape, count):
            self._schedule, self._built = self._build(shape, count), (shape, count)
        self._done = dict.fromkeys(self.stages, 0)

        def call(stage: Stage, x: Tensor) -> Tensor:
            # Every schedule runs the micro-batches in order, stage by stage.
            number = self._done[stage]
            self._done[stage] += 1
            given = compute(stage, number, None if stage.is_first else x.to(self.dtype))
            return given if stage.is_last else given.to(self.transfer)

        for stage in self.stages:
            stage.compute = call
        numbers = torch.arange(count)
        target = {"target": numbers} if self.has_last else {}
        first = [numbers] if self.has_first else []
        try:
            self._schedule.step(*first, **target, return_outputs=False)
        except RuntimeError as error:
            raise _cause_of(error) from None

    def _build(self, shape: tuple[int, int], count: int) -> Any:
        """Build a schedule for a number of micro-batches of one shape."""
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import get_schedule_class

        backward_pass = self.backward_pass

        class Runner(PipelineStage):
            def backward_maybe_with_nosync(self, backward_type: Any, *given: Any, **named: Any):
                with backward_pass(backward_type):
                    return super().backward_maybe_with_nosync(backward_type, *given, **named)

        stream = torch.empty(*shape, self.width, dtype=self.transfer, device="meta")
        stream.requires_grad_()
        number = torch.empty(1, dtype=torch.int64, device="meta")
        scalar = torch.empty((), device="meta").requires_grad_()
        stages = [
            Runner(
                stage,
                stage.number,
                self.count,
                self.device,
                input_args=number if stage.is_first else stream,
                output_args=scalar if stage.is_last else stream,
                group=self.group,
            )
            for stage in self.stages
        ]
        known = self.config.known
        kind = get_schedule_class(known.torch)
        multi_stage = known.is_looped or known.is_v
        # The last stage returns its loss, already divided by the count of the whole step.
        return kind(
            stages if multi_stage else stages[0],
            count,
            loss_fn=lambda share, number: share,
            scale_grads=False,
        )

    def compare(self, model: nn.Module) -> None:
        """Find parameters shared with other ranks; a collective of the pipeline.

        Arguments:
            model: this rank's part of the model, including frozen parameters.
        """
        named = dict(model.named_parameters())
        rank = distributed.get_rank(self.group)
        trained = {name: name in named and named[name].requires_grad for name in model.state_dict()}
        names_by_rank = self.all_of(trained)
        other_names = [names for number, names in enumerate(names_by_rank) if number != rank]
        self.elsewhere = frozenset(name for names in other_names for name in names)
        groups: dict[tuple[int, ...], ProcessGroup] = {}
        for name in sorted(named):
            holders = tuple(number for number in range(self.size) if name in names_by_rank[number])
            if len(holders) == 1 or not trained[name]:
                continue
            if holders not in groups:
                ranks = [distributed.get_global_rank(self.group, holder) for holder in holders]
                waits = meeting_time()
                group: Any = distributed.new_group(ranks, waits, use_local_synchronization=True)
                limit_waits(group)
                groups[holders] = group
            self._shared.append((named[name], groups[holders]))
            if holders[0] != rank:
                self.counted_elsewhere.append(name)

    def all_of(self, value: T) -> list[T]:
        """Gather picklable values from all ranks of the pipeline, in its order."""
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self.group)
        return values

    @torch.no_grad()
    def sum_shared(self) -> None:
        """Sum the gradients of parameters shared by several ranks, such as tied embeddings."""
        for weight, group in self._shared:
            assert weight.grad is not None
            all_reduce = partial(distributed.all_reduce, group=group)
            sum_in_buckets([weight.grad], all_reduce, self.device)

    def evaluate(self, inputs: Tensor, **given: Any) -> Outcome | None:
        """Run the stages once, in order and without a backward pass.

        Arguments:
            inputs: (B, S) tokens.
            given: further arguments of the model.

        Returns:
            the result of the last stage; None on the other ranks.
        """
        outcome: Any = None
        sent = inputs
        for stage in self.stages:
            before = None if stage.is_first else self.places[stage.number - 1]
            x = inputs
            if before is not None:
                if before == self.places[stage.number]:
                    x = sent
                else:
                    size = (*inputs.shape, self.width)
                    x = torch.empty(size, dtype=self.transfer, device=self.device)
                    distributed.recv(x, group=self.group, group_src=before)
                x = x.to(self.dtype)
            outcome = stage(x, **given)
            if not stage.is_last:
                # As in training, which also rounds it between two stages of a rank.
                sent = outcome.result.to(self.transfer)
                after = self.places[stage.number + 1]
                if after != self.places[stage.number]:
                    distributed.send(sent, group=self.group, group_dst=after)
        return outcome if self.has_last else None


def _cause_of(error: BaseException) -> BaseException:
    """Error of a stage, without the tensor descriptions that PyTorch adds."""
    while isinstance(error, RuntimeError) and error.__cause__ is not None:
        error = error.__cause__
    return error


class _AddLoss(torch.autograd.Function):
    """Attaches a scalar to the residual stream, to be added to the loss in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        # A view could not be detached in place, which schedules do.
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return gradient, gradient.new_ones((), dtype=torch.float32)


def add_loss(x: Tensor, loss: Tensor) -> Tensor:
    """Add a scalar from this stage to the loss of the last stage.

    Arguments:
        x: the residual stream that the stage outputs.
        loss: fp32 scalar, a part of the minimized loss.
    """
    return _AddLoss.apply(x, loss)
