"""Run by test_pipeline.py: stages of a pipeline go on from a checkpoint of one rank, and back.

Its arguments are overrides of the jobs; `own` stands for a model of a user's own.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import record_files
from setpoint.parallel.world import World, world_of
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.outcome import Outcome, Projection
from setpoint.shapes.placed import in_memory
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.evaluation.scores import evaluate
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run_state import restore, snapshot

from ..support.ranks import fork_group
from ..train.small import small_job, states
from .equal_ranks import STAGED, Seen

WORLD = 2
OWN = ("model=import", "model.target=tests.parallel.pipeline_resume.Own", "batch.accumulation=4")
COMMON = ("schedule.horizon=6 steps", *(
    OWN if sys.argv[1:] == ["own"] else (*STAGED, "model.dropout=0", *sys.argv[1:])
))  # fmt: skip
CUT = (f"parallel.world_size={WORLD}", "parallel.pipeline=2",
       "parallel.pipelining.schedule=interleaved_1f1b")  # fmt: skip


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


class Session:
    """Goes on from the newest checkpoint of a store, and saves at the end.

    `rows` are the losses and norms of its steps, `loss` is that of an evaluation at the end,
    `saved` what the checkpoint holds.
    """

    def __init__(self, job: Job, world: World, root: Path) -> None:
        components = build_components(job, world=world)
        held, store = states(job, components), CheckpointStore(root, keep=None, world=world)
        store.prepare()
        checkpoint = store.load_newest()
        position = Position() if checkpoint is None else restore(job, held, checkpoint)
        seen = Seen()
        loop = Loop(job, components, [seen], StopRequest(), position)
        loop.run()
        with snapshot(held, loop.position) as taken:
            step, record = loop.position.step, record_files(job)
            store.save(step, taken.tensors, taken.state, texts=record)
        saved = store.load_newest()
        assert saved is not None
        self.rows: list[Any] = seen.rows
        self.loss = evaluate(job, components)["held_out"].loss
        self.saved = {
            f"{stem}/{name}": in_memory(tensor)
            for stem, named in saved.tensors.items()
            for name, tensor in named.items()
        }


def one_rank(rank: int, store: str) -> None:
    os.environ["SETPOINT_IMPORTS"] = "tests"
    shared = Path(store).parent
    with tempfile.TemporaryDirectory() as folder:
        flags = (*COMMON, "duration=3 steps"), (*COMMON, "duration=6 steps")
        alone = [small_job(Path(folder), *each) for each in flags]
        cut = [small_job(Path(folder), *each, *CUT) for each in flags]
        one, ranks = World(torch.device("cpu")), world_of(cut[0].parallel)
        # What one rank does without a break, each rank by itself.
        whole = Session(alone[1], one, Path(folder) / "whole")
        # From two stages to one rank, which both try.
        first = Session(cut[0], ranks, shared / "cut")
        then = Session(alone[1], one, copied(shared / "cut", Path(folder) / "then"))
        check("one rank after stages", whole, [*first.rows, *then.rows], then)
        # And from one rank to two stages.
        Session(alone[0], one, Path(folder) / "alone")
        root = shared / "alone"
        ranks.on_main(lambda: copied(Path(folder) / "alone", root) and None)
        last = Session(cut[1], ranks, root)
        check("stages after one rank", whole, [*whole.rows[:3], *last.rows], last)
        if rank == 0:
            print("resumed in both directions")


def copied(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))


def check(what: str, whole: Session, rows: list[Any], last: Session) -> None:
    close(what, torch.tensor(rows), torch.tensor(whole.rows))
    close(what, torch.tensor(last.loss), torch.tensor(whole.loss))
    assert last.saved.keys() == whole.saved.keys(), last.saved.keys() ^ whole.saved.keys()
    for name, tensor in whole.saved.items():
        close(f"{what}, {name}", last.saved[name], tensor)


def close(what: str, found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, msg=lambda m: f"{what}: {m}")


if __name__ == "__main__":
    sys.exit(fork_group(one_rank, WORLD))
