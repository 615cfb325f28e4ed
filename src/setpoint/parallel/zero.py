"""Data parallelism with DeepSpeed (ZeRO): steps and gathered tensors.

DeepSpeed concatenates the elements of all weights of a group, and each rank updates a contiguous
range of them: it replaces the parameters of the given optimizer with one flat tensor per group, to
which the optimizer state belongs.
"""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from setpoint.config import Problem, SetpointError
from setpoint.parallel.world import Replicas
from setpoint.shapes.placed import Placeable, in_memory

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from setpoint.parallel.config import Parallel
    from setpoint.parallel.world import World

State = Mapping[str, Any]
"""State of an optimizer for a weight, by its names."""


def engine_problems(config: Parallel) -> Iterator[Problem]:
    """Report an engine that is not installed."""
    if config.uses_deepspeed and find_spec("deepspeed") is None:
        yield Problem(
            "engine",
            "the package deepspeed is not installed (pip install 'setpoint[deepspeed]')",
            valid=("torch",),
        )


class ZeroReplicas(Replicas):
    """Data parallelism in which DeepSpeed owns and updates the weights.

    Arguments:
        settings: DeepSpeed's JSON settings.
        model: the model on its device, equal on all ranks; changed in place.
        optimizer: optimizer of the model's parameters, which DeepSpeed replaces with flat ones.
        computing: returns the autocast context of the model; DeepSpeed ends any outer one.

    Raises:
        SetpointError: DeepSpeed cannot be loaded.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        world: World,
        model: nn.Module,
        optimizer: Optimizer,
        computing: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        super().__init__(model)
        self.holds_state = True
        self.optimizer, self.world = optimizer, world
        self.groups: list[list[nn.Parameter]] = [
            list(group["params"]) for group in optimizer.param_groups
        ]
        self._shapes = {weight: weight.shape for weight in model.parameters()}
        self.count = sum(prod(shape) for shape in self._shapes.values())
        deepspeed = load_deepspeed(world.device)
        os.environ.setdefault("LOCAL_RANK", str(world.local_rank))  # required by DeepSpeed
        self.engine: Any = deepspeed.initialize(
            model=_Computed(model, computing),
            optimizer=optimizer,
            config=dict(settings),
            dist_init_required=False,
        )[0]
        self.stage: int = settings["zero_optimization"]["stage"]
        self.is_divided = self.stage == 3
        self.model = _outside_autocast(self.engine, world.device)

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Context of a micro-batch; an update follows the last one of a step."""
        self.engine.set_gradient_accumulation_boundary(last)
        yield

    def free(self) -> None:
        """See `Replicas.free`; DeepSpeed frees weights after each module."""

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of this rank's share of a mean; they are summed over all ranks.

        DeepSpeed divides sums by the number of ranks. With a non-finite loss all gradients are
        non-finite, so no rank updates.
        """
        value = loss.detach()
        self.engine.backward(loss * (self.world.size + (value - value)), scale_wrt_gas=False)

    def update(self) -> Tensor:
        """Clip the gradients by their norm and update the weights, unless the norm is not finite.

        Returns:
            the norm before clipping, a scalar; non-finite if nothing was updated.
        """
        self.engine.step()
        norm = self.engine.get_global_grad_norm()
        return torch.as_tensor(norm, dtype=torch.float32, device=self.world.device)

    def shape_of(self, tensor: Tensor) -> torch.Size:
        """See `Replicas.shape_of`."""
        shape = self._shapes.get(tensor)  # pyright: ignore[reportArgumentType]
        return tensor.shape if shape is None else shape

    def local_bytes(self) -> dict[str, int]:
        """See `Replicas.local_bytes`."""
        flat = sum(tensor.nbytes for _, tensor in self._flat())
        sizes = {"masters": flat}
        if self.stage > 1:
            sizes["gradients"] = flat
        if self.is_divided:
            parts: list[Any] = list(self._shapes)
            sizes["parameters"] = sum(tensor.ds_tensor.nbytes for tensor in parts)
        return sizes

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Gather the full weights and buffers of the model, one after another.

        Returns:
            pairs of name (as in `state_dict`) and tensor; all ranks take part in gathering each
            one.
        """
        for name, tensor in self.whole.state_dict(keep_vars=True).items():
            with self._gathered(tensor):
                yield name, tensor.detach()

    @torch.no_grad()
    def load(self, tensor: Tensor, full: Tensor) -> None:
        """Set a weight or buffer of the model to a full value that is equal on all ranks."""
        with self._gathered(tensor, changes=True):
            tensor.copy_(full)
        if tensor.requires_grad:
            self._set_partition(tensor, full.to(tensor.device), None)

    def states(self) -> Iterator[tuple[nn.Parameter, dict[str, Any]]]:
        """Gather the optimizer state of each weight, one after another; see `tensors`."""
        utils = import_module("deepspeed.utils")
        for weights, flat in self._flat():
            kept: dict[str, Any] = self.optimizer.state.get(flat, {})
            if kept:
                self._link(weights, flat)
            for weight in weights if kept else ():
                whole_state: dict[str, Any] = {}
                for key, value in kept.items():
                    if _is_by_element(value, flat):
                        full = utils.safe_get_full_optimizer_state(weight, key)
                        value = full.to(value.dtype)
                    whole_state[key] = value
                yield weight, whole_state

    @torch.no_grad()
    def restore(self, weight: nn.Parameter, state: State) -> None:
        """Restore the optimizer state of one weight.

        Arguments:
            state: tensors of the weight's shape, or values shared by all weights of its group.
        """
        weights, flat = next(group for group in self._flat() if any(w is weight for w in group[0]))
        kept = self.optimizer.state[flat]
        for key, value in state.items():
            if not isinstance(value, Tensor | Placeable) or value.shape != self.shape_of(weight):
                kept[key] = copy.copy(in_memory(value))
                continue
            if key not in kept:
                kept[key] = torch.zeros_like(flat, requires_grad=False)
                self._link(weights, flat)
            self._set_partition(weight, in_memory(value).to(weight.device), key)

    def twin(self, states: Mapping[nn.Parameter, State]) -> Optimizer:
        """An optimizer of the same kind and options for the model's own weights."""
        twin = copy.copy(self.optimizer)
        twin.param_groups = [
            {**group, "params": weights}
            for group, weights in zip(self.optimizer.param_groups, self.groups, strict=True)
        ]
        twin.state = dict(states)  # pyright: ignore[reportAttributeAccessIssue]
        return twin

    def _flat(self) -> list[tuple[list[nn.Parameter], Tensor]]:
        """Groups of weights, each with this rank's flat partition."""
        zero = self.engine.optimizer
        if not self.is_divided:
            return list(zip(self.groups, zero.single_partition_of_fp32_groups, strict=True))
        # Groups of more than `sub_group_size` elements are updated in several parts.
        return list(zip(zero.fp16_groups, zero.fp32_partitioned_groups_flat, strict=True))

    def _link(self, weights: list[nn.Parameter], flat: Tensor) -> None:
        """Link DeepSpeed's optimizer state to the weights of a group.

        Done once, during the first update, when later groups have no state yet.
        """
        if not self.is_divided:
            utils = import_module("deepspeed.utils")
            utils.lazy_init_hp_params_optimizer_state(weights, flat, self.optimizer.state)

    def _gathered(self, tensor: Tensor, changes: bool = False) -> AbstractContextManager[Any]:
        """Context in which a tensor of the model is gathered on all ranks."""
        zero = import_module("deepspeed").zero
        # All ranks divide the final state of rank 0.
        return zero.GatheredParameters([tensor], modifier_rank=0 if changes else None)

    def _set_partition(self, weight: Tensor, full: Tensor, key: str | None) -> None:
        """Set this rank's partition of an fp32 weight, or of its optimizer state."""
        utils = import_module("deepspeed.utils")
        if not self.is_divided:
            if key is None:
                utils.safe_set_full_fp32_param(weight, full)
            else:
                utils.safe_set_full_optimizer_state(weight, full, key)
            return
        # The same length on all ranks; the last is padded.
        size = weight.ds_tensor.numel()  # pyright: ignore[reportAttributeAccessIssue]
        filled = torch.zeros(size * self.world.size, dtype=full.dtype, device=full.device)
        filled[: full.numel()] = full.flatten()
        local_shard = filled.narrow(0, size * self.world.rank, size)
        if key is None:
            utils.safe_set_local_fp32_param(weight, local_shard)
        else:
            utils.safe_set_local_optimizer_state(weight, local_shard, key)


def _outside_autocast(model: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Wrap a model to disable outer autocast, about which DeepSpeed would warn."""

    def call(*args: Any, **named: Any) -> Any:
        with torch.autocast(device.type, enabled=False):
            return model(*args, **named)

    return call


class _Computed(nn.Module):
    """Model that runs within a context of its own."""

    def __init__(
        self, model: nn.Module, computing: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        super().__init__()
        self.model, self.computing = model, computing

    def forward(self, *args: Any, **named: Any) -> Any:
        with self.computing():
            return self.model(*args, **named)


def load_deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed and set it up for a device.

    Raises:
        SetpointError: DeepSpeed is not installed, or cannot be loaded.
    """
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    # It calls functions of PyTorch by older names.
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)
    try:
        deepspeed: Any = import_module("deepspeed")
        ops: Any = import_module("deepspeed.ops")
    except (ImportError, OSError, RuntimeError) as error:
        raise SetpointError(
            f"parallel.engine = deepspeed: the package deepspeed cannot be loaded: {error}\n"
            f"Valid: torch, or pip install 'setpoint[deepspeed]'"
        ) from error
    deepspeed.logger.setLevel(logging.ERROR)  # it warns about the given settings
    # A sum in shared memory for inference on CPUs, which would take minutes to compile.
    ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def _is_by_element(value: Any, flat: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == flat.shape
