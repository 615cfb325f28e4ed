"""AdamW with weights and state in bf16, rounded at random."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from setpoint.optim.adam_step import Adam, adam_of, adam_step
from setpoint.optim.base import GroupedOptimizer
from setpoint.optim.unless import flag_of

# Steps, names and the seed each get an own place in the seed of the noise.
_PRIME = 1_000_003


class AnyPrecisionAdamW(GroupedOptimizer):
    """AdamW (Loshchilov and Hutter, 2019), computed in fp32 whatever is stored.

    The noise of stochastic rounding depends on the seed, the step and the name of the parameter
    alone: a resumed run goes on with the same, ranks that hold copies of one weight round it
    alike, and it takes no numbers from the generator that dropout draws from.

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
        names = group.get("param_names") or map(str, range(len(group["params"])))
        held: dict[str, Adam] = {}
        for name, p in zip(names, group["params"], strict=True):
            if p.grad is not None:
                held[name] = adam_of(p, self.state[p], self.state_dtype)
        group["updates"] += 1
        if group["rounding"] == "nearest":
            adam_step(list(held.values()), group, flag=flag_of(self))
            return
        for name, one in held.items():
            noise = self._noise(name, group["updates"], one.parameter.device)
            store = partial(_store_stochastically, generator=noise)
            adam_step([one], group, store, flag_of(self))

    def _noise(self, name: str, update: int, device: torch.device) -> torch.Generator:
        """The random numbers of one parameter at one step."""
        found = self._generators.setdefault(device, torch.Generator(device))
        number = (self.seed * _PRIME + zlib.crc32(name.encode())) * _PRIME + update
        return found.manual_seed(number % 2**63)


def _store_stochastically(mine: Tensor, value: Tensor, generator: torch.Generator) -> None:
    if mine.dtype is torch.bfloat16 and value.dtype is torch.float32:
        value = round_stochastically(value, generator)
    mine.copy_(value)


def round_stochastically(value: Tensor, generator: torch.Generator) -> Tensor:
    """Round fp32 to bf16, to either neighbour with the probability of its closeness.

    A bf16 number is an fp32 number without its lower 16 bits. A random number of 16 bits is added
    to these and they are cut off: the carry comes with the probability of what is cut off, so that
    the mean over many roundings is the value itself (Zamirai et al., 2020,
    https://arxiv.org/abs/2010.06192). Numbers that bf16 has stay as they are, infinities too, and
    what is no number as the result of arithmetic stays none.
    """
    # Four numbers of 16 bits at once: drawing them takes longest.
    drawn = torch.empty((value.numel() + 3) // 4, dtype=torch.int64, device=value.device)
    drawn.random_(-(2**63), None, generator=generator)
    noise = drawn.view(torch.int16)[: value.numel()].view(value.shape)
    raised = noise.to(torch.int32).bitwise_and_(0xFFFF).add_(value.view(torch.int32))
    return raised.bitwise_right_shift_(16).to(torch.int16).view(torch.bfloat16)
