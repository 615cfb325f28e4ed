"""Parameters as batches of whole matrices, also where ranks hold only parts of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from setpoint.optim.shards import is_spread

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


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


def matrices_of(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Bring what belongs to a parameter into whole matrices.

    Where ranks hold parts of a matrix, all of them get it whole: only a whole matrix can be made
    orthogonal. Experts that lie whole on one rank stay there.

    Arguments:
        tensor: this rank's part, of the shape of its part of the parameter.
    """
    if is_spread(parameter) and _is_in_parts(parameter):
        from torch.distributed.tensor import DTensor

        tensor = DTensor.from_local(
            tensor,
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        ).full_tensor()
    return tensor if tensor.ndim == 3 else tensor.flatten(1)[None]


def part_of(matrices: Tensor, parameter: Tensor) -> Tensor:
    """Take this rank's part of matrices, the reverse of `matrices_of`."""
    if not is_spread(parameter):
        return matrices.reshape(parameter.shape)
    if not _is_in_parts(parameter):
        return matrices.reshape(parameter.to_local().shape)
    from torch.distributed.tensor import DTensor, Replicate

    mesh = parameter.device_mesh
    everywhere = [Replicate()] * mesh.ndim
    whole = DTensor.from_local(matrices.reshape(parameter.shape), mesh, everywhere, run_check=False)
    return whole.redistribute(placements=parameter.placements).to_local()


def _is_in_parts(parameter: DTensor) -> bool:
    """Whether ranks hold less than whole matrices of it."""
    # A batch that is split by its first dimension is of whole matrices on each rank.
    whole = (None, 0) if parameter.ndim == 3 else (None,)
    return any(getattr(placement, "dim", None) not in whole for placement in parameter.placements)
