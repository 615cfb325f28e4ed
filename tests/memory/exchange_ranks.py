"""Run by test_activation_offload.py in a process of its own: experts on four ranks, two of each.

FSDP2 gathers experts within the layers, which are recomputed or not: weights after a step are
the same to the bit, and all-to-alls and products of experts are those of the policy.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from setpoint.resilience.signals import StopRequest
from setpoint.shapes.placed import whole_of
from setpoint.train.build.components import build_components
from setpoint.train.loop import Loop
from setpoint.train.position import Position

from ..support.ranks import fork_group
from ..train.small import small_job
from .meter import Meter

WORLD = 4
BASE = (
    "duration=1 step", "model.layers=2", "evaluation=null", "batch.micro_size=1",
    "batch.accumulation=1", "precision.compute=bf16", f"parallel.world_size={WORLD}",
    "parallel.shard=4", "parallel.expert=2",
    "model.moe={experts: 4, top_k: 2, shared_experts: 1, load_sequences: 1}",
)  # fmt: skip
# Counts, rows, weights of choices and results; gradients of the last three; in each of two layers.
ONCE, AGAIN = 4, 3
# Grouped products with gate, up and down; two gradients of each. Only messages read that with down.
EXPECTED = {
    "null": (ONCE + AGAIN, 9),
    "full": (2 * ONCE + AGAIN, 12),
    "{type: operators, save: [matmul]}": (2 * ONCE + AGAIN, 9),
    "{type: operators, save: [exchange]}": (ONCE + AGAIN, 11),
    "{type: operators, save: [matmul, attention, exchange]}": (ONCE + AGAIN, 9),
}


def trained(folder: Path, policy: str) -> tuple[tuple[int, int], dict[str, Tensor]]:
    """All-to-alls and grouped products of a step, and the weights after it."""
    job = small_job(folder, *BASE, f"memory.activation_checkpointing={policy}")
    components = build_components(job)
    with Meter() as meter:
        Loop(job, components, [], StopRequest(), Position()).run()
    calls = meter.calls["c10d::alltoall_base_"], meter.calls["_grouped_mm"]
    return calls, {name: whole_of(value) for name, value in components.model.state_dict().items()}


def check(rank: int, store: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        expected: dict[str, Tensor] = {}
        for policy, calls in EXPECTED.items():
            counted, weights = trained(Path(folder), policy)
            assert counted == (2 * calls[0], 2 * calls[1]), (policy, counted)
            expected = expected or weights
            for name, weight in weights.items():
                assert torch.equal(weight, expected[name]), (policy, name)


if __name__ == "__main__":
    sys.exit(fork_group(check, WORLD))
