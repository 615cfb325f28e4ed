"""Run by test_torchft.py in a process of its own: two replica groups of one or two ranks each.

Its arguments are a folder to train in, the number of ranks, `kill` or not, and flags of the job.
With `kill` the last rank of the second group is killed in a step, and its group comes back while
the first trains on. A run of one rank without groups is the oracle.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import setpoint.train.run as running
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.verdict import StepResult

from ..support.ranks import fork, group_of
from ..train.small import small_job

LIGHTHOUSE = """
from torchft.coordination import LighthouseServer
import time
server = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=500)
print(server.address(), flush=True)
time.sleep(600)
"""


@contextmanager
def lighthouse_address() -> Iterator[str]:
    """The address of torchft's server, while it runs."""
    command = [sys.executable, "-c", LIGHTHOUSE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


class Paces(Callback):
    """Does something after each step."""

    phase = Phase.LAST

    def __init__(self, act: Callable[[Loop], None]) -> None:
        self.act = act

    def after_step(self, loop: Loop, result: StepResult) -> None:
        del result
        self.act(loop)


def size_of(loop: Loop) -> int:
    """With how many groups a step was taken."""
    assert loop.components.replica_groups is not None
    return loop.components.replica_groups.size


def flags(name: str, steps: int, *more: str) -> tuple[str, ...]:
    return (
        f"name={name}", f"duration={steps} steps", "evaluation=null", "model.dropout=0",
        "schedule={type: constant}", "batch.global_size=8", "batch.micro_size=1",
        "checkpoint.every=5 steps", "parallel.device=cpu", *more,
    )  # fmt: skip


def train_group(
    folder: Path, lighthouse: str, number: int, ranks: int, given: tuple[str, ...],
    act: Callable[[Loop], None], tag: str = "",
) -> int:  # fmt: skip
    """Train one replica group, each of its ranks in a process of its own."""
    child = os.fork()
    if child:
        return child
    job = small_job(
        folder, *given, f"parallel.world_size={ranks}", f"parallel.torchft.replica_id={number}",
        f"parallel.torchft.lighthouse={lighthouse}", "parallel.torchft.timeout=20",
        "parallel.timeout=60", without=("accumulation", "micro_size"),
    )  # fmt: skip

    def one_rank(rank: int, store: str) -> None:
        build = running.build_callbacks
        running.build_callbacks = lambda *given: [*build(*given), Paces(act)]
        with group_of(rank, ranks, f"{store}{tag}"):
            running.train(job)

    os._exit(fork(one_rank, ranks))


def main(folder: Path, ranks: int, kill: bool, *more: str) -> int:
    steps = 24 if kill else 4
    model = tuple(each for each in more if not each.startswith("parallel."))
    given = flags("groups", steps, *more)
    back, together = folder / "back", 0

    def die(loop: Loop) -> None:
        """After some steps with the other group, in the middle of one, with one of the ranks."""
        nonlocal together
        together += size_of(loop) == 2
        saved = loop.position.step > 5  # a checkpoint, with which it comes back
        if together >= 4 and saved and loop.components.world.rank == ranks - 1:
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

    with lighthouse_address() as lighthouse:
        first = train_group(folder, lighthouse, 0, ranks, given, wait)
        second = train_group(folder, lighthouse, 1, ranks, given, die if kill else come_back)
        if kill:
            assert os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])
            second = train_group(folder, lighthouse, 1, ranks, given, come_back, "again")
        codes = [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in (first, second)]
    if any(codes):
        return max(codes)

    def alone(rank: int, store: str) -> None:
        del rank, store
        running.train(small_job(folder, *flags("alone", steps, *model), without=("accumulation",)))

    return fork(alone, 1)


if __name__ == "__main__":
    place, size, kill, *more = sys.argv[1:]
    sys.exit(main(Path(place), int(size), kill == "kill", *more))
