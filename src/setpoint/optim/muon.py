"""Muon for matrices, AdamW for all else, as one optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from setpoint.config import SetpointError
from setpoint.optim.adam_step import adam_of, adam_step
from setpoint.optim.given import Given, given_groups, given_tensors
from setpoint.optim.matrices import matrices_of, part_of, rows_and_columns
from setpoint.optim.orthogonal import orthogonalize
from setpoint.optim.shards import shard_of
from setpoint.optim.steps import GroupedOptimizer

if TYPE_CHECKING:
    from setpoint.optim.config import Muon as MuonConfig

AdjustLr = Literal["original", "match_rms_adamw"]


def adjustment(adjust_lr: AdjustLr, rows: int, columns: int) -> float:
    """What the learning rate of a matrix is multiplied by; its decay is not.

    Arguments:
        adjust_lr: `original` (Jordan et al., 2024) keeps the size of what the matrix gives for
            inputs of size 1; `match_rms_adamw` (Liu et al., 2025,
            https://arxiv.org/abs/2502.16982) makes updates as large as AdamW's.
    """
    if adjust_lr == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


class Muon(GroupedOptimizer):
    """Momentum whose matrices are made orthogonal (Jordan et al., 2024), beside AdamW.

    A group's `algorithm` says which of the two its parameters get. With the running mean m of the
    gradient g: m = momentum m + (1 - momentum) g, and the update is the orthogonal matrix nearest
    to m, or with Nesterov to momentum m + (1 - momentum) g.

    Arguments:
        parameters: groups or parameters, as torch takes them; see `rows_and_columns` for
            what the dimensions mean.
        momentum: decay rate of the running mean.
        adjust_lr: see `adjustment`.
        inputs_first: whether matrices of groups that do not say it are (inputs, outputs).
        state_dtype: of the running means; None: that of the parameter.

    Raises:
        SetpointError: a parameter of fewer than two dimensions is for `muon`.
    """

    def __init__(
        self,
        parameters: Any,
        lr: float = 2e-2,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        steps: int = 5,
        adjust_lr: AdjustLr = "original",
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        algorithm: Literal["muon", "adamw"] = "muon",
        inputs_first: bool = False,
        state_dtype: torch.dtype | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "steps": steps,
            "adjust_lr": adjust_lr,
            "betas": betas,
            "eps": eps,
            "algorithm": algorithm,
            "inputs_first": inputs_first,
        }
        super().__init__(parameters, defaults)
        self.state_dtype = state_dtype
        wanted = [group for group in self.param_groups if group["algorithm"] == "muon"]
        for tensor in given_tensors(wanted):
            if tensor.ndim < 2:
                raise SetpointError(
                    f"Muon is for matrices, and a parameter of shape {tuple(tensor.shape)} is in "
                    f"a group for it; AdamW's groups say algorithm = adamw"
                )

    def update(self, group: dict[str, Any]) -> None:
        """See `GroupedOptimizer.update`."""
        held = [p for p in group["params"] if p.grad is not None]
        if group["algorithm"] == "adamw":
            adam_step([adam_of(p, self.state[p], self.state_dtype) for p in held], group)
            return
        for portion in _portions(held):
            self._muon_step(portion, group)

    def _muon_step(self, held: Sequence[Tensor], group: dict[str, Any]) -> None:
        """One step for matrices of one shape."""
        batches = [matrices_of(self._direction(p, group), p) for p in held]
        sizes = [len(batch) for batch in batches]
        whole = torch.cat(batches) if len(batches) > 1 else batches[0]
        most = max(1, at_once(whole.device) // max(1, whole.shape[1:].numel()))
        updates = [orthogonalize(part, group["steps"]) for part in whole.split(most)]
        update = torch.cat(updates) if len(updates) > 1 else updates[0]
        lr = group["lr"]
        sides = rows_and_columns(held[0])
        # The iteration is the same for a transposed matrix, and the adjustment is not.
        outputs, inputs = sides[::-1] if group["inputs_first"] else sides
        adjusted = lr * adjustment(group["adjust_lr"], outputs, inputs)
        for p, matrices in zip(held, update.split(sizes), strict=True):
            mine = shard_of(p, p)
            mine.mul_(1 - lr * group["weight_decay"])
            mine.add_(part_of(matrices, p), alpha=-adjusted)

    def _direction(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        """Move the running mean on, and tell what is to be made orthogonal of it, in bf16."""
        assert p.grad is not None
        state, momentum = self.state[p], group["momentum"]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p, dtype=self.state_dtype)
        mean, gradient = shard_of(state["momentum_buffer"], p), shard_of(p.grad, p)
        # A mean kept in fewer digits is computed in those of its gradient.
        wide = torch.promote_types(mean.dtype, gradient.dtype)
        exact, gradient = mean.to(wide), gradient.to(wide)
        exact.lerp_(gradient, 1 - momentum)
        if exact is not mean:
            mean.copy_(exact)
        return (gradient.lerp(exact, momentum) if group["nesterov"] else exact).bfloat16()


def at_once(device: torch.device) -> int:
    """Say how many numbers are made orthogonal at once.

    Returns:
        on a CPU, where batches pay below 256 x 256 only, few; else enough to fill a GPU with
        small matrices, and little memory beside the weights.
    """
    return 1 << 16 if device.type == "cpu" else 1 << 24


def _portions(held: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Parameters of one shape and place, as many as are computed at once."""
    alike: dict[Any, list[Tensor]] = {}
    for p in held:
        spread = getattr(p, "placements", None)
        alike.setdefault((p.shape, p.dtype, p.device, spread), []).append(p)
    for same in alike.values():
        most = max(1, at_once(same[0].device) // max(1, same[0].numel()))
        for start in range(0, len(same), most):
            yield same[start : start + most]


def build_muon(
    config: MuonConfig, parameters: Given, state_dtype: torch.dtype | None = None
) -> Muon:
    """Make the optimizer of a `muon` section.

    Arguments:
        parameters: groups, as from `parameter_groups`, whose `algorithm` is what the section's
            `treatment` says; or (qualified name, parameter) pairs, all of them matrices for Muon.
        state_dtype: of the running means; None: that of the parameters.

    Raises:
        SetpointError: a parameter of fewer than two dimensions is for Muon.
    """
    return Muon(
        given_groups(parameters),
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        nesterov=config.nesterov,
        steps=config.steps,
        adjust_lr=config.adjust_lr,
        betas=config.betas,
        eps=config.eps,
        state_dtype=state_dtype,
    )
