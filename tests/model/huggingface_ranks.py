"""Run by tests of families in a process of its own: several ranks train as one does.

Its arguments are the number of ranks, unless it is 2; and pairs such as `gpt_oss, shard=2` of a
family of `FAMILIES`, with an adapter as in `gpt_oss+lora`, or compiled as in `gpt_oss+compiled`,
and a shape.

With `float64` among them all that is fp32 is computed in fp64, over more steps: what differs there
by more than rounding is a fault, where steps of an adapter on a small random base amplify it.
"""

import importlib
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers.modeling_utils  # which each rank would import  # noqa: F401
from torch.distributed.fsdp import FSDPModule
from transformers.integrations import moe

from setpoint.model.build import layers_of
from setpoint.model.huggingface import builder
from setpoint.parallel.world import World
from setpoint.train.build.components import build_components

from ..parallel.equal_ranks import Trained, assert_equal, float64, trained
from ..support.ranks import fork_group
from .huggingface_families import family_job

WORLD = int(sys.argv[1]) if sys.argv[1:] and sys.argv[1].isdecimal() else 2
FLAGS = ("duration=2 steps", "memory.activation_checkpointing=full")
# Fused AdamW takes no step counters in fp64.
EXACT = ("duration=20 steps", "optimizer.implementation=loop")


def compare(folder: Path, kind: str, shape: str, alone: dict[str, Trained]) -> None:
    """One rank, and all of them in a shape.

    Arguments:
        alone: what one rank has trained, by the kind.
    """
    degrees = [f"parallel.{degree}" for degree in shape.split(",")]
    family, _, more = kind.partition("+")
    flags = (*FLAGS, *EXACT) if "float64" in sys.argv else FLAGS
    if more == "compiled":
        flags = (*flags, "compile={backend: aot_eager}")
    elif more:
        flags = (*flags, f"adapter={{type: {more}, rank: 2, b_std: 0.1}}")
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
    rtol = 1e-9 if "float64" in sys.argv else 1e-5
    assert_equal(trained(job), alone[kind], rtol, f"{kind}, {shape}")
    print(f"{kind}, {shape}: equal")


def units_are_gathered_apart(model: Any) -> None:
    """Each layer, and what lies around them where no weights are tied."""
    units = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    assert {name for name, _ in layers_of(model)} <= {*units}, units
    if model.output.weight is not model.model.get_input_embeddings().weight:
        assert "model.model.embed_tokens" in units and "model.lm_head" in units, units


class _Wide:
    """The module torch, in which fp32 is fp64."""

    def __getattr__(self, name: str) -> Any:
        return torch.float64 if name in ("float32", "float") else getattr(torch, name)


@contextmanager
def wide(kinds: list[str]) -> Iterator[None]:
    """Let fp32 mean fp64, also where transformers names it."""
    wide_torch: Any = _Wide()
    builder.torch = wide_torch
    moe._can_use_grouped_mm = lambda *_: False  # which takes no fp64
    torch.Tensor.float = torch.Tensor.double
    for family in {kind.partition("+")[0] for kind in kinds}:
        name = f"transformers.models.{family}.modeling_{family}"
        vars(importlib.import_module(name))["torch"] = wide_torch
    with float64():
        yield


def one_rank(rank: int, store: str) -> None:
    pairs = [each.split(", ") for each in sys.argv[1:] if ", " in each]
    exact = wide([kind for kind, _ in pairs]) if "float64" in sys.argv else nullcontext()
    with tempfile.TemporaryDirectory() as folder, exact:
        alone: dict[str, Trained] = {}
        for kind, shape in pairs:
            compare(Path(folder), kind, shape, alone)


if __name__ == "__main__":
    sys.exit(fork_group(one_rank, WORLD))
