"""AdamW with weights and state in bf16, rounded at random."""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from setpoint.optim.adam_step import Adam, adam_of, adam_step
from setpoint.optim.given import Given, given_groups
from setpoint.optim.rounding import round_stochastically
from setpoint.optim.steps import GroupedOptimizer

if TYPE_CHECKING:
    from setpoint.optim.config import AnyPrecisionAdamW as AnyPrecisionConfig

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
        state_dtype: torch.dtype | None = None,
        seed: int = 0,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, {**options, "rounding": rounding, "updates": 0})
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
            adam_step(list(held.values()), group)
            return
        for name, one in held.items():
            noise = self._noise(name, group["updates"], one.parameter.device)
            adam_step([one], group, partial(_store_stochastically, generator=noise))

    def _noise(self, name: str, update: int, device: torch.device) -> torch.Generator:
        """The random numbers of one parameter at one update."""
        found = self._generators.setdefault(device, torch.Generator(device))
        number = (self.seed * _PRIME + zlib.crc32(name.encode())) * _PRIME + update
        return found.manual_seed(number % 2**63)


def _store_stochastically(mine: Tensor, value: Tensor, generator: torch.Generator) -> None:
    if mine.dtype is torch.bfloat16 and value.dtype is torch.float32:
        value = round_stochastically(value, generator)
    mine.copy_(value)


def build_anyprecision(
    config: AnyPrecisionConfig,
    parameters: Given,
    state_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> AnyPrecisionAdamW:
    """Make the optimizer of an `anyprecision_adamw` section.

    Arguments:
        parameters: groups, as from `parameter_groups`, or (qualified name, parameter) pairs, all
            of which decay.
        state_dtype: of the running means; None: that of the parameters.
    """
    return AnyPrecisionAdamW(
        given_groups(parameters),
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        rounding=config.rounding,
        state_dtype=state_dtype,
        seed=seed,
    )
