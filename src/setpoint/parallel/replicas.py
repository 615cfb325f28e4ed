"""Ranks that keep the same weights: how their gradients become one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from setpoint.config import SetpointError
from setpoint.parallel.sharding import FirstUnits, replicated_parameters
from setpoint.parallel.tensor import sum_over_tensor_ranks, summed_gradients
from setpoint.shapes.placed import part_here

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from setpoint.parallel.config import Parallel
    from setpoint.parallel.world import World


class Replicas:
    """What a step asks of the ranks that keep one set of weights; one rank alone has nothing to do.

    Arguments:
        model: whose parameters are divided already where they are to be.
    """

    holds_state = False
    """Whether the weights and the state of the optimizer are here, in a form of their own."""
    sums_by_hand = False
    """Whether gradients are summed here, not by DDP or FSDP2."""
    count: int | None = None
    """The number of elements of all weights; None where the parameters of the model tell."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Callable[..., Any] = model
        """What is called in training, which calls `whole`."""
        self.whole = model
        self.on_last: Callable[[], None] = lambda: None
        """Called in a backward pass that has all gradients, and only waits for sums, where DDP
        makes them."""

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Run a micro-batch of a step, the last of which is followed by an update."""
        yield

    def free(self) -> None:
        """Free the whole weights that a pass without gradients has left gathered.

        They would be taken for the weights of today, whatever has changed these since.
        """

    def shape_of(self, held: Tensor) -> torch.Size:
        """The whole shape of a weight or a buffer of the model."""
        return held.shape

    def held_here(self) -> dict[str, int]:
        """Bytes of what this rank holds otherwise than one rank would, by its part."""
        return {}


class TorchReplicas(Replicas):
    """Replicas of DDP, or parts of them of FSDP2.

    Arguments:
        is_graph: whether backward is one graph, in the middle of which DDP could not begin to sum.
    """

    def __init__(
        self, config: Parallel, world: World, model: nn.Module, is_graph: bool = False
    ) -> None:
        super().__init__(model)
        self._is_sharded = hasattr(model, "set_requires_all_reduce")
        self._keeps = config.reshard is False
        self._first = FirstUnits(model) if self._is_sharded else None
        self._accumulates_whole = config.accumulates_whole
        self._tensor = world.group("tensor")
        """The ranks that divide matrices; None where none do."""
        self._terms = [] if self._tensor is None else list(summed_gradients(model))
        self._sums: GradientSums | None = None
        self._buckets: _BucketViews | None = None
        self._replicated: GradientSums | None = None
        """Sums of the gradients that FSDP2 leaves alone; None where it has all."""
        if config.uses_fsdp and config.sharding.replicated:
            found = replicated_parameters(config, model, is_part=True).values()
            weights = [weight for weight in found if weight.requires_grad]
            axes = (*config.copying_axes, *config.sharding_axes)
            size = int(config.bucket_size * 2**20)
            self._replicated = GradientSums(weights, size, world.group(*axes), overlaps=False)
        if world.size > 1 and not self._is_sharded and not _is_divided(world):
            size = int(config.bucket_size * 2**20)
            trained = [weight for weight in model.parameters() if weight.requires_grad]
            # DDP takes gradients in the dtype of the weights only.
            if is_graph or any(weight.grad_dtype != weight.dtype for weight in trained):
                self._sums = GradientSums(trained, size, overlaps=not is_graph)
                self.sums_by_hand = True
            else:
                self.model = _replicated(model, world, config.bucket_size, lambda: self.on_last())
                self._buckets = _BucketViews(trained)

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Run a micro-batch: gradients go to the other ranks after the last one of a step only.

        Shards are the exception unless they accumulate whole gradients: these are divided among the
        ranks after each, and summed over the replicas at the last.
        """
        beside = self._replicated if last else None
        with self._shared(last), nullcontext() if beside is None else beside.summing():
            yield
        if last and self._tensor is not None:
            sum_over_tensor_ranks(self._terms, self._tensor)

    @contextmanager
    def _shared(self, last: bool) -> Iterator[None]:
        model: Any = self.model
        if self._is_sharded:
            model.set_requires_all_reduce(last)
            if self._accumulates_whole:
                model.set_requires_gradient_sync(last)
            if self._keeps:
                model.set_reshard_after_backward(last)
            elif self._first is not None:
                self._first.keep(last)
            yield
        elif self._sums is not None:
            with self._sums.summing() if last else nullcontext():
                yield
        elif self._buckets is not None:
            self._buckets.restore()
            with nullcontext() if last else model.no_sync():
                yield
            if last:
                self._buckets.keep()
        else:
            yield

    def free(self) -> None:
        """See `Replicas.free`."""
        for module in self.whole.modules():
            if hasattr(module, "set_requires_all_reduce"):
                module.reshard()  # pyright: ignore[reportCallIssue]


def _is_divided(world: World) -> bool:
    """Whether the ranks hold parts of one copy of the model, or FSDP2 keeps copies of stages."""
    return world.degrees["pipeline"] > 1 or world.degrees["tensor"] == world.size


def _replicated(
    model: nn.Module, world: World, bucket_size: float, on_last: Callable[[], None]
) -> nn.Module:
    """A model whose gradients are summed over all ranks (DDP)."""
    from torch.nn.parallel import DistributedDataParallel

    place = [world.device] if world.device.type == "cuda" else None
    # Buffers are moved by the same sums on all ranks; torch 2.13 has another name for this.
    names = signature(DistributedDataParallel.__init__).parameters
    kept: Any = {
        "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False
    }
    whole = DistributedDataParallel(
        model, device_ids=place, bucket_cap_mb=bucket_size, gradient_as_bucket_view=True, **kept
    )
    # DDP by itself would divide by the number of ranks. It refuses a hook with other annotations.
    whole.register_comm_hook(None, lambda _, bucket: _send(bucket, on_last))
    return whole


class _BucketViews:
    """Keeps gradients in the memory of DDP's buckets, in all micro-batches of a step.

    DDP moves them there when it sums them. Gradients that were set to None would begin beside it.
    """

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self.weights = weights
        self.views: list[Tensor] = []
        self.sums = 0

    def restore(self) -> None:
        """Give weights without a gradient zeros in a bucket."""
        pairs = zip(self.weights, self.views, strict=False)
        missing = [(weight, view) for weight, view in pairs if weight.grad is None]
        if missing:
            torch._foreach_zero_(  # pyright: ignore[reportPrivateImportUsage]
                [view for _, view in missing]
            )
        for weight, view in missing:
            weight.grad = view

    def keep(self) -> None:
        """Remember where gradients are, once DDP has its final buckets: after its first sum."""
        self.sums += 1
        if self.sums > 1:
            assert all(weight.grad is not None for weight in self.weights)
            self.views = [w.grad for w in self.weights if w.grad is not None]


def _send(bucket: Any, on_last: Callable[[], None]) -> torch.futures.Future[Tensor]:
    if bucket.is_last():
        on_last()
    return _sum(bucket.buffer())


def _sum(gradients: Tensor) -> torch.futures.Future[Tensor]:
    work = distributed.all_reduce(gradients, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


class GradientSums:
    """Sums gradients in buckets, each as soon as all of it is there, as DDP does.

    DDP takes gradients in the dtype of their weights only.

    Arguments:
        weights: those that are trained, in the order of the model; buckets are filled from the last
            one on, in whose order a backward pass reaches them.
        size: bytes of a bucket; a larger gradient is one by itself.
        group: the ranks; None: all.
        overlaps: whether buckets are sent within the backward pass; else when it has ended.
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        size: int,
        group: ProcessGroup | None = None,
        overlaps: bool = True,
    ) -> None:
        self.group = group
        self.buckets: list[list[nn.Parameter]] = [[]]
        room = size
        for weight in reversed(weights):
            needed = weight.numel() * (weight.grad_dtype or weight.dtype).itemsize
            if needed > room and self.buckets[-1]:
                self.buckets.append([])
                room = size
            room -= needed
            self.buckets[-1].append(weight)
        self._bucket = {
            weight: number for number, bucket in enumerate(self.buckets) for weight in bucket
        }
        self._missing: list[int] = []
        self._under_way: list[tuple[Tensor, Any]] = []
        for weight in weights if overlaps else ():
            weight.register_post_accumulate_grad_hook(self._arrived)

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Sum what a backward pass in the block completes; all ranks take part."""
        self._missing = [len(bucket) for bucket in self.buckets]
        try:
            yield
            while len(self._under_way) < len(self.buckets):  # experts that no token has met
                self._send()
            for bucket, (together, work) in zip(self.buckets, self._under_way, strict=True):
                work.wait()
                parts = together.split([part_here(weight).numel() for weight in bucket])
                for weight, part in zip(bucket, parts, strict=True):
                    assert weight.grad is not None
                    own = part_here(weight.grad)
                    own.copy_(part.view_as(own))
        finally:
            self._missing, self._under_way = [], []

    @torch.no_grad()
    def _arrived(self, weight: Tensor) -> None:
        if not self._missing:
            return  # a micro-batch that others follow
        number = self._bucket[weight]  # pyright: ignore[reportArgumentType]
        self._missing[number] -= 1
        if self._missing[number] < 0:
            raise SetpointError(
                "precision.reduce: a weight gets its gradient several times in one backward pass, "
                "and was summed over the ranks after the first\nValid: null, or "
                "memory.activation_checkpointing.reentrant = false"
            )
        # In one order on all ranks, whatever arrives first.
        while len(self._under_way) < len(self.buckets) and not self._missing[len(self._under_way)]:
            self._send()

    @torch.no_grad()
    def _send(self) -> None:
        bucket = self.buckets[len(self._under_way)]
        for weight in bucket:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight, dtype=weight.grad_dtype)
        grads = [part_here(weight.grad) for weight in bucket if weight.grad is not None]
        together = torch.cat([grad.reshape(-1) for grad in grads])
        work = distributed.all_reduce(together, group=self.group, async_op=True)
        self._under_way.append((together, work))
