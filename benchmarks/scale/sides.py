"""Models that ranks divide by hand, with PyTorch alone: what `scale.overhead` compares with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

from setpoint.model.layers import layers_of
from setpoint.shapes.batch import Batch

MAX_NORM = 1.0
"""What gradients are clipped at."""
Passes = Callable[[Sequence[Batch]], Tensor]
Clip = Callable[[Sequence[nn.Parameter]], object]


def clip_alike(parameters: Sequence[nn.Parameter]) -> object:
    """Clip parameters that are all of one kind: whole, or on one mesh."""
    return clip_grad_norm_(parameters, MAX_NORM)


class Side(NamedTuple):
    """What a rank trains by hand.

    Arguments:
        model: whose parameters the optimizer gets: those that this rank has.
        passes: runs forward and backward over the micro-batches of a step, and gives this rank's
            term of the mean loss, without gradient.
        clip: the gradients of the parameters it gets.
    """

    model: nn.Module
    passes: Passes
    clip: Clip = clip_alike


def replicated(model: nn.Module, ranks: int) -> Side:
    """DDP."""
    return _with_data(nn.parallel.DistributedDataParallel(model), ranks)


def sharded(model: nn.Module, ranks: int) -> Side:
    """FSDP2 over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    return _with_data(_sharded(model, init_device_mesh("cpu", (ranks,))), ranks)


def hybrid(model: nn.Module, ranks: int) -> Side:
    """FSDP2 over two ranks, replicated over the others."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("replicate", "shard"))
    return _with_data(_sharded(model, mesh), ranks)


def tensor(model: nn.Module, ranks: int) -> Side:
    """Matrices, vocabulary and loss divided by `parallelize_module`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        loss_parallel,
        parallelize_module,
    )

    whole, column, row = Replicate(), ColwiseParallel(), RowwiseParallel()
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=whole),
        "output": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    for name, _ in layers_of(model):
        # The columns of a module share one sum of the gradients of their input.
        plan[f"{name}.attention"] = PrepareModuleInput(
            input_layouts=(whole, None), desired_input_layouts=(whole, None)
        )
        plan[f"{name}.feed_forward"] = PrepareModuleInput(
            input_layouts=(whole,), desired_input_layouts=(whole,)
        )
        columns = ("attention.query", "attention.key", "attention.value")
        for inner in (*columns, "feed_forward.gate", "feed_forward.up"):
            plan[f"{name}.{inner}"] = column
        plan |= {f"{name}.attention.output": row, f"{name}.feed_forward.down": row}
    parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan)

    def passes(batches: Sequence[Batch]) -> Tensor:
        with loss_parallel():
            loss: Any = _loss(model, batches[0])
            loss.backward()
        return loss.detach().full_tensor() / ranks

    return Side(model, passes, clip_apart)


def pipeline(model: Any, ranks: int) -> Side:
    """One stage on each rank, by `PipelineStage` and `Schedule1F1B`."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    model.keep_parts(stages_of(len(model.layers), ranks)[rank])
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    schedule: Any = None

    def passes(batches: Sequence[Batch]) -> Tensor:
        nonlocal schedule
        if schedule is None:
            schedule = Schedule1F1B(stage, len(batches), loss_fn=_cross_entropy)
        losses: list[Tensor] = []
        given: Any = {"return_outputs": False}
        if stage.is_last:
            given |= {"target": torch.cat([batch.targets for batch in batches]), "losses": losses}
        first = [torch.cat([batch.inputs for batch in batches])] if stage.is_first else []
        schedule.step(*first, **given)
        return torch.stack(losses).mean().detach() if losses else torch.zeros(())

    return Side(model, passes, lambda parameters: clip_apart(parameters, own=True))


def stages_of(layers: int, ranks: int) -> list[list[str]]:
    """The parts of a model in each stage of a pipeline: as many layers in one as in another."""
    names = [f"layers.{layer}" for layer in range(layers)]
    each = layers // ranks
    stages = [names[first : first + each] for first in range(0, layers, each)]
    stages[0].insert(0, "embedding")
    stages[-1].append("output")
    return stages


def ulysses(model: nn.Module, ranks: int) -> Side:
    """Sequences divided among ranks, and heads during attention; weights by FSDP2."""
    rank = dist.get_rank()
    return _with_places(model, ranks, HeadsOfAll, ranks, [rank])


def ring(model: nn.Module, ranks: int) -> Side:
    """Sequences divided in zigzag, and keys and values passed round; weights by FSDP2."""
    rank = dist.get_rank()
    return _with_places(model, ranks, RoundAttention, 2 * ranks, [rank, 2 * ranks - 1 - rank])


class PartAttention(nn.Module):
    """Attention of a rank that has some places of each sequence; subclasses say how they mix.

    Arguments:
        whole: gives the projections; as many heads of keys as of queries.
        ranks: that divide each sequence.
    """

    def __init__(self, whole: Any, ranks: int) -> None:
        super().__init__()
        self.query, self.key, self.value = whole.query, whole.key, whole.value
        self.output = whole.output
        self.kind, self.head_dim, self.scale = whole.kind, whole.head_dim, whole.scale
        self.ranks = ranks

    def forward(self, x: Tensor, context: Any) -> Tensor:
        """Mix what (B, S / ranks, dim) places of this rank see of all S."""
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim))
            for project in (self.query, self.key, self.value)
        )
        query, key = (context.apply_rotary(each, self.kind) for each in (query, key))
        return self.output(self.mix(query, key, value).flatten(2))

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """From (B, S / ranks, heads, D) each to the same."""
        raise NotImplementedError


class HeadsOfAll(PartAttention):
    """Each rank attends with some heads, to all places."""

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `PartAttention`."""
        # (3, B, S / ranks, ranks, heads / ranks, D), and the ranks that get them first.
        sent = torch.stack((query, key, value)).unflatten(3, (self.ranks, -1))
        got = _swapped(sent.permute(3, 0, 1, 2, 4, 5))
        # (3, B, heads / ranks, ranks, S / ranks, D)
        query, key, value = got.permute(1, 2, 4, 0, 3, 5).flatten(3, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
        # Back: (ranks, B, S / ranks, heads / ranks, D), the heads of each rank.
        back = _swapped(mixed.unflatten(2, (self.ranks, -1)).permute(2, 0, 3, 1, 4))
        return back.permute(1, 2, 0, 3, 4).flatten(2, 3)


class RoundAttention(PartAttention):
    """Each rank attends from its places, to keys and values that go round."""

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `PartAttention`."""
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        mixed: Any = _Round.apply(query, torch.stack((key, value)), self.scale)
        return mixed.transpose(1, 2)


class _Round(torch.autograd.Function):
    """Causal attention over a ring of ranks, each of which has an early and a late run of places.

    Keys and values of ranks before this one are seen in their early run, by all queries; those of
    ranks behind it in both, by the late ones.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, pair: Tensor, scale: float) -> Tensor:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        pair = pair.contiguous()
        ctx.scale, held = scale, pair
        out = query.new_zeros(query.shape)
        sums = query.new_full(query.shape[:-1], float("-inf"))
        for turn in range(ranks):
            coming, wait = _passed_on(held) if turn + 1 < ranks else (held, lambda: None)
            queries, keys = _seen(rank, turn, query.shape[2])
            key, value = held[..., keys, :]
            found, logs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                query[..., queries, :], key, value, is_causal=turn == 0, scale=scale
            )
            before = sums[..., queries]
            total = torch.logaddexp(before, logs)
            old, new = ((each - total).exp().unsqueeze(-1) for each in (before, logs))
            out[..., queries, :] = out[..., queries, :] * old + found * new
            sums[..., queries] = total
            wait()
            held = coming
        ctx.save_for_backward(query, pair, out, sums)
        return out

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        query, held, out, sums = ctx.saved_tensors
        rank, ranks = dist.get_rank(), dist.get_world_size()
        back = torch.zeros_like(query)
        around = torch.zeros_like(held)
        for turn in range(ranks):
            coming, wait = _passed_on(held) if turn + 1 < ranks else (held, lambda: None)
            queries, keys = _seen(rank, turn, query.shape[2])
            key, value = held[..., keys, :]
            of_query, *of_pair = (
                torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    grad[..., queries, :],
                    query[..., queries, :],
                    key,
                    value,
                    out[..., queries, :],
                    sums[..., queries],
                    0.0,
                    turn == 0,
                    scale=ctx.scale,
                )
            )
            back[..., queries, :] += of_query
            around[..., keys, :] += torch.stack(of_pair)
            wait()
            held = coming
            # Gradients follow their keys and values, and are at home after a whole round.
            around, wait = _passed_on(around)
            wait()
        return back, around, None


def _seen(rank: int, turn: int, length: int) -> tuple[slice, slice]:
    """Which queries see which keys of those that come in a turn."""
    whole, half = slice(0, length), length // 2
    if turn == 0:
        return whole, whole
    return (whole, slice(0, half)) if turn <= rank else (slice(half, length), whole)


def _passed_on(held: Tensor) -> tuple[Tensor, Callable[[], None]]:
    """Send a tensor to the next rank, and get that of the rank before once it has been waited."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    coming = torch.empty_like(held)
    given = dist.P2POp(dist.isend, held, (rank + 1) % ranks)
    taken = dist.P2POp(dist.irecv, coming, (rank - 1) % ranks)
    pending = dist.batch_isend_irecv([given, taken])

    def wait() -> None:
        for each in pending:
            each.wait()

    return coming, wait


def expert(model: nn.Module, ranks: int) -> Side:
    """Experts divided among ranks; all other weights by FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh

    own: set[nn.Parameter] = set()
    for _, layer in layers_of(model):
        layer.feed_forward = OwnExperts(layer.feed_forward, ranks)
        own |= {layer.feed_forward.gate, layer.feed_forward.up, layer.feed_forward.down}
    divided = _sharded(model, init_device_mesh("cpu", (ranks,)), ignored_params=own)

    def passes(batches: Sequence[Batch]) -> Tensor:
        (batch,) = batches
        loss = _loss(divided, batch)
        loss.backward()
        for parameter in own:
            # The sum over the tokens of all ranks, of whose means FSDP2 takes the mean.
            assert parameter.grad is not None
            parameter.grad /= ranks
        return loss.detach() / ranks

    return Side(divided, passes, lambda parameters: clip_apart(parameters, own=True))


class OwnExperts(nn.Module):
    """A layer of experts, of which this rank has some: tokens go to theirs and come back.

    Arguments:
        whole: gives the router and the matrices of gated experts, of which some are kept.
        ranks: that divide them.
    """

    def __init__(self, whole: Any, ranks: int) -> None:
        super().__init__()
        self.router, self.activation, self.ranks = whole.router, whole.experts.activation, ranks
        matrices: Any = (whole.experts.gate, whole.experts.up, whole.experts.down)
        rank, self.count = dist.get_rank(), len(matrices[0]) // ranks
        kept = slice(rank * self.count, (rank + 1) * self.count)
        self.gate, self.up, self.down = (nn.Parameter(each[kept].clone()) for each in matrices)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, None]:
        """Transform (B, S, dim) positions; nothing is told of how tokens chose experts."""
        tokens = x.flatten(0, 1)
        choice = self.router(tokens)
        order = choice.experts.flatten().argsort(stable=True)
        experts = self.ranks * self.count
        leaving = torch.bincount(choice.experts.flatten(), minlength=experts)
        arriving = torch.empty_like(leaving)
        dist.all_to_all_single(arriving, leaving)
        arriving = arriving.view(self.ranks, -1)
        sent = leaving.view(self.ranks, -1).sum(1).tolist()
        received = arriving.sum(1).tolist()
        rows = _exchanged(tokens[order // choice.experts.shape[1]], received, sent)
        # They come sorted by rank, then by expert.
        numbers = torch.arange(self.count).repeat(self.ranks)
        by_expert = numbers.repeat_interleave(arriving.flatten()).argsort(stable=True)
        ends = arriving.sum(0).cumsum(0).to(torch.int32)
        rows = rows[by_expert]
        inner = self.activation(F.grouped_mm(rows, self.gate, offs=ends))
        inner = inner * F.grouped_mm(rows, self.up, offs=ends)
        found = F.grouped_mm(inner, self.down, offs=ends)
        back = _exchanged(torch.empty_like(found).index_copy(0, by_expert, found), sent, received)
        choices = torch.empty_like(back).index_copy(0, order, back)
        choices = choices.unflatten(0, choice.weights.shape) * choice.weights.unsqueeze(-1)
        return choices.sum(1).view_as(x), None


def clip_apart(parameters: Sequence[nn.Parameter], own: bool = False) -> None:
    """Clip parameters of which some are DTensors and others are not, by one norm of all."""
    from torch.distributed.tensor import DTensor

    divided = [each for each in parameters if isinstance(each, DTensor)]
    plain = [each for each in parameters if not isinstance(each, DTensor)]
    squares = _norm(plain).square()
    if own:
        dist.all_reduce(squares)
    if divided:
        found: Any = _norm(divided)
        squares = squares + found.full_tensor().square()
    for kind in (plain, divided):
        clip_grads_with_norm_(kind, MAX_NORM, squares.sqrt())


def _norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    return get_total_norm([each.grad for each in parameters if each.grad is not None])


def _with_data(model: nn.Module, ranks: int) -> Side:
    """Ranks that read different data, whose gradients the model averages."""

    def passes(batches: Sequence[Batch]) -> Tensor:
        (batch,) = batches
        loss = _loss(model, batch)
        loss.backward()
        return loss.detach() / ranks

    return Side(model, passes)


def _with_places(
    model: nn.Module,
    ranks: int,
    attention: Callable[[Any, int], nn.Module],
    runs: int,
    own: Sequence[int],
) -> Side:
    """Ranks that have some places of each sequence."""
    from torch.distributed.device_mesh import init_device_mesh

    for _, layer in layers_of(model):
        layer.attention = attention(layer.attention, ranks)
    divided = _sharded(model, init_device_mesh("cpu", (ranks,)))

    def passes(batches: Sequence[Batch]) -> Tensor:
        (batch,) = batches
        places = torch.arange(batch.inputs.shape[1]).view(runs, -1)[list(own)].flatten()
        loss = _cross_entropy(divided(batch.inputs[:, places], places), batch.targets[:, places])
        loss.backward()
        return loss.detach() / ranks

    return Side(divided, passes)


def _sharded(model: nn.Module, mesh: Any, **given: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for _, layer in layers_of(model):
        fully_shard(layer, mesh=mesh, **given)
    fully_shard(model, mesh=mesh, reshard_after_forward=False, **given)
    return model


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return _cross_entropy(model(batch.inputs), batch.targets)


def _swapped(parts: Tensor) -> Tensor:
    """Part n of the first dimension goes to rank n, and its gradient comes back."""
    return _exchanged(parts.contiguous(), None, None)


def _exchanged(rows: Tensor, received: list[int] | None, sent: list[int] | None) -> Tensor:
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    everyone: Any = dist.group.WORLD
    return all_to_all_single_autograd(rows, received, sent, everyone)
