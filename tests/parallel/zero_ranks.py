"""Run by test_deepspeed.py: two ranks, among which DeepSpeed divides what they would each hold.

Its arguments are the parts to run; all of them without any.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import RunError, record_files
from setpoint.parallel.world import World, world_of
from setpoint.parallel.zero import ZeroReplicas, load_deepspeed
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.placed import in_memory
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.evaluation.scores import evaluate
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run_state import FrozenParameters, restore, snapshot
from setpoint.train.warm_start import warm_start

from ..support.ranks import fork_group
from ..train.small import small_job, states
from .equal_ranks import CASES, Seen, compare

# Messages that hold a part of the weights, some of which divide unevenly.
SMALL = "bucket_size=0.01,engine=deepspeed,engine.gather_size=0.01"
STAGES = {
    1: f"replicate=2,{SMALL},engine.stage=1",
    2: f"replicate=2,{SMALL},engine.stage=2,engine.overlap=true",
    3: f"replicate=2,{SMALL},engine.stage=3,engine.persistence_threshold=100",
}
RANKS = ("parallel.world_size=2", "schedule.horizon=6 steps", "model.dropout=0")
HEAVY = (*CASES["uneven rows"], *CASES["tied embeddings"], "optimizer.clip_norm=0.1")


def on(stage: int) -> list[str]:
    return [f"parallel.{each}" for each in STAGES[stage].split(",")]


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


def check(what: str, whole: Session, rows: list[Any], last: Session) -> None:
    close(what, torch.tensor(rows), torch.tensor(whole.rows))
    close(what, torch.tensor(last.loss), torch.tensor(whole.loss))
    assert last.saved.keys() == whole.saved.keys(), last.saved.keys() ^ whole.saved.keys()
    for name, tensor in whole.saved.items():
        close(f"{what}, {name}", last.saved[name], tensor)


def close(what: str, found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, msg=lambda m: f"{what}: {m}")


def equal(folder: Path) -> None:
    """What one rank trains: clipped, accumulated, with uneven counts of targets."""
    shapes = list(STAGES.values())
    compare(folder, "clipped, tied, uneven", HEAVY, shapes)
    compare(folder, "computed in bf16", CASES["computed in bf16"], shapes[1:])
    compare(folder, "lion", CASES["lion"], shapes[2:])
    compare(folder, "sgd", CASES["sgd"], shapes[:1])
    compare(folder, "frozen parameters", CASES["frozen parameters"], shapes[2:])
    frozen = (*CASES["chunked loss"], *CASES["recomputed activations"])
    compare(folder, "chunked loss, recomputed", frozen, shapes[2:])
    compare(folder, "evaluated", CASES["evaluated"], shapes[2:])


def offload(folder: Path) -> None:
    """State in host memory, which a CPU's memory is: the same numbers."""
    for stage, what in ((2, "optimizer"), (3, "all")):
        moved = f"{STAGES[stage]},engine.offload={what},device=auto"
        compare(folder, f"offloaded, {what}", (), [moved])


def resumed(folder: Path) -> None:
    """Checkpoints go from every engine to every other, and a break changes no bit."""
    shared = folder.parent
    for stage in STAGES:
        whole = session(stage, 6, folder, shared / f"whole-{stage}")
        first = session(stage, 3, folder, shared / f"broken-{stage}")
        then = session(stage, 6, folder, shared / f"broken-{stage}")
        assert [*first.rows, *then.rows] == whole.rows, stage
        assert then.loss == whole.loss and then.saved.keys() == whole.saved.keys()
        for name, tensor in whole.saved.items():
            assert torch.equal(then.saved[name], tensor), (stage, name)
        # From DeepSpeed to FSDP2 and to one rank, and from FSDP2 to DeepSpeed.
        session(stage, 3, folder, shared / f"forth-{stage}")
        last = session(0, 6, folder, shared / f"forth-{stage}")
        check(f"FSDP2 after stage {stage}", whole, [*first.rows, *last.rows], last)
        session(0, 3, folder, shared / f"back-{stage}")
        last = session(stage, 6, folder, shared / f"back-{stage}")
        check(f"stage {stage} after FSDP2", whole, [*first.rows, *last.rows], last)
        alone = small_job(folder, *RANKS[1:], "duration=6 steps", "batch.micro_size=4")
        session(stage, 3, folder, shared / f"alone-{stage}")
        here = Path(shutil.copytree(shared / f"alone-{stage}", folder / f"alone-{stage}"))
        last = Session(alone, World(torch.device("cpu")), here)
        close(f"one rank after stage {stage}", *map(torch.tensor, (last.rows, whole.rows[3:])))


def session(stage: int, steps: int, folder: Path, root: Path) -> Session:
    """Train under a stage of ZeRO; 0: under FSDP2."""
    flags = on(stage) if stage else ["parallel.shard=2"]
    job = small_job(folder, *RANKS, f"duration={steps} steps", *flags)
    return Session(job, world_of(job.parallel), root)


def loaded(folder: Path) -> None:
    """A new run starts from a checkpoint of another, in part as well."""
    root = folder.parent / "other"
    saved = session(1, 3, folder, root).saved
    for flags in ((), ("checkpoint.exclude=[optimizer, loader, position]",)):
        given = (*on(3), f"checkpoint.load={root / 'step-00000003'}", *flags)
        job = small_job(folder, *RANKS, "duration=6 steps", *given)
        components = build_components(job)
        found, position = warm_start(
            job, components, states(job, components), FrozenParameters(job, components)
        )
        assert (found.weights, position.step) == (len(weights_of(components)), 0 if flags else 3)
        for name, held in weights_of(components).items():
            assert torch.equal(held, saved[f"model/{name}"]), name
        assert isinstance(components.replicas, ZeroReplicas)
        kept = {
            key: each for _, state in components.replicas.states() for key, each in state.items()
        }
        assert bool(kept) != bool(flags) and (flags or float(kept["step"]) == 3)


def not_finite(folder: Path) -> None:
    """A loss that is not finite on one rank leaves all weights as they were."""
    for stage in STAGES:
        job = small_job(folder, *RANKS, "duration=2 steps", *on(stage))
        components = build_components(job)
        zero = components.replicas
        assert isinstance(zero, ZeroReplicas)
        real, before = zero.backward, weights_of(components)
        held, whole = zero.local_bytes(), 4 * components.parameter_count
        assert whole / 2 <= held["masters"] < 0.6 * whole
        assert held.get("parameters", whole) <= (0.6 if stage == 3 else 1) * whole

        def broken(loss: Tensor, real: Any = real) -> None:
            real(loss * float("inf") if dist.get_rank() == 1 else loss)

        zero.backward = broken
        try:
            Loop(job, components, [], StopRequest(), Position()).run()
        except RunError as error:
            assert "not finite" in str(error), error
        else:
            raise AssertionError("nothing was refused")
        after = weights_of(components)
        assert all(torch.equal(before[name], after[name]) for name in before), stage


def weights_of(parts: Any) -> dict[str, Tensor]:
    return {name: held.clone() for name, held in parts.replicas.tensors()}


PARTS = {
    "equal": equal, "offload": offload, "resumed": resumed, "loaded": loaded,
    "not_finite": not_finite,
}  # fmt: skip


def one_rank(rank: int, store: str) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory(dir=Path(store).parent) as folder:
            PARTS[name](Path(folder))
        if rank == 0:
            print(name)


if __name__ == "__main__":
    load_deepspeed(torch.device("cpu"))
    sys.exit(fork_group(one_rank, 2))
