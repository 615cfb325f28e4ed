"""Launcher of this machine's ranks, built on torch's `elastic_launch`, and its error reports."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any
from uuid import uuid4

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.multiprocessing.tail_log import TailLog
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousError, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from setpoint.config import RunError, SetpointError
from setpoint.config.values.user_code import LOG_OF
from setpoint.parallel.rank import (
    FOLDER,
    PREFIX,
    Ended,
    ask,
    is_stop_requested,
    is_timeout,
    process_of,
    reports_in,
    requested_signal,
)

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
SAVE = signal.SIGUSR2
"""Signal that requests a checkpoint without stopping."""
STOPPED = (75, 129, 130, 138, 143)
"""Exit statuses of a rank stopped by a signal; handled, or by Python's default."""
MEETING = "setpoint"
"""Name of Setpoint's rendezvous in torch's registry."""
LOOK = 0.5
"""Polling interval of the output of ranks, in seconds."""
LAST_LINES = 8
"""Lines of each stream that are shown of what a rank printed."""
LAST_CALL = 10
"""Seconds for which fewer nodes than the maximum wait for others before they start."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a job, each running this launcher.

    Arguments:
        least, most: number of nodes at a time; ranks restart when a node joins or leaves.
        endpoint: host and port of the rendezvous of launchers; the host is one of the nodes.
        run_id: the same on all nodes, and unique to this job.
        timeout: seconds that nodes wait for each other.
    """

    least: int
    most: int
    endpoint: str
    run_id: str
    timeout: float


class RankFailed(RunError):
    """Error of the first rank that failed.

    Arguments:
        status: its exit status, which becomes that of the launcher.
        may_restart: whether the rank was killed or did not answer, so that a restart may help.
        report: the report of that rank, with the traceback to show; None: there is none.
    """

    def __init__(
        self, status: int, text: str, may_restart: bool = False, report: Ended | None = None
    ) -> None:
        super().__init__(text)
        self.status, self.may_restart = status, may_restart
        self.rank_traceback = "" if report is None else report.traceback
        if report is not None and report.log:
            setattr(self, LOG_OF, report.log)


def launch(
    words: Sequence[str],
    ranks: int,
    logs: Path | None = None,
    nodes: Nodes | None = None,
    restarts: int = 0,
    grace: float = 30.0,
    note: Callable[[str], None] = lambda text: None,
) -> int:
    """Run a Setpoint command on several ranks of this machine.

    The first rank of a machine shares this process's output. The output of the other ranks is
    collected in `ranks.log`, with the rank number before each line. Signals are forwarded to all
    ranks.

    Arguments:
        words: the command line, after `setpoint`.
        ranks: number of ranks on this machine.
        logs: the run's log folder, created by the run itself; None: there is none, and errors
            include the last lines printed by a rank.
        nodes: None for this machine alone.
        restarts: how often all ranks are restarted after one was killed or hung.
        grace: seconds that ranks have for saving when they are stopped.
        note: function that shows a line to the user.

    Returns:
        the exit status of the ranks, all of which stop together.

    Raises:
        RunError: a rank failed (with the error of the first one), or nodes are missing.
        SetpointError: the log is a link, or the endpoint of the nodes is not an address.
    """
    name = "ranks.log" if nodes is None else f"ranks-{socket.gethostname()}.log"
    log = None if logs is None else logs / name
    if log is not None and log.is_symlink():
        raise SetpointError(f"{log} is a link, but a run appends only to its own files")
    if nodes is not None:
        _require_address(nodes.endpoint)
    threads = max(1, (os.cpu_count() or 1) // ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    clear_dead()
    place = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    started = LocalRanks(place, ranks, log, restarts, note)
    config = LaunchConfig(
        min_nodes=1 if nodes is None else nodes.least,
        max_nodes=1 if nodes is None else nodes.most,
        nproc_per_node=ranks,
        logs_specs=started,
        run_id=uuid4().hex if nodes is None else nodes.run_id,
        role="default",
        rdzv_backend=MEETING,
        rdzv_endpoint="localhost:0" if nodes is None else nodes.endpoint,
        rdzv_configs={"ranks": started, **meeting_options(nodes)},
        max_restarts=restarts,
        signals_to_handle="SIGQUIT",  # the others are forwarded
        local_addr="localhost" if nodes is None else None,
    )
    # The agent's messages on ended ranks are replaced by shorter ones below.
    logging.disable(logging.CRITICAL)
    try:
        with _variables(place, nodes, grace), _forwarding(started):
            elastic_launch(config, sys.executable)("-m", "setpoint", *words)
    except ChildFailedError as error:
        return started.status(error.failures)
    except AllStopped as stopped:
        return stopped.status
    except (RendezvousError, DistError) as error:
        if nodes is None:
            raise
        if started.folder is None:
            raise _rendezvous_error(nodes, error) from error
        # The machine at the endpoint may have ended just before, since all ranks stop together.
        return started.status({})
    finally:
        started.close()
        logging.disable(logging.NOTSET)
        shutil.rmtree(place, ignore_errors=True)
    return 0


def _require_address(endpoint: str) -> None:
    try:
        parse_rendezvous_endpoint(endpoint, 29400)
    except ValueError as error:
        raise SetpointError(
            f"--rdzv-endpoint {endpoint} is not an address.\n"
            f"Valid: HOST:PORT, such as node-0:29400, with a port of at most 65535"
        ) from error


def clear_dead() -> None:
    """Remove the folders left behind by killed launchers."""
    for place in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        launcher = process_of(place.name)
        with suppress(OSError):  # files of other users stay
            try:
                if launcher is not None:
                    os.kill(launcher, 0)
            except ProcessLookupError:
                shutil.rmtree(place, ignore_errors=True)


def meeting_options(nodes: Nodes | None) -> dict[str, Any]:
    """Timeouts of the rendezvous of nodes, for `_meet`."""
    last_call = timedelta(seconds=LAST_CALL)
    if nodes is None:
        return {"waits": RendezvousTimeout(last_call=last_call)}
    seconds = max(1, round(nodes.timeout))
    # The second is for the node at the endpoint.
    join = timedelta(seconds=seconds)
    return {"waits": RendezvousTimeout(join=join, last_call=last_call), "read_timeout": seconds}


class AllStopped(Exception):
    """Raised when ranks have stopped on request and must not restart."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


class Meeting(DynamicRendezvousHandler):
    """Torch's rendezvous, preceded by the launcher's decision whether ranks may restart."""

    ranks: LocalRanks
    _has_waiting = False

    def get_backend(self) -> str:
        """See base class."""
        return MEETING

    def num_nodes_waiting(self) -> int:
        """See base class; ranks also restart when other nodes wait, although none has failed."""
        waiting = super().num_nodes_waiting()
        self._has_waiting = waiting > 0
        return waiting

    def next_rendezvous(self) -> RendezvousInfo:
        """See base class.

        Raises:
            RankFailed: a restart would fail again.
            AllStopped: the ranks were asked to stop.
        """
        self.ranks.is_meeting = True
        if self.ranks.folder is not None and not self._has_waiting:
            self.ranks.require_restart()
        self._has_waiting = False
        met = super().next_rendezvous()
        self.ranks.is_meeting = False
        return met


def _meet(params: RendezvousParameters) -> Meeting:
    backend, store = create_backend(params)
    nodes = params.min_nodes, params.max_nodes, params.local_addr
    meeting = Meeting.from_backend(params.run_id, store, backend, *nodes, params.get("waits"))
    meeting.ranks = params.get("ranks")
    return meeting


rendezvous_handler_registry.register(MEETING, _meet)


class LocalRanks(DefaultLogsSpecs):
    """The ranks of this machine: their logs, reports and exit statuses.

    While ranks run, the output of all but the first is collected in the run's log once the run has
    a folder, so that a refused start leaves nothing behind.

    Arguments:
        place: the folder of the launcher, where the agent keeps the output of each rank.
        log: the run's log; None: there is none.
        restarts: how often ranks may be restarted.
        note: function that shows a line to the user.
    """

    def __init__(
        self,
        place: Path,
        ranks: int,
        log: Path | None,
        restarts: int,
        note: Callable[[str], None],
    ) -> None:
        redirects = dict.fromkeys(range(1, ranks), Std.ALL)
        super().__init__(str(place / "output"), redirects=redirects)
        self.place, self.log, self.restarts, self.note = place, log, restarts, note
        self.folder: Path | None = None
        """The agent's folder of the present attempt; None before the first."""
        self.numbers: dict[int, int] = {}
        """The number of each rank, by that on this machine."""
        self.is_meeting = True
        """True while the agent may wait for other machines, and no rank runs."""
        self._restarted = 0
        self._is_refused = False
        self._tails: list[TailLog] = []
        self._ended = Event()

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """See `DefaultLogsSpecs.reify`; called once for each attempt."""
        files = super().reify(envs)
        self.folder = Path(files.error_files[0]).parent.parent
        self.numbers = {local: int(given["RANK"]) for local, given in envs.items()}
        prefixes = {local: f"[rank {rank}] " for local, rank in self.numbers.items()}
        for printed in (files.stdouts, files.stderrs) if self.log is not None else ():
            printed = {local: path for local, path in printed.items() if path}
            to: Any = self
            self._tails.append(TailLog("rank", printed, to, prefixes, LOOK).start())
        return files

    def write(self, text: str) -> None:
        """Append to the log; a failed write does not end the run but is reported to the user."""
        assert self.log is not None
        while not self.log.parent.is_dir():
            if self._ended.wait(LOOK):
                return
        try:
            with self.log.open("a", encoding="utf-8") as log:
                log.write(text)
        except OSError as error:
            # The main rank removes the folder again if the first start is refused.
            if not self._is_refused and not isinstance(error, FileNotFoundError):
                self._is_refused = True
                self.note(f"{self.log} cannot be written: {error.strerror}")

    def close(self) -> None:
        """Append the remaining output and the errors to the log."""
        self._ended.set()
        for tail in self._tails:
            tail.stop()
        if self.log is None:
            return
        for report in self.reports():
            if report.error:
                lines = [*report.traceback.splitlines(), f"error: {report.error}"]
                self.write("".join(f"[rank {report.rank}] {line}\n" for line in lines))

    def reports(self) -> list[Ended]:
        """The reports of the current attempt; see `reports_in`."""
        return [] if self.folder is None else reports_in(self.folder)

    def require_restart(self) -> None:
        """Refuse a restart that cannot help.

        Raises:
            RankFailed: the ranks reported an error, which would occur again.
            AllStopped: the ranks were asked to stop.
        """
        try:
            status = self.status({})
        except RankFailed as failed:
            if not failed.may_restart:
                raise
            self._restarted += 1
            number = f"restart {self._restarted} of {self.restarts}"
            self.note(f"{failed}\nstarting the ranks again: {number}")
        else:
            raise AllStopped(status)

    def status(self, failures: Mapping[int, ProcessFailure]) -> int:
        """The exit status of the ranks, after all have ended.

        Arguments:
            failures: the failures seen by the agent, by rank; empty before a restart.

        Raises:
            RankFailed: a rank failed. The error is of the first rank that reports a reason, unless
                it only lost another rank, which may have been stopped, or killed without a report.
        """
        reports, was_stopped = self.reports(), is_stop_requested(self.place)
        ended = failures or dict.fromkeys(self.numbers.values())
        silent = sorted({*ended} - {report.rank for report in reports})
        first = next((report for report in reports if report.error), None)
        if first is not None and not first.is_lost:
            raise RankFailed(first.status, first.error, report=first)
        if was_stopped or (first is None and any(report.status in STOPPED for report in reports)):
            # Before the ranks have met, a stop ends each of them immediately, without a report.
            stopped = [report.status for report in reports if not report.error]
            stopped += [self._exit_status(failures.get(rank)) for rank in silent]
            if stopped and all(status in STOPPED for status in stopped):
                return stopped[0]
        if first is not None:
            for report in reports:
                if report.status in STOPPED and report.time < first.time:
                    return report.status  # the others have lost a rank that was stopped before
            if not silent or is_timeout(first.error):
                # Ranks killed by the agent in the end did not answer before, nor did one that it
                # stopped before its first step.
                late = [report.rank for report in reports if not (was_stopped or report.error)]
                missing = ", ".join(map(str, sorted([*silent, *late])))
                prefix = f"no answer from rank {missing}: " if missing else ""
                raise RankFailed(first.status, prefix + first.error, may_restart=not was_stopped)
        if silent:
            raise self._silent_failure(silent, failures)
        return min(reports).status

    def _exit_status(self, failure: ProcessFailure | None) -> int:
        """The exit status that a shell would report, by default for a rank ended by a signal."""
        code = -requested_signal(self.place) if failure is None else failure.exitcode
        return code if code >= 0 else 128 - code

    def _silent_failure(
        self, silent: Sequence[int], failures: Mapping[int, ProcessFailure]
    ) -> RankFailed:
        """Error for ranks that ended without a report."""
        known = {rank: failures[rank] for rank in silent if rank in failures}
        if not known:
            text = f"rank {', '.join(map(str, silent))} ended without a message"
            return RankFailed(1, text, may_restart=not is_stop_requested(self.place))
        rank, failure = min(known.items(), key=lambda pair: pair[1].timestamp)
        killed = failure.exitcode < 0
        how = f"signal {failure.signal_name()}" if killed else f"exit status {failure.exitcode}"
        printed = ""
        if failure.local_rank and self.log is not None and self.log.exists():
            printed = f"; its output is in {self.log}"
        elif failure.local_rank and (last := self._last_lines(failure.local_rank)):
            printed = f"; its last lines:\n{last}"
        return RankFailed(1, f"rank {rank} ended by {how} without a message{printed}")

    def _last_lines(self, local_rank: int) -> str:
        """The last lines printed by a rank; empty if it printed none."""
        assert self.folder is not None
        lines: list[str] = []
        for file in sorted((self.folder / str(local_rank)).glob("std*.log")):
            lines += file.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join(f"  {line}" for line in lines)


@contextmanager
def _variables(place: Path, nodes: Nodes | None, grace: float) -> Iterator[None]:
    """Set the ranks' environment, and the time that the agent gives them to end."""
    given = {FOLDER: str(place), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(round(grace) + 1)}
    if nodes is not None and nodes.least < nodes.most:
        # In the store that agents otherwise share, a node that joins later waits for an address
        # that is never set: https://github.com/pytorch/pytorch/issues/167288.
        given["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    before = {name: os.environ.get(name) for name in given}
    os.environ |= given
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _forwarding(ranks: LocalRanks) -> Iterator[None]:
    """Forward signals to all ranks and, during the rendezvous, to this process's own handlers."""

    def forward(number: int, frame: FrameType | None) -> None:
        ask(ranks.place, number)
        answer = before[signal.Signals(number)]
        if ranks.is_meeting and number != SAVE and callable(answer):
            answer(number, frame)

    before = {number: signal.getsignal(number) for number in (*STOPS, SAVE)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, forward)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _rendezvous_error(nodes: Nodes, error: Exception) -> RunError:
    why = f": {error}" if str(error) else ""
    return RunError(
        f"fewer than {nodes.least} nodes connected to {nodes.endpoint} within parallel.timeout "
        f"= {nodes.timeout:g} s{why}\nValid: `setpoint train` with the same --nnodes, "
        f"--rdzv-endpoint and --rdzv-id on each node, and an endpoint on one of them whose "
        f"port is free"
    )
