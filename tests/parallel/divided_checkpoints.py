"""Run by test_checkpoints_of_ranks.py: two ranks save parts of tensors, and read other parts."""

import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from setpoint.checkpoint import staging
from setpoint.checkpoint.staging import HostMemory
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import SetpointError
from setpoint.parallel.config import AXES
from setpoint.parallel.world import RemoteRankError, World
from setpoint.shapes.placed import as_placed, whole_of

from ..checkpoint.stored import load as load_stored
from ..support.ranks import fork_group

DEGREES = {**dict.fromkeys(AXES, 1), "shard": 2}
# Rows that do not divide, one row for two ranks, none, a scalar.
SHAPES = {"odd": (5, 3), "row": (1, 4), "none": (0, 2), "scalar": (), "columns": (2, 6)}
WHOLE = {
    name: torch.arange(float(torch.Size(shape).numel())).reshape(shape).mul(1.5)
    for name, shape in SHAPES.items()
}
PLACED: dict[str, dict[str, Placement]] = {
    "rows": {name: Shard(0) for name in ("odd", "row", "none", "columns")},
    "columns": {"columns": Shard(1), "odd": Shard(1), "row": Replicate()},
    "copies": {name: Replicate() for name in ("odd", "columns")},
    "plain": {},
}


def placed(mesh: DeviceMesh, how: str) -> dict[str, Tensor]:
    """The tensors, as DTensors or plain."""
    return {
        name: distribute_tensor(whole.clone(), mesh, [PLACED[how][name]], src_data_rank=None)
        if name in PLACED[how]
        else whole.clone()
        for name, whole in WHOLE.items()
    }


def equal_in_any_other_division(world: World, mesh: DeviceMesh, folder: Path) -> None:
    for before in PLACED:
        store = CheckpointStore(folder / before, keep=None, world=world)
        store.save(1, {"model": placed(mesh, before), "half": half()}, {"a": [1]}, texts={"t": "x"})
        for after in PLACED:
            found = store.load_newest()
            assert found is not None and found.state == {"a": [1]}
            for name, like in placed(mesh, after).items():
                back = as_placed(found.tensors["model"][name], like)
                assert torch.equal(whole_of(back), WHOLE[name]), (before, after, name)
                assert isinstance(back, DTensor) == isinstance(like, DTensor)
        # One process without a group reads them as well.
        alone = load_stored(folder / before)
        for name, whole in WHOLE.items():
            assert torch.equal(as_placed(alone.tensors["model"][name], torch.empty(0)), whole)
        assert as_placed(alone.tensors["half"]["h"], torch.empty(0)).dtype == torch.bfloat16
        # Every element is written once, whoever holds it.
        index = json.loads((folder / before / "step-00000001" / "model.index.json").read_text())
        for name, entry in index["tensors"].items():
            written = sum(math.prod(part["shape"]) for part in entry["parts"])
            assert written == WHOLE[name].numel(), (before, name)


def half() -> dict[str, Tensor]:
    return {"h": torch.ones(3, dtype=torch.bfloat16)}


def what_one_rank_cannot_save_all_hear_of(world: World, mesh: DeviceMesh, folder: Path) -> None:
    store = CheckpointStore(folder, world=world)
    with pytest.MonkeyPatch.context() as patch:
        if world.rank == 1:

            def refusing(tensors: Mapping[str, Tensor], into: HostMemory | None = None) -> Any:
                raise SetpointError(f"tensor {next(iter(tensors))} cannot be saved")

            patch.setattr(staging, "encode_tensors", refusing)
        error = SetpointError if world.rank == 1 else RemoteRankError
        with pytest.raises(error, match="rank 1: tensor"):
            store.save(1, {"model": placed(mesh, "rows")}, {})
    dist.barrier()
    assert not list(folder.iterdir())


def the_reader_of_the_docs_reads_them(world: World, mesh: DeviceMesh, folder: Path) -> None:
    """The program of docs/reference/checkpoint-format.md reads checkpoints of 1 and 2 ranks."""
    tensors = placed(mesh, "rows") | half()
    CheckpointStore(folder / "two", world=world).save(1, {"model": tensors}, {})
    if not world.is_main:
        return
    tied = {**WHOLE, **half(), "tied": WHOLE["odd"]}
    CheckpointStore(folder / "one").save(1, {"model": tied}, {})
    page = Path(__file__).parents[2] / "docs" / "reference" / "checkpoint-format.md"
    (program,) = re.findall("```python\n(# read_.*?)```", page.read_text(), re.DOTALL)
    assert "setpoint" not in program and len(program.splitlines()) <= 31
    names: dict[str, Any] = {"__name__": "reader"}
    exec(compile(program, str(page), "exec"), names)
    for which, expected in (("one", tied), ("two", {**WHOLE, **half()})):
        path = folder / which / "step-00000001"
        found = names["read"](path)
        assert found.keys() == expected.keys(), which
        for name, tensor in expected.items():
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
        file = next(path.glob("model*.safetensors"))
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged"):
            names["read"](path)


def one_rank(rank: int, store: str) -> None:
    at: Mapping[str, int] = {**dict.fromkeys(AXES, 0), "shard": rank}
    mesh = DeviceMesh("cpu", [0, 1])
    world = World(torch.device("cpu"), rank, 2, degrees=DEGREES, coordinates=at)
    folder = Path(store).parent
    for act in (
        equal_in_any_other_division,
        what_one_rank_cannot_save_all_hear_of,
        the_reader_of_the_docs_reads_them,
    ):
        act(world, mesh, folder / act.__name__)
        dist.barrier()
        if rank == 0:
            print(act.__name__)


if __name__ == "__main__":
    sys.exit(fork_group(one_rank, 2))
