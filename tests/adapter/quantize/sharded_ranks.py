"""Run by test_weight.py in a process of its own: FSDP2 shards quantized weights of two ranks.

Their parts are integers and bytes, which it gathers beside the weights that are trained.
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from setpoint.model.build import materialize, skeleton
from setpoint.model.initialize import initialize
from setpoint.shapes.placed import local_part, whole_of

from ...model.small import VOCAB, small_config
from ...support.ranks import fork
from .test_weight import CONFIGS, SIZES, quantized

WORLD = 2


def computed(model: nn.Module) -> tuple[Tensor, Tensor]:
    """A loss, and the gradient of the embedding."""
    tokens = torch.randint(0, VOCAB, (2, 16), generator=torch.Generator().manual_seed(0))
    loss = model(tokens).square().mean()
    loss.backward()
    gradient = model.get_parameter("embedding.weight").grad
    assert gradient is not None
    return loss.detach(), whole_of(gradient)


def one_rank(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))
    for config in CONFIGS:
        found: list[tuple[Tensor, Tensor]] = []
        states: list[dict[str, Tensor]] = []
        for shards in (False, True):
            model = quantized(skeleton(small_config(**SIZES), VOCAB), config)
            if shards:
                for layer in model.get_submodule("layers").children():
                    fully_shard(layer, mesh=mesh)
                fully_shard(model, mesh=mesh)
            materialize(model, "cpu", torch.float32)
            initialize(model, 1)
            found.append(computed(model))
            states.append(dict(model.state_dict()))
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-8)
        for name, each in states[0].items():
            held = states[1][name]
            assert local_part(held).numel() <= -(-each.shape[0] // WORLD) * each[0].numel()
            assert torch.equal(whole_of(held), each), name
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(fork(one_rank, WORLD))
