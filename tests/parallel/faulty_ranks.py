"""Run by test_faults.py in a process of its own: one of two ranks dies or hangs in some phase.

Its arguments are a folder to train in, and cases such as `step: hangs`; each rank prints how it
ended.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch._dynamo  # which DDP imports, and takes seconds  # noqa: F401
from torch.distributed import ProcessGroup

from setpoint.config import SetpointError
from setpoint.parallel.world import World
from setpoint.train.config import Job
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from ..support.ranks import free_port, launched
from ..train.small import small_job

AT_ONCE = 2
EVENTS: dict[str, Callable[[], object]] = {
    "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hangs": lambda: time.sleep(600),
}


class Fault(Callback):
    """Happens to the last rank in a phase of training.

    Arguments:
        at: `step` is the backward pass of step 6, `callback` what is called after step 5, and
            `save` the save of step 8.
    """

    phase = Phase.EVALUATE

    def __init__(self, at: str, happens: Callable[[], object]) -> None:
        self.at, self.happens = at, happens

    def after_step(self, loop: Loop, result: StepResult) -> None:
        del result
        if self.at == "save" and loop.position.step == 8:
            self.happens()
        if self.at == "callback" and loop.position.step == 5:
            self.happens()
        if self.at == "step" and loop.position.step == 5:
            loop.engine.update = lambda *_: self.happens()  # type: ignore[method-assign,assignment]

    def finish(self, loop: Loop) -> None:
        del loop
        if self.at == "end":
            self.happens()


def one_rank(rank: int, port: int, phase: str, event: str, job: Job) -> None:
    launched(rank, 2, port)
    if phase == "new group":
        # Such as that of an axis, or of saves in the background.
        group = World.group

        def meet(self: World, *axes: str) -> ProcessGroup | None:
            if rank:
                EVENTS[event]()
            return group(self, *axes, "replicate")

        World.group = meet  # type: ignore[method-assign]
    if rank:
        happens = EVENTS[event]
        if phase == "start":
            happens()
        if phase == "first collective":
            World.all_of = lambda self, value: happens()  # type: ignore[assignment,misc]
        import setpoint.train.run as run

        build = run.build_callbacks
        run.build_callbacks = lambda *given: [*build(*given), Fault(phase, happens)]
    try:
        train(job)
    except SetpointError as error:
        print(f"rank {rank}: {error}", flush=True)
        return
    print(f"rank {rank}: done", flush=True)


def run_case(phase: str, event: str, folder: Path) -> None:
    """Train on two ranks, and end the second one when the first has ended, as a launcher does.

    What the ranks print is in `said.txt` of the folder.
    """
    within = phase in ("step", "callback")  # where less time is given than elsewhere
    meets = phase in ("start", "new group")  # where nobody hears that a rank has died
    waits = 30 if within or (event == "dies" and not meets) else 5
    job = small_job(
        folder, f"parallel.timeout={waits}",
        f"parallel.step_timeout={4 if event == 'hangs' or meets else 30}",
        "resilience.heartbeat.every=0.1", "resilience.liveness_every=1 steps",
        "parallel.world_size=2", "batch.micro_size=1", "duration=8 steps", "evaluation=null",
        "tracking.progress=none",
    )  # fmt: skip
    port, ranks = free_port(), []
    for rank in range(2):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            with (folder / "said.txt").open("a") as said:
                os.dup2(said.fileno(), 1)
            one_rank(rank, port, phase, event, job)
            os._exit(0)
    os.waitpid(ranks[0], 0)
    os.kill(ranks[1], signal.SIGKILL)
    os.waitpid(ranks[1], 0)


def main(folder: Path, cases: Sequence[str]) -> None:
    """Try the cases, of which each waits for most of its time: a few at once."""
    folders = {case: folder / case.replace(": ", "-").replace(" ", "-") for case in cases}
    running: dict[int, str] = {}
    left = list(cases)
    while left or running:
        while left and len(running) < AT_ONCE:
            phase, _, event = (case := left.pop(0)).partition(": ")
            child = os.fork()
            if child == 0:
                run_case(phase, event, folders[case])
                os._exit(0)
            running[child] = case
        ended, status = os.wait()
        assert status == 0, running[ended]
        del running[ended]
    for case, place in folders.items():
        print(f"== {case}\n{(place / 'said.txt').read_text()}", end="")


if __name__ == "__main__":
    os.fsync = lambda descriptor: None
    main(Path(sys.argv[1]), sys.argv[2:])
