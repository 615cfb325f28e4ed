"""Run by test_import_weights.py: tensors saved by two ranks, each with its rows.

sharded.py FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from ...support.ranks import fork

RANKS = 2


def one_rank(rank: int, store: str) -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    tensors = torch.load(folder / "tensors.pt", weights_only=True)
    divided = {name: distribute_tensor(t, mesh, [Shard(0)]) for name, t in tensors.items()}
    save(divided, checkpoint_id=folder / "step-3")
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(fork(one_rank, RANKS))
