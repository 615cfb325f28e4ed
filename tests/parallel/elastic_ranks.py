"""Run by test_elastic.py in a process of its own: a run whose ranks die, and come back as others.

    elastic_ranks.py FOLDER SHAPES

The shapes are those of the run `elastic`: how many ranks, and after which step the last of them is
killed, as `[[4, 3], [2, null]]`. The run `alone` has one rank from the first step to the last.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch._dynamo  # which DDP imports, and takes seconds  # noqa: F401

import setpoint.train.run as running
from setpoint.config import SetpointError
from setpoint.train.config import Job
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.verdict import StepResult

from ..support.ranks import free_port, launched
from ..train.small import small_job


class Dies(Callback):
    """Kills this process after a step."""

    phase = Phase.LAST

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, loop: Loop, result: StepResult) -> None:
        del result
        if loop.position.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def one_rank(rank: int, size: int, port: int, job: Job, dies: int | None) -> None:
    launched(rank, size, port)
    if dies is not None and rank == size - 1:
        build = running.build_callbacks
        running.build_callbacks = lambda *given: [*build(*given), Dies(dies)]
    try:
        running.train(job)
    except SetpointError as error:
        assert "lost its connection to the others" in str(error), error


def run_ranks(folder: Path, name: str, steps: int, size: int, dies: int | None) -> None:
    job = small_job(
        folder, f"name={name}", f"parallel.world_size={size}", "parallel.shard=-1",
        "batch.global_size=8", f"duration={steps} steps", "evaluation=null",
        "checkpoint.every=2 steps",
        "schedule={type: constant}", "model.dropout=0",
        without=("accumulation",),
    )  # fmt: skip
    port, ranks = free_port(), []
    for rank in range(size):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            one_rank(rank, size, port, job, dies)
            os._exit(0)
    codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
    assert codes == [0] * (size - 1) + [0 if dies is None else -signal.SIGKILL], codes


if __name__ == "__main__":
    place, shapes = Path(sys.argv[1]), json.loads(sys.argv[2])
    length = 2 + 2 * len(shapes)
    for size, dies in shapes:
        run_ranks(place, "elastic", length, size, dies)
    run_ranks(place, "alone", length, 1, None)
