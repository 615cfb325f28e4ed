"""Run by test_checkpoints_of_ranks.py: any division goes on from what any other has saved.

Its arguments are `KIND:BEFORE:AFTER`, of a kind of job, the division that saves and the one that
loads; all of them without any. After loading, weights, masters and optimizer state equal what was
saved bit for bit; losses and gradient norms of further steps are those of one rank that was never
interrupted.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import SetpointError, record_files
from setpoint.parallel.world import World, world_of
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.outcome import Outcome, Projection
from setpoint.shapes.placed import in_memory, whole_of
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run_state import FrozenParameters, States, restore, snapshot
from setpoint.train.warm_start import warm_start

from ..checkpoint.stored import load as load_stored
from ..support.ranks import fork, group_of
from ..train.small import small_job, states
from .equal_ranks import Seen

MODULE = "tests.parallel.resharding"  # also where it runs as a program
# Name to the number of ranks and their degrees.
DIVISIONS: dict[str, tuple[int, tuple[str, ...]]] = {
    "one": (1, ()),
    "shard2": (2, ("shard=2",)),
    "shard4": (4, ("shard=4",)),
    "tensor2": (2, ("tensor=2",)),
    "pipeline2": (2, ("pipeline=2",)),
    "interleaved2": (2, ("pipeline=2", "pipelining.schedule=interleaved_1f1b")),
    "tensor2-shard2": (4, ("tensor=2", "shard=2")),
    "expert2": (2, ("shard=2", "expert=2")),
    "expert4": (4, ("shard=4", "expert=2")),
    "replicate2-expert2": (2, ("replicate=2", "expert=2")),
    "expert_tensor2": (2, ("tensor=2", "expert_tensor=2")),
    "replicated2": (2, ("shard=2", "sharding.replicated=[output, norm, layers.1.attention]")),
}
TRAINED = ("evaluation=null", "batch.global_size=4", "batch.micro_size=1",
           "schedule.horizon=4 steps")  # fmt: skip
COMMON = (
    *TRAINED, "model.dropout=0", "model.layers=2", "model.moe={experts: 4, load_sequences: 1}",
    "model.moe.router=sigmoid_top_k",
)  # fmt: skip
INTERLEAVED = ("one", "interleaved2")


class Kind(NamedTuple):
    """A kind of job, and the divisions that are tried with it."""

    flags: tuple[str, ...] = COMMON
    divisions: tuple[str, ...] = tuple(name for name in DIVISIONS if name != "interleaved2")


KINDS = {
    "fp32": Kind(),
    "masters": Kind(
        (*COMMON, "precision.params=bf16", "precision.compute=bf16", "precision.master=fp32")
    ),
    "adapter": Kind(
        (*COMMON,
         "adapter={type: dora, rank: 2, b_std: 0.1, quantize: {type: nf4, group_size: 8}}"),
        ("one", "expert2", "expert_tensor2"),
    ),
    # Two stages a rank, which draw the random numbers of one rank.
    "tied": Kind(
        (*COMMON, "model.layers=4", "model.tie_embeddings=true", "model.embedding_dropout=0.5"),
        INTERLEAVED,
    ),
    "own": Kind((*TRAINED, "model=import", f"model.target={MODULE}.Own"), INTERLEAVED),
}  # fmt: skip
SAVED, END = 2, 3


class Own(nn.Module):
    """A model that speaks the protocol of stages."""

    supports_head = True
    stream_width = 8

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding: nn.Module | None = nn.Embedding(vocab_size, 8)
        self.layers = nn.ModuleDict({str(number): nn.Linear(8, 8) for number in range(5)})
        self.output: nn.Linear | None = nn.Linear(8, vocab_size, bias=False)

    def stage_parts(self) -> list[str]:
        return ["embedding", *(f"layers.{name}" for name in self.layers), "output"]

    def keep_parts(self, parts: list[str]) -> None:
        self.layers = nn.ModuleDict(
            {name: layer for name, layer in self.layers.items() if f"layers.{name}" in parts}
        )
        if "embedding" not in parts:
            self.embedding = None
        if "output" not in parts:
            self.output = None

    def forward(self, tokens: Tensor, head: Any = None, **places: Tensor) -> Any:
        x = tokens if self.embedding is None else self.embedding(tokens)
        for layer in self.layers.values():
            x = x + torch.tanh(layer(x))
        if self.output is None:
            return Outcome(x)
        projection = Projection(self.output.weight, len(self.output.weight))
        return projection.logits(x) if head is None else Outcome(head(x, projection))


def job_of(folder: Path, division: str, steps: int, *flags: str) -> Job:
    world, degrees = DIVISIONS[division]
    ranks = [f"parallel.{degree}" for degree in degrees]
    return small_job(
        folder, *flags, f"duration={steps} steps", f"parallel.world_size={world}", *ranks,
        without=("accumulation",),
    )  # fmt: skip


@contextmanager
def joined(rank: int, store: str, division: str, job: Job) -> Iterator[World]:
    world = DIVISIONS[division][0]
    with group_of(rank, world, store):
        yield World(torch.device("cpu")) if world == 1 else world_of(job.parallel)


def stepped(
    job: Job, components: Components, position: Position
) -> tuple[Position, list[list[float]]]:
    seen = Seen()
    loop = Loop(job, components, [seen], StopRequest(), position)
    loop.run()
    return loop.position, [list(row) for row in seen.rows]


def held(components: Components, all_states: States) -> dict[str, Tensor]:
    """All tensors that a checkpoint would hold, whole."""
    with snapshot(all_states, Position()) as taken:
        own = {
            f"{stem}/{name}": whole_of(tensor).clone()
            for stem, named in taken.tensors.items()
            for name, tensor in named.items()
        }
    found: dict[str, Tensor] = {}
    for each in components.world.all_of(own) if components.pipeline is not None else [own]:
        found |= each
    return found


def saves(folder: Path, division: str, kind: str, *flags: str) -> int:
    """Train to step 2 and save; one rank trains on to the end, and keeps its rows."""

    def one_rank(rank: int, store: str) -> None:
        job = job_of(folder / f"{rank}", division, SAVED, *flags)
        with joined(rank, store, division, job) as world:
            components = build_components(job, world=world)
            position, rows = stepped(job, components, Position())
            root = folder / f"{division}-{kind}"
            with snapshot(states(job, components), position) as taken:
                CheckpointStore(root, world).save(
                    SAVED, taken.tensors, taken.state, texts=record_files(job)
                )
            if division == "one":
                rows += stepped(job_of(folder / "0", "one", END, *flags), components, position)[1]
                (folder / f"rows-{kind}").write_text(json.dumps(rows))

    return fork(one_rank, DIVISIONS[division][0])


def loads(folder: Path, befores: list[str], division: str, kind: str, *flags: str) -> int:
    """Load what each of the others has saved, compare it, and train on."""

    def one_rank(rank: int, store: str) -> None:
        job = job_of(folder / f"{rank}", division, END, *flags)
        rows = json.loads((folder / f"rows-{kind}").read_text())[SAVED:]
        with joined(rank, store, division, job) as world:
            for before in befores:
                components = build_components(job, world=world)
                all_states = states(job, components)
                saved = CheckpointStore(folder / f"{before}-{kind}", world).load_newest()
                assert saved is not None
                position = restore(job, all_states, saved)
                found = held(components, all_states)
                count = 0
                for stem, named in saved.tensors.items():
                    for name, tensor in named.items():
                        whole = in_memory(tensor)
                        here, what = found.pop(f"{stem}/{name}"), f"{before} -> {division}: {name}"
                        assert here.dtype == whole.dtype and torch.equal(here, whole), what
                        count += 1
                assert not found, (before, division, list(found))
                if kind != "masters":
                    _, further = stepped(job, components, position)
                    torch.testing.assert_close(
                        torch.tensor(further), torch.tensor(rows), rtol=1e-5, atol=1e-5
                    )
                if rank == 0:
                    print(f"{before} -> {division}, {kind}: {count} tensors equal")

    return fork(one_rank, DIVISIONS[division][0])


def loads_in_part(folder: Path, division: str) -> int:
    """Start a new run from what one rank has saved, but for the output and a layer's optimizer."""

    def one_rank(rank: int, store: str) -> None:
        source = folder / "one-fp32" / f"step-{SAVED:08}"
        exclude = r'checkpoint.exclude=["^output", "optimizer.layers\\.1", "loader"]'
        job = job_of(
            folder / f"{rank}", division, END, *COMMON, f"checkpoint.load={source}", exclude
        )
        with joined(rank, store, division, job) as world:
            components = build_components(job, world=world)
            all_states = states(job, components)
            first, frozen = held(components, all_states), FrozenParameters(job, components)
            loaded, position = warm_start(job, components, all_states, frozen)
            assert (position.step, loaded.left) == (SAVED, {"output.weight": "excluded"})
            assert loaded.entries == ("loader",) and set(loaded.anew.values()) == {"excluded"}
            found, saved = held(components, all_states), load_stored(source.parent, SAVED)
            for name, tensor in saved.tensors["model"].items():
                begun = name.startswith("output")
                before = first[f"model/{name}"] if begun else in_memory(tensor)
                assert torch.equal(found[f"model/{name}"], before), name
            kept = {name.rpartition("/")[0] for name in found if name.startswith("optimizer/")}
            assert "optimizer/layers.0.attention.query.weight" in kept
            assert not any("layers.1" in name or "output" in name.split(".")[0] for name in kept)
            misspelt = (f"checkpoint.load={source}", 'checkpoint.exclude=["outptu"]')
            wrong = job_of(folder / f"{rank}", division, END, *COMMON, *misspelt)
            with pytest.raises(SetpointError, match=r"Did you mean output\?"):
                warm_start(wrong, components, all_states, frozen)
            if rank == 0:
                print(f"one -> {division} in part")

    return fork(one_rank, DIVISIONS[division][0])


def main(wanted: list[tuple[str, ...]]) -> int:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for kind, (flags, _) in KINDS.items():
            pairs = [(before, after) for of, before, after in wanted if of == kind]
            for division in dict.fromkeys(["one", *(before for before, _ in pairs)] * bool(pairs)):
                if status := saves(folder, division, kind, *flags):
                    return status
            for division in dict.fromkeys(after for _, after in pairs):
                befores = [before for before, after in pairs if after == division]
                if status := loads(folder, befores, division, kind, *flags):
                    return status
        return loads_in_part(folder, "pipeline2") or loads_in_part(folder, "shard2")


if __name__ == "__main__":
    os.environ["SETPOINT_IMPORTS"] = "tests"
    every = [
        (name, *pair) for name, kind in KINDS.items() for pair in product(kind.divisions, repeat=2)
    ]
    sys.exit(main([tuple(word.split(":")) for word in sys.argv[1:]] or every))
