"""AdamW with weights and state in bf16, rounded at random."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import count
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from setpoint.optim.adam_step import adam_of, adam_step
from setpoint.optim.base import GroupedOptimizer, is_dtensor
from setpoint.optim.unless import flag_of
from setpoint.shapes.placed import box_of

BLOCK = 1 << 18
"""Elements that are drawn at once, in full rows: a shard draws the blocks that its rows lie in."""


class AnyPrecisionAdamW(GroupedOptimizer):
    """AdamW (Loshchilov and Hutter, 2019), computed in fp32 whatever is stored.

    The noise of stochastic rounding depends on the seed, the step, the name of the parameter and
    the position of the element alone: a resumed run goes on with the same, copies and shards of a
    weight are rounded as the weight is on one rank, and it takes no numbers from the generator that
    dropout draws from.

    Arguments:
        parameters: groups or parameters, as torch takes them.
        betas: decay rates of the running means.
        eps: added to the root of the mean square gradient.
        rounding: how bf16 weights and states are rounded; wider formats are not.
        cautious_weight_decay: see `decay_where_aligned`.
        state_dtype: of the running means; None: that of the parameter.
    """

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
        """See `GroupedOptimizer.update`."""
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

            def store(mine: Tensor, value: Tensor, noise: Iterator[Tensor] = noise) -> None:
                if mine.dtype is torch.bfloat16 and value.dtype is torch.float32:
                    value = round_stochastically(value, next(noise))
                mine.copy_(value)

            adam_step([one], group, store, flag_of(self))

    def _noise(self, key: str, parameter: Tensor) -> Iterator[Tensor]:
        """Random 16-bit numbers for the elements of `parameter` on this rank, for one draw each."""
        shape = tuple(parameter.shape) or (1,)
        size, offset = box_of(parameter) if is_dtensor(parameter) else (shape, (0,) * len(shape))
        first, last = offset[0], offset[0] + size[0]
        columns = [slice(at, at + n) for at, n in zip(offset[1:], size[1:], strict=True)]
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
    """Random int16 numbers, all 16 bits of them."""
    # Four at once: drawing takes longest.
    drawn = torch.empty((size + 3) // 4, dtype=torch.int64, device=generator.device)
    return drawn.random_(-(2**63), None, generator=generator).view(torch.int16)[:size]


def round_stochastically(value: Tensor, noise: Tensor) -> Tensor:
    """Round fp32 to bf16, to either neighbour with the probability of its closeness.

    A bf16 number is an fp32 number without its lower 16 bits. A random number of 16 bits is added
    to these and they are cut off: the carry comes with the probability of what is cut off, so that
    the mean over many roundings is the value itself (Zamirai et al., 2020,
    https://arxiv.org/abs/2010.06192). Numbers that bf16 has stay as they are, infinities too, and
    NaN stays NaN.

    Arguments:
        noise: 16 random bits for each element, int16.
    """
    raised = noise.to(torch.int32).bitwise_and_(0xFFFF).add_(value.view(torch.int32))
    return raised.bitwise_right_shift_(16).to(torch.int16).view(torch.bfloat16)
