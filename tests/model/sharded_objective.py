"""Run on each rank by sharded_ranks.py: what is minimized, under FSDP2 and in one process."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from setpoint.loss.config import ChunkedCrossEntropy, CrossEntropy
from setpoint.model.initialize import initialize
from setpoint.model.moe.layer import update_biases
from setpoint.model.transformer import Transformer
from setpoint.shapes.batch import IGNORE_INDEX
from setpoint.train.objective import Objective

from ..support.tensors import make_batch
from .families import FAMILIES, SPARSE
from .small import VOCAB, small_config, small_model

LOSSES = (CrossEntropy(z_loss=0.1), ChunkedCrossEntropy(chunk_size=5, z_loss=0.1))


def sharded_from_meta(
    policy: MixedPrecisionPolicy, *, has_last_group: bool = False, **changes: Any
) -> Transformer:
    with torch.device("meta"):
        model = Transformer(small_config(**changes), vocab_size=VOCAB)
    for layer in model.layers.values():
        fully_shard(layer, mp_policy=policy)
    if has_last_group:
        # Gathered for the norm, and so for the head, which does not call the output.
        fully_shard([model.norm, model.output], mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The loss of a rank is its share of the global mean: gradients add up. Gloo cannot
            # divide while it adds, not even by one.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    model.to_empty(device="cpu")
    initialize(model, 3)
    return model


def global_batch(world: int) -> list[tuple[Tensor, Tensor]]:
    """Two rows for each rank, of which unequally many targets count."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randint(VOCAB, (2, 2 * world, 9), generator=generator)
    targets[0, 2:] = IGNORE_INDEX
    return list(zip(inputs.chunk(world), targets.chunk(world), strict=True))


def minimize(model: Transformer, loss: Any, parts: list[tuple[Tensor, Tensor]], whole: int) -> Any:
    """The loss and the counts of experts, of micro-batches whose gradients add up."""
    objective, total, counts = Objective(model, loss.build()), torch.zeros(()), 0
    for inputs, targets in parts:
        output, auxiliary, routing = objective(make_batch(inputs, targets))
        share = output.total
        if auxiliary is not None:
            share = share + auxiliary * (targets != IGNORE_INDEX).sum()
        (share / whole).backward()
        total += share.detach() / whole
        counts = counts if routing is None else counts + routing.counts
    return total, counts


def same_objective(
    rank: int, world: int, name: str, loss: Any, *, has_last_group: bool = False
) -> None:
    """One process takes dense models' batch at once; experts' losses are means over parts of it."""
    changes, parts = FAMILIES[name], global_batch(world)
    one = small_model(seed=3, **changes)
    model = sharded_from_meta(MixedPrecisionPolicy(), has_last_group=has_last_group, **changes)
    for each in (one, model):
        for key, buffer in each.named_buffers():
            # So that the bias has a say.
            buffer.copy_(torch.linspace(-0.3, 0.3, len(buffer)))
            assert key.endswith("router.bias")
    at_once = [tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))]
    own = int((parts[rank][1] != IGNORE_INDEX).sum())
    summed = torch.tensor(own)
    dist.all_reduce(summed)
    whole = int(summed)
    assert own != whole - own

    expected, expected_counts = minimize(one, loss, parts if name in SPARSE else at_once, whole)
    found, counts = minimize(model, loss, [parts[rank]], whole)
    dist.all_reduce(found)
    torch.testing.assert_close(found, expected)
    for (key, sharded), parameter in zip(model.named_parameters(), one.parameters(), strict=True):
        assert sharded.grad is not None, key
        full = sharded.grad.full_tensor()
        torch.testing.assert_close(full, parameter.grad, rtol=1e-4, atol=1e-6, msg=key)

    if name in SPARSE:
        dist.all_reduce(counts)
        assert torch.equal(counts, expected_counts)
        update_biases(model, counts, 0.5)
        update_biases(one, expected_counts, 0.5)
        for (key, buffer), other in zip(model.named_buffers(), one.buffers(), strict=True):
            assert torch.equal(buffer, other), key


def mixed_precision(rank: int, world: int, name: str) -> None:
    """The engine computes in bf16: losses stay fp32, and near."""
    part = [global_batch(world)[rank]]
    whole = int((part[0][1] != IGNORE_INDEX).sum())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded_from_meta(policy, **FAMILIES[name])
    for loss in LOSSES:
        found, _ = minimize(model, loss, part, whole)
        expected, _ = minimize(small_model(seed=3, **FAMILIES[name]), loss, part, whole)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=0)


def objectives(rank: int, world: int) -> None:
    for loss in LOSSES:
        same_objective(rank, world, "llama", loss, has_last_group=True)
    for name in FAMILIES:
        for loss in LOSSES:
            same_objective(rank, world, name, loss)
        mixed_precision(rank, world, name)
