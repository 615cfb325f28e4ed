"""Run by tests of families in a process of its own: several ranks train as one does.

Its arguments are the number of ranks, unless it is 2; families of `FAMILIES`, with an adapter as in
`gpt_oss+lora`; and shapes such as `shard=2`.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from setpoint.model.layers import layers_of
from setpoint.parallel.world import World
from setpoint.train.build.components import build_components

from ..parallel.equal_ranks import Trained, assert_equal, trained
from ..ranks import fork
from .huggingface_families import family_job

WORLD = int(sys.argv[1]) if sys.argv[1:] and sys.argv[1].isdecimal() else 2
FLAGS = ("duration=6 steps", "memory.activation_checkpointing=full")


def compare(folder: Path, kind: str, shape: str, alone: dict[str, Trained]) -> None:
    """One rank, and all of them in a shape.

    Arguments:
        alone: what one rank has trained, by the kind.
    """
    degrees = [f"parallel.{degree}" for degree in shape.split(",")]
    family, _, adapter = kind.partition("+")
    flags = (*FLAGS, f"adapter={{type: {adapter}, rank: 2, b_std: 0.1}}") if adapter else FLAGS
    if WORLD > 2:
        flags = (*flags, "batch.global_size=4")
    ranks = (*flags, f"parallel.world_size={WORLD}", *degrees)
    if "pipeline=2,shard=2" in shape:  # a micro-batch for each stage
        ranks += ("batch.micro_size=1",)
    job = family_job(folder, family, *ranks)
    if shape == "shard=2":
        units_are_gathered_apart(build_components(job).model)
    if kind not in alone:
        told: list[Any] = [None]
        if dist.get_rank() == 0:
            told = [trained(family_job(folder, family, *flags), World(torch.device("cpu")))]
        dist.broadcast_object_list(told)
        alone[kind] = told[0]
    assert_equal(trained(job), alone[kind], 1e-5, f"{kind}, {shape}")
    print(f"{kind}, {shape}: equal")


def units_are_gathered_apart(model: Any) -> None:
    """Each layer, and what lies around them where no weights are tied."""
    units = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    assert {name for name, _ in layers_of(model)} <= {*units}, units
    if model.output.weight is not model.model.get_input_embeddings().weight:
        assert "model.model.embed_tokens" in units and "model.lm_head" in units, units


def one_rank(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    shapes = [each for each in sys.argv[1:] if "=" in each]
    with tempfile.TemporaryDirectory() as folder:
        alone: dict[str, Trained] = {}
        for kind in (each for each in sys.argv[1:] if "=" not in each and not each.isdecimal()):
            for shape in shapes:
                compare(Path(folder), kind, shape, alone)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(fork(one_rank, WORLD))
