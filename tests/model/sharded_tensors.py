"""Run on each rank by sharded_ranks.py: tensor parallelism by DTensor."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from setpoint.config import SetpointError
from setpoint.model.initialize import initialize
from setpoint.model.transformer import Transformer

from .families import DENSE, FAMILIES
from .small import VOCAB, small_config, small_model


class SumOfGradients(ParallelStyle):
    """The identity on tensors that all ranks have; what their heads say of it is summed."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def shared(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
            everywhere = DTensor.from_local(output, device_mesh, [Replicate()], run_check=False)
            return everywhere.to_local(grad_placements=[Partial()])

        module.register_forward_hook(shared)
        return module


PLAN = {
    "attention.query": ColwiseParallel(),
    "attention.key": ColwiseParallel(),
    "attention.value": ColwiseParallel(),
    "attention.query_up": ColwiseParallel(),
    "attention.key_value_up": ColwiseParallel(),
    "attention.shared_key": SumOfGradients(),
    "attention.output": RowwiseParallel(),
    "feed_forward.gate": ColwiseParallel(),
    "feed_forward.up": ColwiseParallel(),
    "feed_forward.down": RowwiseParallel(),
}
# A rank normalizes its own heads, (B, S, heads, head_dim); the gradients of the weight are summed.
PLAN |= {
    f"attention.{name}": SequenceParallel(sequence_dim=2, use_local_output=True)
    for name in ("query_norm", "key_norm")
}
SHAPES = {**DENSE, "deepseek": {"mla": FAMILIES["deepseek"]["mla"]}}

# Where the output has a matrix of its own.
PLAN_OF_ENDS = {
    "embedding": RowwiseParallel(input_layouts=Replicate()),
    "output": ColwiseParallel(output_layouts=Replicate()),
}


def divided(world: int, **changes) -> Transformer:
    mesh = init_device_mesh("cpu", (world,))
    with torch.device("meta"):
        model = Transformer(small_config(**changes), vocab_size=VOCAB)
    for layer in model.layers.values():
        names = {name for name, part in layer.named_modules() if part is not None}
        parallelize_module(layer, mesh, {key: PLAN[key] for key in PLAN if key in names})
    if model.output is not None:
        parallelize_module(model, mesh, PLAN_OF_ENDS)
    model.to_empty(device="cpu")
    initialize(model, 3)
    return model


def tensor_parallel(rank: int, world: int, name: str) -> None:
    tokens = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    whole, model = small_model(seed=3, **SHAPES[name]), divided(world, **SHAPES[name])
    up = model.layers["0"].feed_forward.up.weight.to_local()
    assert torch.equal(up, whole.layers["0"].feed_forward.up.weight.chunk(world)[rank])
    logits, expected = model(tokens), whole(tokens)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    for each in (logits, expected):
        each.logsumexp(-1).sum().backward()
    for (key, parameter), other in zip(model.named_parameters(), whole.parameters(), strict=True):
        assert parameter.grad is not None, key
        grad = parameter.grad
        grad = grad.full_tensor() if isinstance(grad, DTensor) else grad
        torch.testing.assert_close(grad, other.grad, rtol=1e-4, atol=1e-5, msg=key)


def merged_is_refused(world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    model = small_model(merge_qkv=True)
    for layer in model.layers.values():
        parallelize_module(layer, mesh, {"attention.query_key_value": ColwiseParallel()})
    with pytest.raises(SetpointError, match="merge_qkv = true"):
        model(torch.zeros(1, 4, dtype=torch.int64))


def tensors(rank: int, world: int) -> None:
    for name in SHAPES:
        tensor_parallel(rank, world, name)
    merged_is_refused(world)
