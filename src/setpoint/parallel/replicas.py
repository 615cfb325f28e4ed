"""Data parallelism: gradient reduction over ranks with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from typing import TYPE_CHECKING, Any
from weakref import proxy

import torch
from torch import Tensor, distributed, nn

from setpoint.parallel.buckets import GradientSums
from setpoint.parallel.sharding import FirstUnits, replicated_parameters
from setpoint.parallel.tensor import sum_over_tensor_ranks, summed_gradients
from setpoint.parallel.world import Replicas, World

if TYPE_CHECKING:
    from setpoint.parallel.config import Parallel


class TorchReplicas(Replicas):
    """Data parallelism with DDP or FSDP2.

    Arguments:
        is_graph: whether the backward pass is one graph, which DDP cannot overlap.
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
        """The tensor-parallel group; None without one."""
        self._terms = [] if self._tensor is None else list(summed_gradients(model))
        self._sums: GradientSums | None = None
        self._buckets: _BucketViews | None = None
        self._replicated: GradientSums | None = None
        """Sums of the gradients that FSDP2 does not reduce; None without any."""
        if config.uses_fsdp and config.sharding.replicated:
            replicated = replicated_parameters(config, model, is_part=True).values()
            weights = [weight for weight in replicated if weight.requires_grad]
            axes = (*config.copying_axes, *config.sharding_axes)
            size = int(config.bucket_size * 2**20)
            self._replicated = GradientSums(weights, size, world.group(*axes), overlaps=False)
        if world.size > 1 and not self._is_sharded and not _is_divided(world):
            size = int(config.bucket_size * 2**20)
            trained = [weight for weight in model.parameters() if weight.requires_grad]
            # DDP supports gradients only in the dtype of the weights.
            if is_graph or any(weight.grad_dtype != weight.dtype for weight in trained):
                self._sums = GradientSums(trained, size, overlaps=not is_graph)
                self.sums_by_hand = True
            else:
                # A reference would be a cycle, which keeps the memory of the model.
                weak = proxy(self)
                self.model = _replicated(model, world, config.bucket_size, lambda: weak.on_last())
                self._buckets = _BucketViews(trained)

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Run a micro-batch; gradients are communicated only after the last one of a step.

        Sharded weights are the exception, unless they accumulate whole gradients: gradients are
        reduce-scattered after each micro-batch, and summed over the replicas after the last.
        """
        replicated = self._replicated if last else None
        with self._shared(last), nullcontext() if replicated is None else replicated.summing():
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
    """True if ranks store parts of one copy of the model, or FSDP2 keeps copies of stages."""
    return world.degrees["pipeline"] > 1 or world.degrees["tensor"] == world.size


def _replicated(
    model: nn.Module, world: World, bucket_size: float, on_last: Callable[[], None]
) -> nn.Module:
    """Wrap a model in DDP, which sums its gradients over all ranks."""
    from torch.nn.parallel import DistributedDataParallel

    place = [world.device] if world.device.type == "cuda" else None
    # The same sums on all ranks update the buffers; torch 2.13 renamed the option.
    names = signature(DistributedDataParallel.__init__).parameters
    kept: Any = {
        "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False
    }
    ddp = DistributedDataParallel(
        model, device_ids=place, bucket_cap_mb=bucket_size, gradient_as_bucket_view=True, **kept
    )
    # DDP itself would divide by the number of ranks. It refuses a hook with other annotations.
    ddp.register_comm_hook(None, lambda _, bucket: _send(bucket, on_last))
    return ddp


class _BucketViews:
    """Keeper of gradients in the memory of DDP's buckets, in all micro-batches of a step.

    DDP moves gradients there when it sums them. Gradients set to None would be allocated elsewhere.
    """

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self.weights = weights
        self.views: list[Tensor] = []
        self.sums = 0

    def restore(self) -> None:
        """Set missing gradients to zeros in their buckets."""
        pairs = zip(self.weights, self.views, strict=False)
        missing = [(weight, view) for weight, view in pairs if weight.grad is None]
        if missing:
            torch._foreach_zero_(  # pyright: ignore[reportPrivateImportUsage]
                [view for _, view in missing]
            )
        for weight, view in missing:
            weight.grad = view

    def keep(self) -> None:
        """Record the places of gradients in DDP's final buckets, after its first reduction."""
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
