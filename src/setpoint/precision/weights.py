"""Between the model and the optimizer: whose weights are updated, and with which gradients."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from setpoint.config import RunError
from setpoint.shapes.placed import Named, put
from setpoint.shapes.stored import stored_parts


def cast_parameters(model: nn.Module, dtype: torch.dtype, others: Collection[int] = ()) -> None:
    """Store a model's parameters in a format; buffers keep theirs.

    Buffers hold what is counted or computed once, such as angles and biases of routers, which
    would lose digits for good.

    Arguments:
        model: whose floating point parameters are changed in place; what is tied stays tied, and
            scales of quantized weights are what they are.
        others: ids of parameters that keep their format.
    """
    keep = {id(part) for part in stored_parts(model).values()} | set(others)
    held = [each for each in model.parameters() if id(each) not in keep]
    if all(each.dtype == dtype for each in held if each.is_floating_point()):
        return

    def cast(tensor: Tensor) -> Tensor:
        wanted = isinstance(tensor, nn.Parameter) and tensor.is_floating_point()
        return tensor.to(dtype) if wanted and id(tensor) not in keep else tensor

    model._apply(cast)


@runtime_checkable
class _Sharded(Protocol):
    """A DTensor, whose class takes a good part of a second to import."""

    def to_local(self) -> Tensor: ...


class OptimizerParams:
    """The parameters as the optimizer gets them: the model's own.

    Where gradients are added up in another format than the weights', the optimizer gets parameters
    over the same memory, with gradients in the weights' format: optimizers take no other.

    Arguments:
        model: as it will be trained; frozen parameters stay as they are.
        reduce: the format that gradients are added up in; None: that of each weight.
    """

    def __init__(self, model: nn.Module, reduce: torch.dtype | None = None) -> None:
        self.model = model
        self.held: dict[str, nn.Parameter] = {}
        # (of the model, of the optimizer), where these are two.
        self.pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        for name, weight in model.named_parameters():
            held = weight
            if weight.requires_grad and weight.is_floating_point():
                held = self._held(name, weight, reduce or weight.dtype)
                if reduce not in (None, weight.dtype):
                    weight.grad_dtype = reduce
            if held is not weight:
                self.pairs.append((weight, held))
            self.held[name] = held

    def _held(self, name: str, weight: nn.Parameter, reduce: torch.dtype) -> nn.Parameter:
        """What the optimizer gets for a weight that is trained."""
        del name
        return weight if reduce == weight.dtype else nn.Parameter(weight.detach())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What the optimizer is built over, by the names that the model has for it."""
        return iter(self.held.items())

    def parameters(self) -> list[nn.Parameter]:
        """What is updated, and so what is clipped."""
        return [held for held in self.held.values() if held.requires_grad]

    def grads_to_master(self) -> None:
        """Bring the gradients to where the optimizer looks, in the format that it takes.

        After the last backward pass of a step; the model's own gradients are given away one by
        one, so that no two copies of all are held.
        """
        for weight, held in self.pairs:
            held.grad = None if weight.grad is None else weight.grad.to(held.dtype)
            weight.grad = None

    def master_to_params(self) -> None:
        """Let the model's weights follow those of the optimizer, after it has updated them."""

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold beside the model's weights.

        Returns:
            tensors by the names of parameters; they are not copies.
        """
        return {}

    def model_state(self) -> dict[str, Tensor]:
        """The tensors of the model, as it computes with them.

        Returns:
            as `state_dict` gives them; not copies, unless they are rounded from sharded masters.
        """
        return self.model.state_dict()

    @torch.no_grad()
    def load(self, tensors: Named, partial: bool = False) -> None:
        """Go on from what a checkpoint holds.

        Whether or not the run before had masters, its most exact weights are what counts: masters
        are filled from a model's fp32 weights, and a model in fp32 from masters.

        Arguments:
            tensors: by the names of parameters: those of the model, and over them what `state`
                gave.
            partial: whether weights that are not among them stay what they are.

        Raises:
            RunError: if one is missing.
        """
        trained = {name: held for name, held in self.held.items() if held.requires_grad}
        missing = [name for name in trained if name not in tensors]
        if missing and not partial:
            others = f", nor {len(missing) - 1} others" if len(missing) > 1 else ""
            raise RunError(f"the checkpoint holds no weight {missing[0]} to go on from{others}")
        for name, held in trained.items():
            if name in tensors:
                put(held, tensors[name])
        self.master_to_params()


class MasterWeights(OptimizerParams):
    """The optimizer updates weights in fp32, and the model's are rounded from them.

    An update that is smaller than half the distance between two bf16 numbers, 1/256 to 1/512 of a
    weight, would be rounded away; here it adds up (Micikevicius et al., 2018).

    Weights in another format are their own masters: shards that are rounded when they are gathered.

    Arguments:
        model: as it will be trained, in its short format.
        full: its weights before they were cast, by name; what is missing is taken from the model.
            They become the masters, and are not copied where they are in place.
        reduce: the format that gradients are added up in; None: that of each weight.
        params: the short format.
    """

    def __init__(
        self,
        model: nn.Module,
        full: Mapping[str, Tensor] | None = None,
        reduce: torch.dtype | None = None,
        params: torch.dtype = torch.bfloat16,
    ) -> None:
        self._full, self.params = full or {}, params
        super().__init__(model, reduce)
        del self._full

    def _held(self, name: str, weight: nn.Parameter, reduce: torch.dtype) -> nn.Parameter:
        del reduce
        if weight.dtype != self.params:
            return weight
        full = self._full.get(name, weight).detach()
        return nn.Parameter(full.to(device=weight.device, dtype=torch.float32))

    @torch.no_grad()
    def master_to_params(self) -> None:
        """Round the model's weights from the masters."""
        weights = [_local(weight) for weight, _ in self.pairs]
        masters = [_local(master) for _, master in self.pairs]
        if weights:
            torch._foreach_copy_(weights, masters)  # pyright: ignore[reportPrivateImportUsage]

    def state(self) -> dict[str, Tensor]:
        """See `OptimizerParams.state`."""
        return {name: held.detach() for name, held in self.held.items() if held.requires_grad}

    def model_state(self) -> dict[str, Tensor]:
        """See `OptimizerParams.model_state`."""
        trained = {name for name, held in self.held.items() if held.requires_grad}
        state = super().model_state()
        return {n: t.to(self.params) if n in trained else t for n, t in state.items()}


def _local(tensor: Tensor) -> Tensor:
    """The part of a DTensor that lies here, since PyTorch copies no lists of DTensors."""
    return tensor.to_local() if isinstance(tensor, _Sharded) else tensor
