"""Step engine for DeepSpeed (ZeRO), and its checkpoints.

Checkpoints consist of the same files as those of other runs: weights and states are gathered one by
one, and each rank writes its share.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from setpoint.checkpoint.loading import refuse_misfits
from setpoint.checkpoint.optimizer_state import capture_optimizer, saved_states
from setpoint.config import SetpointError
from setpoint.parallel.zero import ZeroReplicas
from setpoint.shapes.placed import Placeable, in_memory
from setpoint.train.engine import CompleteStep, Engine, Rates, Sums, raise_named

if TYPE_CHECKING:
    from setpoint.checkpoint.loading import LoadedCheckpoint
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job


class ZeroEngine(Engine):
    """Engine that reduces, clips and updates with DeepSpeed.

    It clips and updates in one call, which leaves the weights unchanged if the norm is not finite;
    all ranks know this before they agree on the step.
    """

    def __init__(self, job: Job, components: Components) -> None:
        super().__init__(job, components)
        assert isinstance(components.replicas, ZeroReplicas)
        self.zero = components.replicas
        self.is_ahead = False  # DeepSpeed reads the norm

    def backward(self, loss: Tensor) -> None:
        """See `Engine.backward`."""
        self.zero.backward(loss)

    def update(self, sums: Sums, rates: Rates) -> CompleteStep:
        """See `Engine.update`."""
        for group in self.components.optimizer.param_groups:
            group["lr"] = rates.lr * group.get("lr_multiplier", 1.0)
        with self.span("optimizer step"):
            try:
                norm = self.zero.update()
            except Exception as error:
                raise_named(error, self.job.optimizer)
        return self._gather(sums, norm).complete


@dataclass(slots=True)
class ZeroModel:
    """Weights in a checkpoint, in the common files; see `run_state.ModelState`."""

    zero: ZeroReplicas
    trained: bool = False

    def capture(self, into: Any, stack: ExitStack) -> None:
        """Capture this rank's share of the weights: full tensors, gathered one after another."""
        world = self.zero.world
        into.tensors["model"] = {
            name: tensor.to("cpu", copy=True)
            for number, (name, tensor) in enumerate(self.zero.tensors())
            if number % world.size == world.rank
        }

    def restore(self, saved: LoadedCheckpoint) -> None:
        """Load a checkpoint's most precise weights into the model and the optimizer.

        Raises:
            RunError: a tensor, named in the error, is missing, unexpected, or of another shape.
        """
        newest = {**saved.tensors["model"], **saved.tensors.get("master", {})}
        tensors: dict[str, Tensor] = self.zero.whole.state_dict(keep_vars=True)
        if saved.partial:
            tensors = {name: tensor for name, tensor in tensors.items() if name in newest}
        shapes = {name: self.zero.shape_of(tensor) for name, tensor in tensors.items()}
        refuse_misfits(saved.path, shapes, newest)
        for name, tensor in tensors.items():
            self.zero.load(tensor, in_memory(newest[name]))


@dataclass(slots=True)
class ZeroTraining:
    """The state of the optimizer in a checkpoint; see `run_state.OptimizerState`.

    Arguments:
        other_frozen: whether the frozen parameters may differ from those of the checkpoint; if so,
            either all trained parameters have state, or none.
    """

    zero: ZeroReplicas
    components: Components
    other_frozen: bool = False
    trained: bool = True

    def capture(self, into: Any, stack: ExitStack) -> None:
        """Capture this rank's share of the state; non-tensors on all ranks."""
        world, number = self.zero.world, count()

        def kept(value: Any) -> Any:
            """A tensor if this rank will write it, else its outline."""
            if not isinstance(value, Tensor):
                return value
            is_mine = next(number) % world.size == world.rank
            return value.to("cpu", copy=True) if is_mine else torch.empty_like(value, device="meta")

        states = {
            weight: {key: kept(value) for key, value in state.items()}
            for weight, state in self.zero.states()
        }
        named = self.components.weights.named_parameters()
        tensors, state = capture_optimizer(self.zero.twin(states), named, self.components.options)
        local = {name: tensor for name, tensor in tensors.items() if not tensor.is_meta}
        into.tensors["optimizer"], into.state["optimizer"] = local, state

    def restore(self, saved: LoadedCheckpoint) -> None:
        """Restore the state; the options of the optimizer come from the configuration.

        Raises:
            SetpointError: the checkpoint is from another optimizer, or from one that updated some
                weights more often than others.
        """
        zero, state = self.zero, saved.state.get("optimizer")
        if state is None and saved.partial:
            return
        assert state is not None
        named = dict(self.components.weights.named_parameters())
        files, partial = saved.tensors["optimizer"], saved.partial or self.other_frozen
        states = saved_states(zero.twin({}), named.items(), files, state, partial)
        trained = {
            name: zero.shape_of(weight) for name, weight in named.items() if weight.requires_grad
        }
        counts = {
            str([_plain(value) for value in states[name].values() if not _has_shape(value, shape)])
            for name, shape in trained.items()
            if name in states
        }
        if states and (len(states) < len(trained) or len(counts) > 1):
            raise SetpointError(
                f"parallel.engine = deepspeed: {saved.path} has some weights with more updates "
                f"than others, but DeepSpeed updates all of them together\nValid: torch"
            )
        for name, kept in states.items():
            zero.restore(named[name], kept)


def _has_shape(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, Tensor | Placeable) and value.shape == shape


def _plain(value: Any) -> Any:
    value = in_memory(value)
    return value.tolist() if isinstance(value, Tensor) else value


def zero_states(components: Components, other_frozen: bool) -> dict[str, Any]:
    """The states of weights and optimizer, which replace those of `run_state.states_of`."""
    assert isinstance(components.replicas, ZeroReplicas)
    zero = components.replicas
    return {"model": ZeroModel(zero), "optimizer": ZeroTraining(zero, components, other_frozen)}
