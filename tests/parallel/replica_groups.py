"""Run by test_torchft.py in a process of its own: two replica groups, of which one dies.

Its argument is a folder to train in. The second group is killed after some steps, and comes back
while the first trains on; a run of one rank without groups is the oracle.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import setpoint.train.run as running
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.verdict import StepResult

from ..train.small import small_job
from . import torchft_stand_in

LIGHTHOUSE = """
from torchft.coordination import LighthouseServer
import time
server = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=500)
print(server.address(), flush=True)
time.sleep(600)
"""
STEPS = 60
INSTALLED = find_spec("torchft") is not None


@contextmanager
def started(program: str, stand_in: Callable[[], str]) -> Iterator[str]:
    """The address of a lighthouse: torchft's, or that of a stand-in in this process."""
    if not INSTALLED:
        yield stand_in()
        return
    command = [sys.executable, "-c", program]
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


def flags(name: str, *more: str) -> tuple[str, ...]:
    return (
        f"name={name}", f"duration={STEPS} steps", "evaluation=null", "model.dropout=0",
        "schedule={type: constant}", "batch.global_size=8", "checkpoint.every=10 steps", *more,
    )  # fmt: skip


def train_group(folder: Path, lighthouse: str, number: int, act: Callable[[Loop], None]) -> int:
    """Train one replica group in a process of its own."""
    child = os.fork()
    if child:
        return child
    job = small_job(
        folder, *flags("groups", f"parallel.torchft.lighthouse={lighthouse}",
                       f"parallel.torchft.replica_id={number}", "parallel.torchft.timeout=20",
                       "parallel.timeout=60"),
        without=("accumulation", "micro_size"),
    )  # fmt: skip
    build = running.build_callbacks
    running.build_callbacks = lambda *given: [*build(*given), Paces(act)]
    running.train(job)
    os._exit(0)


def size_of(loop: Loop) -> int:
    """With how many groups a step was taken."""
    assert loop.components.replica_groups is not None
    return loop.components.replica_groups.size


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: Path) -> None:
    with started(LIGHTHOUSE, lambda: torchft_stand_in.Lighthouse().address) as lighthouse:
        back, together = folder / "back", 0

        def die(loop: Loop) -> None:
            """After some steps with the other group, in the middle of one."""
            nonlocal together
            together += size_of(loop) == 2
            if together == 4:
                loop.engine.update = lambda *_: os.kill(  # type: ignore[method-assign,assignment]
                    os.getpid(), signal.SIGKILL
                )

        def wait(loop: Loop) -> None:
            """Do not reach the end before the other group is back."""
            if loop.position.step > 1 and not back.exists():
                time.sleep(0.5)

        def come_back(loop: Loop) -> None:
            if size_of(loop) == 2:
                back.touch()

        first = train_group(folder, lighthouse, 0, wait)
        second = train_group(folder, lighthouse, 1, die)
        assert ended(second) == -signal.SIGKILL
        second = train_group(folder, lighthouse, 1, come_back)
        codes = ended(first), ended(second)
    assert codes == (0, 0), codes
    alone = os.fork()
    if not alone:
        running.train(small_job(folder, *flags("alone"), without=("accumulation",)))
        os._exit(0)
    assert ended(alone) == 0


if __name__ == "__main__":
    if not INSTALLED:
        sys.modules["torchft"] = torchft_stand_in
    main(Path(sys.argv[1]))
