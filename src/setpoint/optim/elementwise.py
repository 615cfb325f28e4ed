"""Optimizers that update each element by itself: Lion, schedule-free AdamW, AdamW in any dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from setpoint.optim.optimizer import (
    GroupedOptimizer,
    decay_where_aligned,
    flag_of,
    is_dtensor,
    local_shard,
    unless,
)
from setpoint.optim.torch_optimizers import can_fuse
from setpoint.shapes.placed import box_of

# Its operations on lists are not exported.
_torch: Any = torch
AT_ONCE = 1 << 26
"""Numbers of parameters that go through the operations of a step together on a GPU."""


def foreach_groups(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Split parameters into lists for the foreach operations of a step.

    Returns:
        on a GPU, large lists within a limit on temporary memory; on a CPU, single parameters, so
        that results are still in the cache for the next operation.
    """
    some: list[Tensor] = []
    for p in parameters:
        if p.device.type == "cpu":
            yield [p]
        elif some and sum(local_shard(param, param).numel() for param in (*some, p)) > AT_ONCE:
            yield some
            some = [p]
        else:
            some.append(p)
    if some:
        yield some


class Lion(GroupedOptimizer):
    """Lion (Chen et al., 2023, https://arxiv.org/abs/2302.06675), algorithm 2.

    With the running mean m and the gradient g: u = sign(b1 m + (1 - b1) g), then p = p (1 - lr
    decay) - lr u, then m = b2 m + (1 - b2) g.

    Arguments:
        parameters: groups or parameters, as for torch optimizers.
        cautious_weight_decay: see `decay_where_aligned`.
        state_dtype: dtype of m; None: dtype of the parameter.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        parameters: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        cautious_weight_decay: bool = False,
        state_dtype: torch.dtype | None = None,
    ) -> None:
        options = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(parameters, {**options, "cautious_weight_decay": cautious_weight_decay})
        self.state_dtype = state_dtype

    def update(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            if not self.state[p]:
                self.state[p]["exp_avg"] = torch.zeros_like(p, dtype=self.state_dtype)
        for some in foreach_groups(params):
            parameters = [local_shard(p, p) for p in some]
            gradients = [local_shard(p.grad, p) for p in some if p.grad is not None]
            means = [local_shard(self.state[p]["exp_avg"], p) for p in some]
            with unless(flag_of(self), *parameters, *means):
                _update(parameters, gradients, means, group)


def _update(
    parameters: list[Tensor], gradients: list[Tensor], means: list[Tensor], group: dict[str, Any]
) -> None:
    """Take one step for one group."""
    lr, (beta1, beta2) = group["lr"], group["betas"]
    # A mean with fewer digits is computed in the dtype of its gradient.
    pairs = zip(means, gradients, strict=True)
    exact = [mean.to(torch.promote_types(mean.dtype, g.dtype)) for mean, g in pairs]
    updates = _torch._foreach_mul(exact, beta1)
    _torch._foreach_add_(updates, gradients, alpha=1 - beta1)
    _torch._foreach_sign_(updates)
    if group["cautious_weight_decay"] and group["weight_decay"]:
        for parameter, update in zip(parameters, updates, strict=True):
            decay_where_aligned(parameter, update, lr, group["weight_decay"])
    else:
        _torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
    _torch._foreach_add_(parameters, updates, alpha=-lr)
    _torch._foreach_mul_(exact, beta2)
    _torch._foreach_add_(exact, gradients, alpha=1 - beta2)
    for mean, value in zip(means, exact, strict=True):
        if value is not mean:
            mean.copy_(value)


COUNTERS = {"updates": 0, "lr_max": 0.0, "weight_sum": 0.0}
"""Counters of a group or parameter, before the first step."""


class ScheduleFreeAdamW(GroupedOptimizer):
    """Schedule-free AdamW (Defazio et al., 2024, https://arxiv.org/abs/2405.15682).

    Three points: z takes the steps, x is their weighted average, and gradients are taken at y = b1
    x + (1 - b1) z, which the parameters contain. With d = g / (sqrt(v / (1 - b2^k)) + eps) + decay
    y: z = z - lr d, and x = (1 - c) x + c z, where c is the share of the step's weight k^step_power
    lr_max^lr_power in the sum of all weights so far. x is not stored. Equal to AdamWScheduleFree of
    the package schedulefree 1.4.1 without its warm-up, since the group's lr already includes the
    schedule's warm-up. As in that package, a step overwrites the gradients.

    Steps and weights are counted per group, and separately for a parameter without gradients in
    some steps, as after freezing: its v and x depend only on its own steps.

    Arguments:
        parameters: groups or parameters, as for torch optimizers.
        lr_power: exponent of the largest rate so far in the weight of a step.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        parameters: Any,
        lr: float = 2.5e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        lr_power: float = 2.0,
        step_power: float = 0.0,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        powers = {"lr_power": lr_power, "step_power": step_power}
        super().__init__(parameters, {**options, **powers, **COUNTERS})

    def update(self, group: dict[str, Any]) -> None:
        params: list[Tensor] = []
        for p in group["params"]:
            state = self.state.get(p, {})
            if p.grad is not None:
                params.append(p)
                if not state:
                    state = self.state[p]
                    state["z"] = p.detach().clone()
                    state["exp_avg_sq"] = torch.zeros_like(p)
                    if group["updates"]:
                        state.update(COUNTERS)
            elif state and "updates" not in state:
                state.update({name: group[name] for name in COUNTERS})
        of_group = _advance(group, group)
        alike: dict[tuple[int, float], list[Tensor]] = {}
        for p in params:
            state = self.state[p]
            counted = _advance(state, group) if "updates" in state else of_group
            alike.setdefault(counted, []).append(p)
        for (number, share), those in alike.items():
            for some in foreach_groups(those):
                self._update(some, group, number, share)

    def _update(
        self, params: list[Tensor], group: dict[str, Any], number: int, share: float
    ) -> None:
        """Move y, z and the mean square of parameters for which this is the `number`-th step."""
        lr, (beta1, beta2) = group["lr"], group["betas"]
        y = [local_shard(p, p) for p in params]
        gradients = [local_shard(p.grad, p) for p in params if p.grad is not None]
        z = [local_shard(self.state[p]["z"], p) for p in params]
        squares = [local_shard(self.state[p]["exp_avg_sq"], p) for p in params]
        with unless(flag_of(self), *y, *z, *squares):
            _torch._foreach_mul_(squares, beta2)
            _torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
            roots = _torch._foreach_div(squares, 1 - beta2**number)
            _torch._foreach_sqrt_(roots)
            _torch._foreach_add_(roots, group["eps"])
            # The gradients are no longer needed, and memory is saved.
            steps = gradients
            _torch._foreach_div_(steps, roots)
            if group["weight_decay"]:
                _torch._foreach_add_(steps, y, alpha=group["weight_decay"])
            # y moves to b1 x + (1 - b1) z of the new x and z, without x.
            _torch._foreach_lerp_(y, z, share)
            _torch._foreach_add_(y, steps, alpha=lr * (beta1 * (1 - share) - 1))
            _torch._foreach_sub_(z, steps, alpha=lr)

    @contextmanager
    def averaged(self) -> Iterator[dict[Tensor, Tensor]]:
        """Put the average x into the parameters, and restore y exactly afterwards.

        Returns:
            a context; its value maps each parameter that has moved to y.
        """
        kept: dict[Tensor, Tensor] = {}
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if "z" in self.state.get(p, ()):
                        kept[p] = p.detach().clone()
                        z = local_shard(self.state[p]["z"], p)
                        local_shard(p, p).lerp_(z, 1 - 1 / group["betas"][0])
        try:
            yield kept
        finally:
            with torch.no_grad():
                for p, y in kept.items():
                    p.copy_(y)


def _advance(counters: dict[str, Any], group: dict[str, Any]) -> tuple[int, float]:
    """Count a step in place; return its number and its weight in the average."""
    number = counters["updates"] = counters["updates"] + 1
    counters["lr_max"] = max(group["lr"], counters["lr_max"])
    weight = number ** group["step_power"] * counters["lr_max"] ** group["lr_power"]
    counters["weight_sum"] += weight
    # All weights are zero until the first rate above 0.
    return number, weight / counters["weight_sum"] if counters["weight_sum"] else 0.0


Store = Callable[[Tensor, Tensor], object]
"""Writes values into a tensor of lower precision."""


@dataclass(frozen=True, slots=True)
class Adam:
    """One parameter with its gradient and AdamW state.

    Arguments:
        exp_avg, exp_avg_sq: running means of the gradient and of its square, updated in place.
        step: number of steps, an fp32 scalar, updated in place.
    """

    parameter: Tensor
    gradient: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The tensors that have the parameter's shape."""
        return self.parameter, self.gradient, self.exp_avg, self.exp_avg_sq


def adam_of(parameter: Tensor, state: dict[str, Any], dtype: torch.dtype | None) -> Adam:
    """The gradient and AdamW state of a parameter's local shard.

    Arguments:
        state: optimizer state of the parameter; if empty, it is initialized as in
            torch.optim.AdamW.
        dtype: dtype of new running means; None: dtype of the parameter.
    """
    assert parameter.grad is not None
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"] = torch.zeros_like(parameter, dtype=dtype)
        state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=dtype)
    if can_fuse([parameter]):
        # A fused kernel reads the step on the device of the weights, others on the CPU. Values from
        # a checkpoint or the host are on the CPU: torch moves them only for groups with `fused`.
        state["step"] = state["step"].to(parameter.device)
    return Adam(
        local_shard(parameter, parameter),
        local_shard(parameter.grad, parameter),
        local_shard(state["exp_avg"], parameter),
        local_shard(state["exp_avg_sq"], parameter),
        state["step"],
    )


def adam_step(
    states: Sequence[Adam],
    group: dict[str, Any],
    store: Store = Tensor.copy_,
    flag: Tensor | None = None,
) -> None:
    """Take a step of AdamW (Loshchilov and Hutter, 2019) with decoupled decay.

    If all tensors have the same dtype of at least 32 bits, this is PyTorch's own step, with its
    fused kernel if there is one. Otherwise each parameter is computed in the widest of its dtypes,
    at least fp32, and rounded once at the end, to the nearest number as in the fused kernel.

    Arguments:
        group: `lr`, `betas`, `eps`, `weight_decay` and `cautious_weight_decay`.
        flag: an fp32 scalar; 1 skips the step.
    """
    nearest = store is Tensor.copy_
    _torchs_step([one for one in states if _is_plain(one, nearest)], group, flag)
    for one in states:
        if _is_plain(one, nearest):
            continue
        wide = torch.float32
        for tensor in one.tensors:
            wide = torch.promote_types(wide, tensor.dtype)
        parameter, gradient, exp_avg, exp_avg_sq = (part.to(wide) for part in one.tensors)
        twin = Adam(parameter, gradient, exp_avg, exp_avg_sq, one.step)
        _torchs_step([twin], group, flag)
        for tensor, value in zip(one.tensors, twin.tensors, strict=True):
            if value is not tensor and tensor is not one.gradient:
                store(tensor, value)


def _is_plain(one: Adam, nearest: bool) -> bool:
    """True if PyTorch's own step gives the same result."""
    formats = {tensor.dtype for tensor in one.tensors}
    exact = one.parameter.dtype.itemsize >= 4 or (nearest and can_fuse([one.parameter]))
    return len(formats) == 1 and exact


def _torchs_step(states: Sequence[Adam], group: dict[str, Any], flag: Tensor | None) -> None:
    if not states:
        return
    (beta1, beta2), weight_decay = group["betas"], group["weight_decay"]
    fused = can_fuse(one.parameter for one in states)
    changed = [(one.parameter, one.exp_avg, one.exp_avg_sq, one.step) for one in states]
    cautious = group.get("cautious_weight_decay") and weight_decay
    # The decay is separate from the fused kernel, which alone reads the flag.
    kept = () if fused and not cautious else tuple(tensor for one in changed for tensor in one)
    with unless(flag if kept else None, *kept):
        if cautious:
            for one in states:
                mean = one.exp_avg.lerp(one.gradient, 1 - beta1)
                decay_where_aligned(one.parameter, mean, group["lr"], weight_decay)
            weight_decay = 0.0
        adamw(
            [one.parameter for one in states],
            [one.gradient for one in states],
            [one.exp_avg for one in states],
            [one.exp_avg_sq for one in states],
            [],
            [one.step for one in states],
            fused=fused or None,
            found_inf=flag if fused else None,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=weight_decay,
            eps=group["eps"],
            maximize=False,
        )


BLOCK = 1 << 18
"""Elements that are drawn at once, in full rows: a shard draws the blocks that its rows lie in."""


class AnyPrecisionAdamW(GroupedOptimizer):
    """AdamW (Loshchilov and Hutter, 2019), computed in fp32 whatever the storage dtypes.

    The noise of stochastic rounding depends only on the seed, the step, the parameter's name and
    the element's position: a resumed run continues it, replicas and shards of a weight are rounded
    as on one rank, and dropout's generator is unchanged.

    Arguments:
        parameters: groups or parameters, as for torch optimizers.
        betas: decay rates of the running means.
        eps: added to the root of the mean squared gradient.
        rounding: rounding of bf16 weights and state; wider dtypes are not rounded.
        cautious_weight_decay: see `decay_where_aligned`.
        state_dtype: dtype of the running means; None: dtype of the parameter.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        parameters: Any,
        lr: float = 3e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        rounding: Literal["nearest", "stochastic"] = "stochastic",
        cautious_weight_decay: bool = False,
        state_dtype: torch.dtype | None = None,
        seed: int = 0,
    ) -> None:
        options: dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        options |= {"cautious_weight_decay": cautious_weight_decay, "rounding": rounding}
        super().__init__(parameters, {**options, "updates": 0})
        self.state_dtype = state_dtype
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def update(self, group: dict[str, Any]) -> None:
        names = group.get("param_names") or [str(index) for index in range(len(group["params"]))]
        named = [
            pair for pair in zip(names, group["params"], strict=True) if pair[1].grad is not None
        ]
        steps = [adam_of(p, self.state[p], self.state_dtype) for _, p in named]
        group["updates"] += 1
        if group["rounding"] == "nearest":
            adam_step(steps, group, flag=flag_of(self))
            return
        for (name, parameter), one in zip(named, steps, strict=True):
            noise = self._noise(f"{name}/{group['updates']}", parameter)

            def store(tensor: Tensor, value: Tensor, noise: Iterator[Tensor] = noise) -> None:
                if tensor.dtype is torch.bfloat16 and value.dtype is torch.float32:
                    value = round_stochastically(value, next(noise))
                tensor.copy_(value)

            adam_step([one], group, store, flag_of(self))

    def _noise(self, key: str, parameter: Tensor) -> Iterator[Tensor]:
        """Random 16-bit numbers for this rank's elements of `parameter`, for one draw each."""
        shape = tuple(parameter.shape) or (1,)
        size, offset = box_of(parameter) if is_dtensor(parameter) else (shape, (0,) * len(shape))
        first, last = offset[0], offset[0] + size[0]
        columns = [
            slice(column, column + n) for column, n in zip(offset[1:], size[1:], strict=True)
        ]
        width = prod(shape[1:])
        height = max(BLOCK // max(width, 1), 1)
        device = parameter.device
        generator = self._generators.setdefault(device, torch.Generator(device))
        for draw in count():
            blocks = [torch.empty(0, *size[1:], dtype=torch.int16, device=device)]
            for start in range(first - first % height, last, height):
                name = f"{self.seed}/{key}/{draw}/{start // height}"
                number = int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) >> 1
                rows = min(height, shape[0] - start)
                block = random_bits(rows * width, generator.manual_seed(number))
                inside = slice(max(first - start, 0), last - start)
                blocks.append(block.view(rows, *shape[1:])[(inside, *columns)])
            yield torch.cat(blocks).view(size if parameter.dim() else ())


def random_bits(size: int, generator: torch.Generator) -> Tensor:
    """Random int16 numbers with all 16 bits."""
    # Four at a time: drawing takes longest.
    drawn = torch.empty((size + 3) // 4, dtype=torch.int64, device=generator.device)
    return drawn.random_(-(2**63), None, generator=generator).view(torch.int16)[:size]


def round_stochastically(value: Tensor, noise: Tensor) -> Tensor:
    """Round fp32 to bf16, up or down with a probability given by the distance.

    A bf16 number is an fp32 number without its lower 16 bits. A random 16-bit number is added
    before these are cut off, so the carry occurs with the right probability and the mean over many
    roundings is the value itself (Zamirai et al., 2020, https://arxiv.org/abs/2010.06192).
    Numbers that bf16 represents are unchanged, including infinities and NaN.

    Arguments:
        noise: 16 random bits for each element, int16.
    """
    raised = noise.to(torch.int32).bitwise_and_(0xFFFF).add_(value.view(torch.int32))
    return raised.bitwise_right_shift_(16).to(torch.int16).view(torch.bfloat16)
