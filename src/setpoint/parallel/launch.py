"""Start the ranks of a job on this machine, by torch's elastic agent, and see them end."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from uuid import uuid4

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from setpoint.config import RunError
from setpoint.parallel.rank import FOLDER, ask, endings

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def launch(words: Sequence[str], ranks: int, logs: Path) -> int:
    """Run a command of Setpoint's on several ranks of this machine.

    The main rank has this process's output. What the others print is kept in `logs`, as
    `rank-N.out` and `rank-N.err`. Signals go to all ranks.

    Arguments:
        words: of the command line, after `setpoint`.
        logs: made where it is not there, once there is something to keep.

    Returns:
        the exit status of the ranks, which stop together.

    Raises:
        RunError: a rank has failed: what the first one says.
    """
    place = Path(tempfile.mkdtemp(prefix="setpoint-ranks-"))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        signals_to_handle="SIGQUIT",
        logs_specs=DefaultLogsSpecs(
            log_dir=str(place / "output"),
            redirects=dict.fromkeys(range(1, ranks), Std.ALL),
        ),
    )
    threads = max(1, (os.cpu_count() or 1) // ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ[FOLDER] = str(place)
    # What the agent says of ranks that end is said below, in fewer words.
    logging.disable(logging.CRITICAL)
    try:
        with _forwarding(place):
            elastic_launch(config, sys.executable)("-m", "setpoint", *words)
    except ChildFailedError as failed:
        return _status(place, ranks, failed, logs)
    finally:
        logging.disable(logging.NOTSET)
        del os.environ[FOLDER]
        _keep(place / "output", logs)
        shutil.rmtree(place, ignore_errors=True)
    return 0


@contextmanager
def _forwarding(place: Path) -> Iterator[None]:
    """Let the ranks answer signals, all of them the same one."""

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        ask(place, number)

    before = {number: signal.getsignal(number) for number in STOPS}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, forward)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _status(place: Path, ranks: int, failed: ChildFailedError, logs: Path) -> int:
    """What the ranks have ended with.

    Raises:
        RankFailed: one has failed: of those that say why, the first, unless it has only lost
            another one, which may have been killed without a word.
    """
    found = endings(place)
    silent = [
        (rank, failure)
        for rank, failure in failed.failures.items()
        if rank not in {each.rank for each in found}
    ]
    failing = [each for each in found if each.error]
    if failing and (not failing[0].is_lost or not silent):
        raise RankFailed(failing[0].status, failing[0].error)
    if silent:
        rank, failure = min(silent, key=lambda pair: pair[1].timestamp)
        killed = failure.exitcode < 0
        how = f"signal {failure.signal_name()}" if killed else f"exit status {failure.exitcode}"
        printed = f"; what it printed is in {logs / f'rank-{rank}.err'}" if rank else ""
        raise RankFailed(1, f"rank {rank} of {ranks} has ended by {how} and said nothing{printed}")
    return min(found).status


class RankFailed(RunError):
    """What the first rank that failed says.

    Arguments:
        status: its exit status, which is that of the launcher.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def _keep(output: Path, logs: Path) -> None:
    """Add what the ranks have printed to the logs of the run, if there is one."""
    for printed in sorted(output.rglob("std*.log")):
        rank, kind = printed.parent.name, printed.stem.removeprefix("std")
        if not printed.stat().st_size or not logs.parent.is_dir():
            continue
        logs.mkdir(exist_ok=True)
        with (logs / f"rank-{rank}.{kind}").open("ab") as kept:
            kept.write(printed.read_bytes())
