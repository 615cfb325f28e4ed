"""Run by test_faults.py in a process of its own: one of two ranks dies or hangs in some phase.

Its arguments are a folder to train in, and cases such as `step: hangs`; it prints for each what the
rank says that is left.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch._dynamo  # which DDP imports, and takes seconds  # noqa: F401
from torch.distributed import ProcessGroup

import setpoint.train.run as running
from setpoint.parallel.world import World
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.verdict import StepResult

from ..long.torture.session import Session
from ..train.small import write_config

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


def run_case(phase: str, event: str, folder: Path) -> None:
    """Train on two ranks, of which the second one is killed when the first has ended."""
    happens = EVENTS[event]

    def within(stack: ExitStack, rank: int) -> None:
        del stack
        if phase == "new group":
            # Such as that of an axis, or of saves in the background.
            group = World.group

            def meet(self: World, *axes: str) -> ProcessGroup | None:
                if rank:
                    happens()
                return group(self, *axes, "replicate")

            World.group = meet  # type: ignore[method-assign]
        if rank:
            if phase == "start":
                happens()
            if phase == "first collective":
                World.all_of = lambda self, value: happens()  # type: ignore[assignment,misc]
            build = running.build_callbacks
            running.build_callbacks = lambda *given: [*build(*given), Fault(phase, happens)]

    in_steps = phase in ("step", "callback")  # where less time is given than elsewhere
    meets = phase in ("start", "new group")  # where no rank hears that another has died
    flags = (
        f"parallel.timeout={30 if in_steps or (event == 'dies' and not meets) else 5}",
        f"parallel.step_timeout={4 if event == 'hangs' or meets else 30}",
        "resilience.heartbeat.every=0.1", "resilience.liveness_every=1 steps",
        "batch.micro_size=1", "duration=8 steps", "evaluation=null", "tracking.progress=none",
    )  # fmt: skip
    write_config(folder)
    words = ["train", "small.toml", *(f"--{flag}" for flag in flags)]
    Session(folder, 2, words, within, may_hang=[1]).wait()


def main(folder: Path, cases: Sequence[str]) -> None:
    """Try the cases, of which each waits for most of its time: a few at once."""
    folders = {case: folder / case.replace(": ", "-").replace(" ", "-") for case in cases}
    children: dict[int, str] = {}
    left = list(cases)
    while left or children:
        while left and len(children) < AT_ONCE:
            phase, _, event = (case := left.pop(0)).partition(": ")
            child = os.fork()
            if child == 0:
                run_case(phase, event, folders[case])
                os._exit(0)
            children[child] = case
        ended, status = os.wait()
        assert status == 0, children[ended]
        del children[ended]
    for case, place in folders.items():
        print(f"== {case}\n{(place / 'output-0.txt').read_text()}", end="")


if __name__ == "__main__":
    os.fsync = lambda descriptor: None
    main(Path(sys.argv[1]), sys.argv[2:])
