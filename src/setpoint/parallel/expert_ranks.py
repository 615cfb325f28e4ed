"""Expert parallelism: the expert mesh, its groups, and each rank's experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from setpoint.config import SetpointError
from setpoint.parallel.config import AXES, WITHIN
from setpoint.parallel.hangs import limit_waits
from setpoint.parallel.sharding import offloading
from setpoint.parallel.world import ranks_by
from setpoint.shapes.peers import Peers
from setpoint.shapes.protocols import FollowsDivision, side_to_shard

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from setpoint.parallel.config import Parallel
    from setpoint.parallel.world import World
    from setpoint.shapes.protocols import ExpertPart

OTHERS = tuple(axis for axis in AXES if axis not in WITHIN)


class ExpertRanks(NamedTuple):
    """Process groups and mesh of expert parallelism.

    Arguments:
        mesh: `pipeline`, `replicate`, `expert_shard`, `expert` and `expert_tensor`.
        group: the ranks that divide a layer's experts; None: each rank has all experts.
        same_tokens: the ranks that have the same tokens; None: only this rank.
        divides: whether the ranks in `same_tokens` divide the inner width of each expert.
    """

    mesh: DeviceMesh
    group: ProcessGroup | None
    same_tokens: Peers | None
    divides: bool


def expert_grid(config: Parallel, degrees: Mapping[str, int]) -> NDArray[np.int64]:
    """Arrange the ranks of a job on the axes of the expert mesh.

    Returns:
        rank numbers by pipeline, replicate, expert_shard, expert and expert_tensor. If experts span
        replicas, `replicate` counts the copies of the experts.
    """
    grid = ranks_by(degrees, *([axis] for axis in OTHERS), WITHIN)
    shards, inner = config.expert_shards, config.expert_tensor
    outer = (degrees["pipeline"], config.expert_replicas)
    if config.expert_mesh_order == "expert_major":
        return grid.reshape(*outer, config.expert, shards, inner).swapaxes(-2, -3)
    return grid.reshape(*outer, shards, config.expert, inner)


def expert_ranks(config: Parallel, world: World) -> ExpertRanks:
    """Create the process groups of expert parallelism; a collective."""
    from torch.distributed.device_mesh import DeviceMesh

    grid = expert_grid(config, world.degrees)
    names = (*OTHERS, "expert_shard", "expert", "expert_tensor")
    mesh = DeviceMesh(world.device.type, grid, mesh_dim_names=names)
    limit_waits(*mesh.get_all_groups())
    tensor, same_tokens = world.group("tensor"), None
    if tensor is not None:
        same_tokens = Peers(tensor.group_name, tensor.rank(), tensor.size())
    group = mesh.get_group("expert") if config.expert > 1 else None
    return ExpertRanks(mesh, group, same_tokens, config.expert_tensor > 1)


def divide_experts(ranks: ExpertRanks, parts: Sequence[ExpertPart]) -> None:
    """Reduce each layer to this rank's experts, and to its part of their inner width.

    Arguments:
        parts: the same on all ranks; on the meta device, without values.

    Raises:
        SetpointError: the number of experts is not a multiple of the ranks.
    """
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    for module, widths in parts:
        count, size = next(module.parameters()).shape[0], ranks.mesh["expert"].size()
        if count % size:
            raise SetpointError(
                f"parallel.expert = {size}: {count} experts cannot be divided among that many "
                f"ranks\n"
                f"Valid: a divisor of {count}"
            )
        inner = _inner_widths(ranks, module, widths) if ranks.divides else {}
        for name, parameter in list(module.named_parameters()):
            mesh, placements = ranks.mesh["expert"], [Shard(0)]
            if ranks.divides:
                mesh = ranks.mesh["expert", "expert_tensor"]
                placements.append(Shard(inner[name]) if name in inner else Replicate())
            # All ranks have the same values, so nothing is sent.
            placed = distribute_tensor(parameter.detach(), mesh, placements, src_data_rank=None)
            path, _, attribute = name.rpartition(".")
            holder = module.get_submodule(path)
            setattr(holder, attribute, nn.Parameter(placed, parameter.requires_grad))


def _inner_widths(
    ranks: ExpertRanks, module: nn.Module, widths: Mapping[str, int]
) -> dict[str, int]:
    """The dimension in which each parameter contains the inner width, along which it is divided.

    For other parameters each rank computes a partial gradient; see `summed_gradients`.
    """
    assert ranks.same_tokens is not None
    dims = dict(widths)
    for path, child in module.named_modules():
        if not isinstance(child, FollowsDivision):
            continue
        word = "row" if widths[path.rpartition(".")[2]] == 1 else "column"
        divided, _ = child.follow(word, (), ranks.same_tokens)
        dims |= {f"{path}.{name}": dim for name, dim in divided.items()}
        summed: Any = child  # see `summed_gradients`
        summed._summed = tuple(n for n, _ in summed.named_parameters() if n not in divided)
    return dims


def shard_experts(
    config: Parallel,
    ranks: ExpertRanks,
    parts: Sequence[ExpertPart],
    policy: MixedPrecisionPolicy,
) -> None:
    """Shard experts shared by several ranks of a copy, and replicate copies (FSDP2).

    See `side_to_shard` for the dimension.
    """
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    mesh, size = ranks.mesh["expert_shard"], config.expert_shards
    if ranks.mesh["replicate"].size() > 1:
        mesh = ranks.mesh["replicate", "expert_shard"]
    for module, widths in parts:
        sides: dict[int, int] = {}
        for name, parameter in module.named_parameters():
            placed: Any = parameter
            dims = [placement.dim for placement in placed.placements[1:] if placement.is_shard()]
            inner = dims[0] if dims else widths.get(name, 0)
            sides[id(parameter)] = side_to_shard(placed.to_local().shape, inner, size)

        def place(parameter: Any, sides: dict[int, int] = sides) -> Shard:
            return Shard(sides[id(parameter)])

        # A number of ranks is refused with divided experts, as it refers to other weights.
        reshard = config.reshard is None or bool(config.reshard)
        fully_shard(
            module,
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=reshard,
            shard_placement_fn=place,
            **offloading(config.sharding, mesh),
        )
