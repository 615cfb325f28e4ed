"""Run by test_torchft.py in a process of its own: two replica groups of two ranks each.

Its arguments are a folder to train in, the flags of a rank's part of the model, and `kill`: a rank
of the second group is then killed in a step, its group comes back while the first trains on. A run
of one rank without groups is the oracle. torchft is the package, or its stand-in where it is not
installed.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

import setpoint.train.run as running
from setpoint.train.loop import Loop

from ..support.ranks import fork
from ..train.small import small_job
from . import torchft_stand_in
from .replica_groups import INSTALLED, LIGHTHOUSE, Paces, size_of, started

RANKS = 2


def flags(name: str, steps: int, *more: str) -> tuple[str, ...]:
    return (
        f"name={name}", f"duration={steps} steps", "evaluation=null", "model.dropout=0",
        "schedule={type: constant}", "batch.global_size=8", "batch.micro_size=1",
        "checkpoint.every=5 steps", "parallel.device=cpu", *more,
    )  # fmt: skip


def train_group(
    folder: Path, lighthouse: str, number: int, given: tuple[str, ...],
    act: Callable[[Loop], None], tag: str = "",
) -> int:  # fmt: skip
    """Train one replica group, each of its ranks in a process of its own."""
    child = os.fork()
    if child:
        return child
    job = small_job(
        folder, *given, f"parallel.world_size={RANKS}", f"parallel.torchft.replica_id={number}",
        f"parallel.torchft.lighthouse={lighthouse}", "parallel.torchft.timeout=20",
        "parallel.timeout=60", without=("accumulation", "micro_size"),
    )  # fmt: skip

    def one_rank(rank: int, store: str) -> None:
        torch.set_num_threads(1)
        os.environ.update(WORLD_SIZE=str(RANKS), RANK=str(rank), LOCAL_RANK=str(rank))
        place = f"file://{store}{tag}"
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=RANKS)
        build = running.build_callbacks
        running.build_callbacks = lambda *given: [*build(*given), Paces(act)]
        running.train(job)
        dist.destroy_process_group()

    os._exit(fork(one_rank, RANKS))


def main(folder: Path, kill: bool, *more: str) -> int:
    steps = 24 if kill else 4
    ranks = tuple(each for each in more if each.startswith("parallel."))
    model = tuple(each for each in more if each not in ranks)
    given = flags("groups", steps, *more)
    back, together = folder / "back", 0

    def die(loop: Loop) -> None:
        """After some steps with the other group, in the middle of one, with one of the ranks."""
        nonlocal together
        together += size_of(loop) == 2
        saved = loop.position.step > 5  # a checkpoint, with which it comes back
        if together >= 4 and saved and loop.components.world.rank == 1:
            loop.engine.update = lambda *_: os.kill(  # type: ignore[method-assign,assignment]
                os.getpid(), signal.SIGKILL
            )

    def wait(loop: Loop) -> None:
        """Do not reach the end before the other group is back."""
        if kill and loop.position.step > 4 and not back.exists():
            time.sleep(0.5)

    def come_back(loop: Loop) -> None:
        if size_of(loop) == 2:
            back.touch()

    with started(LIGHTHOUSE, lambda: torchft_stand_in.Lighthouse().address) as lighthouse:
        first = train_group(folder, lighthouse, 0, given, wait)
        second = train_group(folder, lighthouse, 1, given, die if kill else come_back)
        if kill:
            assert os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])
            second = train_group(folder, lighthouse, 1, given, come_back, "again")
        codes = [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in (first, second)]
    if any(codes):
        return max(codes)

    def alone(rank: int, store: str) -> None:
        del rank, store
        running.train(small_job(folder, *flags("alone", steps, *model), without=("accumulation",)))

    return fork(alone, 1)


if __name__ == "__main__":
    if not INSTALLED:
        sys.modules["torchft"] = torchft_stand_in
    with suppress(KeyboardInterrupt):
        sys.exit(main(Path(sys.argv[1]), sys.argv[2] == "kill", *sys.argv[3:]))
