"""Gradient clipping, by global norm or by value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm

from setpoint.optim.optimizer import is_dtensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

EPSILON = 1e-6
"""Epsilon that torch adds to the norm that it divides by."""


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[Tensor],
    max_norm: float | None,
    max_value: float | None = None,
    stages: ProcessGroup | None = None,
    elsewhere: Collection[Tensor] = (),
) -> Tensor:
    """Clip all gradients, and return their norm.

    By norm, each gradient is multiplied by min(1, max_norm / (norm + 1e-6)) (Pascanu et al., 2013);
    by value, each element is clamped to [-max_value, max_value]. The norm stays on its device until
    the caller reads it. A norm that is not finite makes all gradients non-finite; the caller checks
    it before the step.

    Arguments:
        max_norm: maximum norm; None: unlimited.
        max_value: maximum magnitude of an element; None: unlimited. At most one of the two limits
            may be given.
        stages: ranks with the other layers; None: this rank has all layers.
        elsewhere: parameters that another of these ranks includes in the norm.

    Returns:
        The norm before clipping, a scalar tensor, at least fp32; 0 without gradients.
    """
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    counted = trained if not elsewhere else [param for param in trained if param not in elsewhere]
    norm = global_norm((p.grad for p in counted if p.grad is not None), stages)
    for together in _by_mesh(trained):
        if max_norm is not None and not _is_within(norm, max_norm):
            clip_grads_with_norm_(together, max_norm, norm)
        if max_value is not None:
            clip_grad_value_(together, max_value)
    return norm


def _is_within(norm: Tensor, max_norm: float) -> bool:
    """True if clipping is known to change nothing, without device synchronization."""
    return norm.device.type == "cpu" and bool(max_norm / (norm + EPSILON) >= 1)


@torch.no_grad()
def global_norm(tensors: Iterable[Tensor], stages: ProcessGroup | None = None) -> Tensor:
    """Joint norm of all elements of several tensors.

    Arguments:
        tensors: tensors of any shapes and dtypes; each rank passes its shard of distributed ones.
        stages: ranks with the other tensors; None: this rank has all tensors.

    Returns:
        a scalar tensor, at least fp32, the same on all ranks; 0 without tensors.
    """
    norms = [_norm(group) for group in _by_mesh(tensors)]
    norm = norms[0] if len(norms) == 1 else get_total_norm(norms)
    if stages is None:
        return norm
    squares = norm.double().square()
    distributed.all_reduce(squares, group=stages)
    return squares.sqrt().to(norm.dtype)


@torch.no_grad()
def norms_of_sets(
    sets: Sequence[Sequence[Tensor]], device: torch.device, stages: ProcessGroup | None = None
) -> Tensor:
    """(sets,) fp64 norms of several sets of tensors, the same on all ranks; 0 for empty sets.

    Arguments:
        sets: each as for `global_norm`; equally many, and on the same meshes, on all ranks.
        device: device of the result, also on ranks without tensors.
        stages: ranks with the other tensors; None: this rank has all tensors.
    """
    squares = torch.zeros(len(sets), dtype=torch.float64, device=device)
    # A tensor is in several sets, such as its layer and its group.
    places: dict[int, list[int]] = {}
    tensors: dict[int, Tensor] = {}
    for number, tensor_set in enumerate(sets):
        for tensor in tensor_set:
            tensors[id(tensor)] = tensor
            places.setdefault(id(tensor), []).append(number)
    for group in _by_mesh(tensors.values()):
        local_squares = torch.zeros_like(squares)
        for tensor in group:
            local_squares[places[id(tensor)]] += _own_square(tensor).to(device)
        if is_dtensor(group[0]):
            _sum_over_mesh(local_squares, group[0].device_mesh)
        squares += local_squares
    if stages is not None:
        distributed.all_reduce(squares, group=stages)
    return squares.sqrt()


def _own_square(tensor: Tensor) -> Tensor:
    """Squared norm of the local shard, divided by the number of its copies."""
    copies = 1
    if is_dtensor(tensor):
        copies = _copies(tensor)
        tensor = tensor.to_local()
    norm = torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
    return norm.double().square() / copies


def _copies(tensor: DTensor) -> int:
    """Number of ranks in a tensor's mesh that have the same shard of it."""
    mesh = tensor.device_mesh
    return prod(
        mesh.size(dim)
        for dim, placement in enumerate(tensor.placements)
        if placement.is_replicate()
    )


def _sum_over_mesh(squares: Tensor, mesh: DeviceMesh) -> None:
    for dim in range(mesh.ndim):
        if mesh.size(dim) > 1:
            distributed.all_reduce(squares, group=mesh.get_group(dim))


def _by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group tensors by mesh, since torch operates on one mesh at a time."""
    meshes: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        meshes.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(meshes.values())


def _norm(tensors: list[Tensor]) -> Tensor:
    """Norm of tensors on one mesh."""
    if not is_dtensor(tensors[0]):
        return _local_norm(tensors)
    # Not by DTensor, which would need a collective for each dimension of the mesh and each
    # placement of a tensor.
    mesh = tensors[0].device_mesh
    by_copies: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        assert is_dtensor(tensor)
        by_copies.setdefault(_copies(tensor), []).append(tensor.to_local())
    norms = [_local_norm(parts) / copies**0.5 for copies, parts in by_copies.items()]
    norm = norms[0] if len(norms) == 1 else get_total_norm(norms)
    squares = norm.double().square()
    _sum_over_mesh(squares, mesh)
    return squares.sqrt().to(norm.dtype)


def _local_norm(tensors: list[Tensor]) -> Tensor:
    if all(tensor.dtype.itemsize >= 4 for tensor in tensors):
        return get_total_norm(tensors)
    # In the dtype of bf16 gradients it would be right to two digits only.
    exact = (torch.linalg.vector_norm(shard, dtype=torch.float32) for shard in tensors)
    return get_total_norm(exact)
