"""Muon for matrices, AdamW for all other parameters, as one optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from setpoint.config import SetpointError
from setpoint.optim.elementwise import adam_of, adam_step
from setpoint.optim.optimizer import (
    GroupedOptimizer,
    decay_where_aligned,
    flag_of,
    given_tensors,
    is_dtensor,
    local_shard,
    unless,
)
from setpoint.shapes.placed import as_placed, local_part, spread_like, whole_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class MeshSplit(NamedTuple):
    """A mesh dimension along which ranks have only parts of a parameter's matrices.

    Arguments:
        dim: the divided dimension of the parameter.
        is_alone: whether no other mesh dimension divides its matrices.
    """

    mesh_dim: int
    dim: int
    is_alone: bool


def split_of(parameter: Tensor) -> MeshSplit | None:
    """The division of a parameter's matrices; None if each rank has whole ones.

    A 3-D parameter is a batch of matrices, which stay whole if the first dimension is split.
    """
    if not is_dtensor(parameter):
        return None
    mesh = parameter.device_mesh
    dims = [
        (number, dim)
        for number, placement in enumerate(parameter.placements)
        if (dim := getattr(placement, "dim", None)) is not None and mesh.size(number) > 1
    ]
    splits = [split for split in dims if split[1] or parameter.ndim != 3]
    # FSDP2 over tensor parallelism places rows in strides, and a batch may be split both ways.
    return MeshSplit(*splits[0], is_alone=len(dims) == 1) if splits else None


class AllToAllExchange:
    """Exchange of parameters divided along one mesh dimension: all-to-all in both directions.

    Parameters of one shape move to the ranks that compute with them, and the results back.

    Arguments:
        like: one of the parameters.
        owners: for each parameter, the rank in that dimension that collects it.
    """

    def __init__(self, like: DTensor, split: MeshSplit, owners: Sequence[int]) -> None:
        mesh = like.device_mesh
        self.group: Any = mesh.get_group(split.mesh_dim)
        self.rank, size = mesh.get_local_rank(split.mesh_dim), mesh.size(split.mesh_dim)
        self.dim, self.shape = split.dim, like.shape
        rows = self.shape[self.dim]
        per_rank = -(-rows // size)
        # Like torch.chunk: the last ranks may have less, or nothing.
        self.sizes = [max(0, min(rows, per_rank * (n + 1)) - per_rank * n) for n in range(size)]
        self.order = [[i for i, owner in enumerate(owners) if owner == n] for n in range(size)]

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """Collect this rank's share of the parameters: (share, *shape), possibly none."""
        local_count = len(self.order[self.rank])
        given = [parts[i].reshape(-1) for owned in self.order for i in owned]
        sent = [len(owned) * self._count(self.rank) for owned in self.order]
        taken = [local_count * self._count(n) for n in range(len(self.order))]
        received = self._swap(torch.cat(given), sent, taken).split(taken)
        pieces = [shards.view(local_count, *self._part(n)) for n, shards in enumerate(received)]
        return torch.cat(pieces, dim=self.dim + 1)

    def parts(self, results: Tensor) -> Sequence[Tensor]:
        """Return the results for `whole` as local shards of all parameters."""
        local_count = len(self.order[self.rank])
        pieces = results.split(self.sizes, dim=self.dim + 1)
        sent = [local_count * self._count(n) for n in range(len(self.order))]
        taken = [len(owned) * self._count(self.rank) for owned in self.order]
        given = torch.cat([piece.reshape(-1) for piece in pieces])
        places = [i for owned in self.order for i in owned]
        received = self._swap(given, sent, taken).view(len(places), *self._part(self.rank))
        return [part for _, part in sorted(zip(places, received, strict=True), key=lambda p: p[0])]

    def _swap(self, given: Tensor, sent: list[int], taken: list[int]) -> Tensor:
        received = given.new_empty(sum(taken))
        torch.distributed.all_to_all_single(received, given, taken, sent, group=self.group)
        return received

    def _part(self, rank: int) -> tuple[int, ...]:
        return (*self.shape[: self.dim], self.sizes[rank], *self.shape[self.dim + 1 :])

    def _count(self, rank: int) -> int:
        return torch.Size(self._part(rank)).numel()


class AllGatherExchange:
    """Exchange of parameters divided along several mesh dimensions: all ranks gather them.

    Results are summed over one of the dimensions; a rank contributes zeros where it computed
    nothing.
    """

    def __init__(self, like: DTensor, split: MeshSplit, owners: Sequence[int]) -> None:
        self.like = like
        self.group: Any = like.device_mesh.get_group(split.mesh_dim)
        rank = like.device_mesh.get_local_rank(split.mesh_dim)
        self.collected = [i for i, owner in enumerate(owners) if owner == rank]
        self.count = len(owners)

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """See `AllToAllExchange.whole`."""
        gathered: list[Tensor] = []
        for number, part in enumerate(parts):
            full = whole_of(spread_like(part, self.like))
            if number in self.collected:
                gathered.append(full)
        return torch.stack(gathered) if gathered else parts[0].new_empty(0, *self.like.shape)

    def parts(self, results: Tensor) -> Sequence[Tensor]:
        """See `AllToAllExchange.parts`."""
        every = results.new_zeros(self.count, *self.like.shape)
        every[self.collected] = results
        torch.distributed.all_reduce(every, group=self.group)
        return [local_part(as_placed(matrix, self.like)) for matrix in every]


AdjustLr = Literal["original", "match_rms_adamw"]

# Coefficients of the polynomial a x + b x^3 + c x^5, which takes singular values to about 1 in few
# steps (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/).
A, B, C = 3.4445, -4.7750, 2.0315
LEAST_NORM = 1e-7


def adjustment(adjust_lr: AdjustLr, rows: int, columns: int) -> float:
    """Factor on the learning rate of a matrix, but not on its decay.

    Arguments:
        adjust_lr: `original` (Jordan et al., 2024) preserves the scale of outputs for inputs of
            size 1; `match_rms_adamw` (Liu et al., 2025, https://arxiv.org/abs/2502.16982) makes
            updates as large as AdamW's.
    """
    if adjust_lr == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


class Muon(GroupedOptimizer):
    """Momentum with orthogonalized matrices (Jordan et al., 2024), combined with AdamW.

    A group's `algorithm` chooses one of the two. With the running mean m of the gradient g: m =
    momentum m + (1 - momentum) g; the update is the orthogonal matrix nearest to m, or with
    Nesterov to momentum m + (1 - momentum) g.

    If matrices are sharded, each is collected and orthogonalized on one rank, but state and weights
    stay sharded.

    Arguments:
        parameters: groups or parameters, as for torch optimizers; see `rows_and_columns` for the
            meaning of dimensions.
        momentum: decay rate of the running mean.
        adjust_lr: see `adjustment`.
        cautious_weight_decay: see `decay_where_aligned`; the update of a matrix is orthogonal.
        inputs_first: matrices are (inputs, outputs) in groups without this option.
        state_dtype: dtype of the running means; None: dtype of the parameter.

    Raises:
        SetpointError: a parameter with fewer than two dimensions is in a group for `muon`.
    """

    _step_supports_amp_scaling = True

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
        # Number of elements assigned to each rank of a group in this step.
        self._loads: dict[Any, list[int]] = {}
        muon_groups = [group for group in self.param_groups if group["algorithm"] == "muon"]
        for tensor in given_tensors(muon_groups):
            if tensor.ndim < 2:
                raise SetpointError(
                    f"Muon is for matrices, but one of its groups has a parameter of shape "
                    f"{tuple(tensor.shape)}; groups for AdamW have algorithm = adamw"
                )

    def update(self, group: dict[str, Any]) -> None:
        if group is self.param_groups[0]:
            self._loads.clear()
        params = [p for p in group["params"] if p.grad is not None]
        if group["algorithm"] == "adamw":
            states = [adam_of(p, self.state[p], self.state_dtype) for p in params]
            adam_step(states, group, flag=flag_of(self))
            return
        for p in params:
            if not self.state[p]:
                zeros = torch.zeros_like(p, dtype=self.state_dtype)
                self.state[p]["momentum_buffer"] = zeros
        for portion in _portions(params):
            parameters = [local_shard(p, p) for p in portion]
            means = [local_shard(self.state[p]["momentum_buffer"], p) for p in portion]
            with unless(flag_of(self), *parameters, *means):
                self._muon_step(portion, group)

    def _muon_step(self, params: Sequence[Tensor], group: dict[str, Any]) -> None:
        """Take a step for matrices of one shape."""
        device, exchange = _computes(params[0]), self._exchange(params)
        directions = [self._direction(p, group).to(device) for p in params]
        if exchange is not None:
            full = exchange.whole(directions)
        else:
            full = torch.stack(directions) if len(directions) > 1 else directions[0][None]
        # A batch (M, rows, columns), by the rules of `rows_and_columns`.
        matrices = full.flatten(0, 1) if full.ndim == 4 else full.flatten(2)
        most = max(1, at_once(full.device) // max(1, matrices.shape[1:].numel()))
        updates = [orthogonalize(part, group["steps"]) for part in matrices.split(most)]
        update = torch.cat(updates) if len(updates) > 1 else updates[0]
        lr = group["lr"]
        sides = rows_and_columns(params[0])
        # The iteration is the same for a transposed matrix, but the adjustment is not.
        outputs, inputs = sides[::-1] if group["inputs_first"] else sides
        adjusted = lr * adjustment(group["adjust_lr"], outputs, inputs)
        update = update.reshape(full.shape)
        parts = update.unbind() if exchange is None else exchange.parts(update)
        for p, part in zip(params, parts, strict=True):
            shard = local_shard(p, p)
            part = part.to(shard.device)
            if group["cautious_weight_decay"] and group["weight_decay"]:
                decay_where_aligned(shard, part, lr, group["weight_decay"])
            else:
                shard.mul_(1 - lr * group["weight_decay"])
            shard.add_(part, alpha=-adjusted)

    def _exchange(self, params: Sequence[Tensor]) -> AllToAllExchange | AllGatherExchange | None:
        """Assign each matrix to the rank with the least work so far; None if all are whole."""
        first, split = params[0], split_of(params[0])
        if split is None:
            return None
        assert is_dtensor(first)
        mesh = first.device_mesh
        unloaded = [0] * mesh.size(split.mesh_dim)
        loads = self._loads.setdefault((mesh, split.mesh_dim), unloaded)
        owners: list[int] = []
        for p in params:
            owners.append(min(range(len(loads)), key=loads.__getitem__))
            loads[owners[-1]] += p.numel() * min(p.shape)
        return (AllToAllExchange if split.is_alone else AllGatherExchange)(first, split, owners)

    def _direction(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        """Update the running mean, and return the matrix to orthogonalize, in bf16."""
        assert p.grad is not None
        state, momentum = self.state[p], group["momentum"]
        mean, gradient = local_shard(state["momentum_buffer"], p), local_shard(p.grad, p)
        # A mean with fewer digits is computed in the dtype of its gradient.
        wide = torch.promote_types(mean.dtype, gradient.dtype)
        exact, gradient = mean.to(wide), gradient.to(wide)
        exact.lerp_(gradient, 1 - momentum)
        if exact is not mean:
            mean.copy_(exact)
        return (gradient.lerp(exact, momentum) if group["nesterov"] else exact).bfloat16()


def at_once(device: torch.device) -> int:
    """Number of elements orthogonalized at once.

    Returns:
        few on a CPU, where batches pay off only below 256 x 256; otherwise enough for small
        matrices to fill a GPU without using much memory.
    """
    return 1 << 16 if device.type == "cpu" else 1 << 24


def _computes(parameter: Tensor) -> torch.device:
    """Device for exchange and computation; offloaded shards are on a different one."""
    spread = is_dtensor(parameter)
    return torch.device(parameter.device_mesh.device_type) if spread else parameter.device


def _portions(params: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Split parameters of one shape and placement into batches of bounded size."""
    alike: dict[Any, list[Tensor]] = {}
    for p in params:
        place = (p.device_mesh, p.placements) if is_dtensor(p) else None
        alike.setdefault((p.shape, p.dtype, p.device, place), []).append(p)
    for same in alike.values():
        first, split = same[0], split_of(same[0])
        ranks = first.device_mesh.size(split.mesh_dim) if split and is_dtensor(first) else 1
        most = ranks * max(1, at_once(_computes(first)) // max(1, first.numel()))
        for start in range(0, len(same), most):
            yield same[start : start + most]


def orthogonalize(matrices: Tensor, steps: int) -> Tensor:
    """Replace the singular values of matrices with numbers between about 0.7 and 1.2.

    Computes in bf16 on the shorter side of the matrix, like torch.optim.Muon.

    Arguments:
        matrices: (N, rows, columns), independent; unchanged.
    """
    x = matrices.bfloat16()
    # A single matrix is multiplied as in torch.optim.Muon, so that even the last bits are equal.
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
    """Numbers of outputs and inputs of a parameter's matrices.

    Arguments:
        parameter: 2-D: a matrix (outputs, inputs), as in torch.nn.Linear. 3-D: a batch of matrices,
            each (inputs, outputs), as in Setpoint's packed experts; a one-dimensional convolution
            must be passed as a matrix. More dimensions: a convolution (outputs, inputs, ...), where
            the remaining dimensions count as inputs.
    """
    shape = parameter.shape
    if len(shape) == 3:
        return shape[2], shape[1]
    return shape[0], shape[1:].numel()
