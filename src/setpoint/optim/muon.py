"""Muon for matrices, AdamW for all else, as one optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from setpoint.config import SetpointError
from setpoint.optim.adam_step import adam_of, adam_step
from setpoint.optim.base import (
    GroupedOptimizer,
    decay_where_aligned,
    given_tensors,
    is_dtensor,
    local_shard,
)
from setpoint.optim.unless import flag_of, unless
from setpoint.optim.whole import exchange_of, split_of

AdjustLr = Literal["original", "match_rms_adamw"]

# Of the polynomial a x + b x^3 + c x^5, which takes singular values to about 1 in few steps
# (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/).
A, B, C = 3.4445, -4.7750, 2.0315
LEAST_NORM = 1e-7


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

    Where ranks hold parts of matrices, each matrix is made orthogonal on one of them, which gets it
    whole; mean and weights stay where they are.

    Arguments:
        parameters: groups or parameters, as torch takes them; see `rows_and_columns` for
            what the dimensions mean.
        momentum: decay rate of the running mean.
        adjust_lr: see `adjustment`.
        cautious_weight_decay: see `decay_where_aligned`; the update of a matrix is orthogonal.
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
        cautious_weight_decay: bool = False,
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
            "cautious_weight_decay": cautious_weight_decay,
            "algorithm": algorithm,
            "inputs_first": inputs_first,
        }
        super().__init__(parameters, defaults)
        self.state_dtype = state_dtype
        # Numbers that each rank of a group has been given in this step.
        self._loads: dict[Any, list[int]] = {}
        wanted = [group for group in self.param_groups if group["algorithm"] == "muon"]
        for tensor in given_tensors(wanted):
            if tensor.ndim < 2:
                raise SetpointError(
                    f"Muon is for matrices, and a parameter of shape {tuple(tensor.shape)} is in "
                    f"a group for it; AdamW's groups say algorithm = adamw"
                )

    def update(self, group: dict[str, Any]) -> None:
        """See `GroupedOptimizer.update`."""
        if group is self.param_groups[0]:
            self._loads.clear()
        held = [p for p in group["params"] if p.grad is not None]
        if group["algorithm"] == "adamw":
            held = [adam_of(p, self.state[p], self.state_dtype) for p in held]
            adam_step(held, group, flag=flag_of(self))
            return
        for p in held:
            if not self.state[p]:
                zeros = torch.zeros_like(p, dtype=self.state_dtype)
                self.state[p]["momentum_buffer"] = zeros
        for portion in _portions(held):
            parameters = [local_shard(p, p) for p in portion]
            means = [local_shard(self.state[p]["momentum_buffer"], p) for p in portion]
            with unless(flag_of(self), *parameters, *means):
                self._muon_step(portion, group)

    def _muon_step(self, held: Sequence[Tensor], group: dict[str, Any]) -> None:
        """One step for matrices of one shape."""
        exchange, device = exchange_of(held[0], self._owners(held)), _computes(held[0])
        whole = exchange.whole([self._direction(p, group).to(device) for p in held])
        matrices = matrices_of(whole)
        most = max(1, at_once(whole.device) // max(1, matrices.shape[1:].numel()))
        updates = [orthogonalize(part, group["steps"]) for part in matrices.split(most)]
        update = torch.cat(updates) if len(updates) > 1 else updates[0]
        lr = group["lr"]
        sides = rows_and_columns(held[0])
        # The iteration is the same for a transposed matrix, and the adjustment is not.
        outputs, inputs = sides[::-1] if group["inputs_first"] else sides
        adjusted = lr * adjustment(group["adjust_lr"], outputs, inputs)
        for p, part in zip(held, exchange.parts(update.reshape(whole.shape)), strict=True):
            mine = local_shard(p, p)
            part = part.to(mine.device)
            if group["cautious_weight_decay"] and group["weight_decay"]:
                decay_where_aligned(mine, part, lr, group["weight_decay"])
            else:
                mine.mul_(1 - lr * group["weight_decay"])
            mine.add_(part, alpha=-adjusted)

    def _owners(self, held: Sequence[Tensor]) -> list[int]:
        """Choose the rank that makes each matrix orthogonal: the one with the least to do."""
        first, split = held[0], split_of(held[0])
        if split is None:
            return []
        assert is_dtensor(first)
        mesh = first.device_mesh
        idle = [0] * mesh.size(split.mesh_dim)
        loads = self._loads.setdefault((mesh, split.mesh_dim), idle)
        owners: list[int] = []
        for p in held:
            owners.append(min(range(len(loads)), key=loads.__getitem__))
            loads[owners[-1]] += p.numel() * min(p.shape)
        return owners

    def _direction(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        """Move the running mean on, and tell what is to be made orthogonal of it, in bf16."""
        assert p.grad is not None
        state, momentum = self.state[p], group["momentum"]
        mean, gradient = local_shard(state["momentum_buffer"], p), local_shard(p.grad, p)
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


def _computes(parameter: Tensor) -> torch.device:
    """The device that ranks exchange and compute on; offloaded parts lie on another one."""
    spread = is_dtensor(parameter)
    return torch.device(parameter.device_mesh.device_type) if spread else parameter.device


def _portions(held: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Parameters of one shape and place, as many as are computed at once by all that share them."""
    alike: dict[Any, list[Tensor]] = {}
    for p in held:
        place = (p.device_mesh, p.placements) if is_dtensor(p) else None
        alike.setdefault((p.shape, p.dtype, p.device, place), []).append(p)
    for same in alike.values():
        first, split = same[0], split_of(same[0])
        ranks = first.device_mesh.size(split.mesh_dim) if split and is_dtensor(first) else 1
        most = ranks * max(1, at_once(_computes(first)) // max(1, first.numel()))
        for start in range(0, len(same), most):
            yield same[start : start + most]


def orthogonalize(matrices: Tensor, steps: int) -> Tensor:
    """Replace the singular values of matrices by numbers between about 0.7 and 1.2.

    Computed in bf16, as in torch.optim.Muon, on the side of the matrix that is shorter.

    Arguments:
        matrices: (N, rows, columns), each by itself; not changed.
    """
    x = matrices.bfloat16()
    # One alone is multiplied as torch.optim.Muon does it, so that even the last bits are the same.
    alone = len(x) == 1
    if alone:
        x = x[0]
    multiply_add = torch.addmm if alone else torch.baddbmm
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    # The largest singular value is then at most 1.
    norms = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True)
    x = x / norms.clamp(min=LEAST_NORM)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = multiply_add(gram, gram, gram, beta=B, alpha=C)
        x = multiply_add(x, polynomial, x, beta=A)
    if tall:
        x = x.mT
    return x[None] if alone else x


def rows_and_columns(parameter: Tensor) -> tuple[int, int]:
    """Tell how many outputs and inputs the matrices of a parameter have.

    Arguments:
        parameter: of two dimensions: a matrix (outputs, inputs), as of torch.nn.Linear. Of three:
            a batch of matrices, each (inputs, outputs), as Setpoint's packed experts are; a
            convolution in one dimension must be given as a matrix. Of more: a
            convolution (outputs, inputs, ...), whose inputs are all but the first.
    """
    shape = parameter.shape
    if len(shape) == 3:
        return shape[2], shape[1]
    return shape[0], shape[1:].numel()


def matrices_of(parameters: Tensor) -> Tensor:
    """The matrices of parameters (N, *shape), as `rows_and_columns` has them: (M, ..., ...)."""
    return parameters.flatten(0, 1) if parameters.ndim == 4 else parameters.flatten(2)
