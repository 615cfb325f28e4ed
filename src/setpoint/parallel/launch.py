"""Start the ranks of a job on this machine, by torch's elastic agent, and see them end."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from threading import Event, Thread
from types import FrameType
from typing import Any
from uuid import uuid4

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.rendezvous.utils import (
    _matches_machine_hostname as is_this_machine,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from setpoint.config import LOG_OF, RunError, SetpointError
from setpoint.parallel.rank import FOLDER, Ended, ask, endings, has_waited, ranks_here, was_asked

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
SAVE = signal.SIGUSR2
"""Asks the ranks for a checkpoint; they go on."""
STOPPED = (75, 129, 130, 138, 143)
"""Exit statuses of a rank that a signal has stopped; of its own accord, or by Python's default."""
PREFIX = "setpoint-ranks-"
"""Of the folder that a launcher shares with its ranks."""
LOOK = 0.5
"""Seconds between two looks at what the ranks have printed."""
KNOCK = 1.0
"""Seconds between two tries to reach the endpoint."""
LAST_LINES = 8
"""Lines of each stream that are shown of what a rank printed."""
LAST_CALL = 10
"""Seconds that fewer nodes than there may be wait for others before they start."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The machines of a job, on each of which this launcher runs.

    Arguments:
        least, most: how many there may be at a time: the ranks start again where one comes or goes.
        endpoint: host and port where the launchers meet; the host is one of the nodes.
        run_id: the same on all of them, and of this job alone.
        timeout: seconds that they wait for each other.
    """

    least: int
    most: int
    endpoint: str
    run_id: str
    timeout: float


def launch(
    words: Sequence[str],
    ranks: int,
    logs: Path | None = None,
    nodes: Nodes | None = None,
    restarts: int = 0,
    grace: float = 30.0,
    note: Callable[[str], None] = lambda text: None,
) -> int:
    """Run a command of Setpoint's on several ranks of this machine.

    The first rank of a machine has this process's output. What the others print is collected in
    `ranks.log`, each line with the rank before it. Signals go to all ranks.

    Arguments:
        words: of the command line, after `setpoint`.
        ranks: on this machine.
        logs: the folder of the run for logs, made by the run itself; None: there is none, and an
            error has the last lines that a rank printed.
        nodes: None for this machine alone.
        restarts: how often all ranks are started again after one was killed or hung.
        grace: seconds that they have to save when they are stopped.
        note: shows a line to people.

    Returns:
        the exit status of the ranks, which stop together.

    Raises:
        RunError: a rank has failed: what the first one says; or not all nodes have come.
        SetpointError: the log is a link, or nodes meet at what is no address.
    """
    address = None if nodes is None else _require_address(nodes.endpoint)
    name = "ranks.log" if nodes is None else f"ranks-{socket.gethostname()}.log"
    if logs is not None and (logs / name).is_symlink():
        raise SetpointError(f"{logs / name} is a link, and a run adds to files of its own")
    if nodes is not None and address is not None and not is_this_machine(address[0]):
        await_endpoint(nodes, address)
    threads = max(1, (os.cpu_count() or 1) // ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    clear_dead()
    place = Path(tempfile.mkdtemp(prefix=PREFIX))
    (place / "launcher").write_text(str(os.getpid()))
    log = (logs or place / "logs") / name
    # What the agent says of ranks that end is said below, in fewer words.
    logging.disable(logging.CRITICAL)
    try:
        with Output(place, log, note), _variables(place, nodes):
            agent = _Agent(_spec(words, ranks, nodes, restarts), place, log, grace, note)
            try:
                with _forwarding(place, agent):
                    result: Any = agent.run()
            finally:
                agent.meeting.shutdown()
        if result.is_failed():
            return status_of(place, result.failures, log)
    except (RendezvousError, DistError) as error:
        if nodes is None:
            raise
        return _status_apart(place, nodes, error)
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(place, ignore_errors=True)
    return 0


def _require_address(endpoint: str) -> tuple[str, int]:
    try:
        return parse_rendezvous_endpoint(endpoint, 29400)
    except ValueError as error:
        raise SetpointError(
            f"--rdzv-endpoint {endpoint} is no address of a machine.\n"
            f"Valid: HOST:PORT, as node-0:29400, with a port of at most 65535"
        ) from error


def await_endpoint(nodes: Nodes, address: tuple[str, int]) -> None:
    """Wait until the node at the endpoint, another one than this, is there.

    Torch's own client tries twice for a minute each, whatever the timeout is.

    Raises:
        RunError: it does not come in time.
    """
    ends = time.monotonic() + nodes.timeout
    while True:
        try:
            socket.create_connection(address, timeout=max(KNOCK, nodes.timeout)).close()
            return
        except OSError as error:
            if time.monotonic() + KNOCK >= ends:
                raise _not_met(nodes, error) from error
        time.sleep(KNOCK)


def clear_dead() -> None:
    """Remove the folders of launchers that were killed before they could."""
    for place in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Those of other users, and of launchers that are just starting, stay.
        with suppress(OSError, ValueError):
            launcher = int((place / "launcher").read_text())
            try:
                os.kill(launcher, 0)
            except ProcessLookupError:
                shutil.rmtree(place, ignore_errors=True)


def _spec(words: Sequence[str], ranks: int, nodes: Nodes | None, restarts: int) -> WorkerSpec:
    """What torch's agent starts, and how those of several machines meet."""
    meeting = RendezvousParameters(
        backend="c10d",
        endpoint="localhost:0" if nodes is None else nodes.endpoint,
        run_id=uuid4().hex if nodes is None else nodes.run_id,
        min_nodes=1 if nodes is None else nodes.least,
        max_nodes=1 if nodes is None else nodes.most,
        local_addr="localhost" if nodes is None else None,
        **({} if nodes is None else {"join_timeout": max(1, round(nodes.timeout))}),
        last_call_timeout=LAST_CALL,
    )
    return WorkerSpec(
        role="default",
        local_world_size=ranks,
        entrypoint=sys.executable,
        args=("-m", "setpoint", *words),
        rdzv_handler=get_rendezvous_handler(meeting),
        max_restarts=restarts,
        local_addr="localhost" if nodes is None else None,
    )


class _Agent(LocalElasticAgent):
    """Torch's agent, which starts ranks again only where that may help.

    What they refuse or fail with in words would come again, and those that were asked to stop have
    stopped.

    Arguments:
        place: the folder of the launcher.
        grace: seconds in which ranks that are stopped save, as where a node has come.
        note: shows a line to people.
    """

    def __init__(
        self, spec: WorkerSpec, place: Path, log: Path, grace: float, note: Callable[[str], None]
    ) -> None:
        redirects = dict.fromkeys(range(1, spec.local_world_size), Std.ALL)
        output = DefaultLogsSpecs(log_dir=str(place / "output"), redirects=redirects)
        known = signature(LocalElasticAgent.__init__).parameters
        # Torch 2.11 has none, and gives them 30 s.
        within: Any = {"shutdown_timeout": round(grace) + 1} if "shutdown_timeout" in known else {}
        super().__init__(spec, output, **within)
        self.meeting = spec.rdzv_handler
        self.is_meeting = False
        """Whether it waits for other machines, and no rank runs here."""
        self.place, self.log, self.note = place, log, note

    def _rendezvous(  # pyright: ignore[reportIncompatibleVariableOverride] - torch wraps it
        self, worker_group: WorkerGroup
    ) -> None:
        """See `SimpleElasticAgent._rendezvous`."""
        meet: Any = super()._rendezvous
        self.is_meeting = True
        try:
            meet(worker_group)
        finally:
            self.is_meeting = False

    def _monitor_workers(  # pyright: ignore[reportIncompatibleVariableOverride] - torch wraps it
        self, worker_group: WorkerGroup
    ) -> RunResult:
        """See `SimpleElasticAgent._monitor_workers`; all ranks here have ended where one failed."""
        watch: Any = super()._monitor_workers
        result: RunResult = watch(worker_group)
        # What has no public name is the same in torch 2.11 to 2.13.
        left, total = self._remaining_restarts, worker_group.spec.max_restarts
        if result.state is not WorkerState.FAILED or not left:
            return result
        failed: RankFailed | None = None
        try:
            status_of(self.place, result.failures, self.log)
        except RankFailed as error:
            failed = error
        if failed is not None and failed.may_restart:
            number = total - left + 1
            self.note(f"{failed}\nstarting the ranks again: restart {number} of {total}")
        else:
            self._remaining_restarts = 0
        return result


@contextmanager
def _variables(place: Path, nodes: Nodes | None) -> Iterator[None]:
    """Tell the ranks where their launcher is, and agents how to share a store."""
    given = {FOLDER: str(place), "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGQUIT"}
    if nodes is not None and nodes.least < nodes.most:
        # In the store that agents share otherwise, a node that comes later waits for an address
        # that is not told: https://github.com/pytorch/pytorch/issues/167288.
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


class Output:
    """Collects what the ranks print, while they run, in the logs of the run once it has any.

    Arguments:
        place: the folder of the launcher, where the agent keeps the output of each rank.
        note: shows a line to people.
    """

    def __init__(self, place: Path, log: Path, note: Callable[[str], None]) -> None:
        self.place, self.log, self.note = place, log, note
        self._is_refused = False
        self._read: dict[Path, int] = {}
        self._ended = Event()
        self._thread = Thread(target=self._follow, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._collect(whole=True)
        if self.log.parent.is_dir():
            said = [
                "".join(f"[rank {each.rank}] {line}\n" for line in each.traceback.splitlines())
                + f"[rank {each.rank}] error: {each.error}\n"
                for each in endings(self.place)
                if each.error
            ]
            if said:
                self._append("".join(said).encode())

    def _follow(self) -> None:
        while not self._ended.wait(LOOK):
            self._collect()

    def _collect(self, whole: bool = False) -> None:
        """Add new lines to the log.

        Arguments:
            whole: whether nothing follows, so that a line without an end is one.
        """
        if not self.log.parent.is_dir():
            return  # what is refused leaves nothing behind
        ranks = ranks_here(self.place)
        for printed in sorted((self.place / "output").rglob("std*.log")):
            with printed.open("rb") as file:
                file.seek(self._read.get(printed, 0))
                new = file.read()
            end = len(new) if whole else new.rfind(b"\n") + 1
            if not end:
                continue
            self._read[printed] = self._read.get(printed, 0) + end
            local = int(printed.parent.name)
            prefix = f"[rank {ranks.get(local, local)}] ".encode()
            lines = new[:end].splitlines()
            self._append(b"".join(prefix + line + b"\n" for line in lines))

    def _append(self, text: bytes) -> None:
        """Write to the log, which no run ends for: where the disk refuses, people hear of it."""
        try:
            with self.log.open("ab") as log:
                log.write(text)
        except OSError as error:
            # The main rank removes the folder again where the first start is refused.
            if not self._is_refused and not isinstance(error, FileNotFoundError):
                self.note(f"{self.log} cannot be written: {error.strerror}")
                self._is_refused = True


@contextmanager
def _forwarding(place: Path, agent: _Agent) -> Iterator[None]:
    """Let the ranks answer signals, all of them the same one; and this process where none runs."""

    def forward(number: int, frame: FrameType | None) -> None:
        ask(place, number)
        answer = before[signal.Signals(number)]
        if agent.is_meeting and number != SAVE and callable(answer):
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


def status_of(place: Path, failures: Mapping[int, ProcessFailure], log: Path) -> int:
    """What the ranks have ended with.

    Arguments:
        failures: of those of this machine, by rank.

    Raises:
        RankFailed: one has failed: of those that say why, the first, unless it has only lost
            another one, which may have been killed without a word, or stopped.
    """
    found = endings(place)
    said = {each.rank for each in found}
    silent = {rank: how for rank, how in failures.items() if rank not in said}
    failing = [each for each in found if each.error]
    asked = was_asked(place)
    if failing and not failing[0].is_lost:
        raise RankFailed(failing[0].status, failing[0].error, of=failing[0])
    if asked:
        # Before the ranks had met, a stop ends each of them where it is, also without a word.
        quiet = [_exit_status(how.exitcode) for how in silent.values()]
        stopped = [each.status for each in found if not each.error] + quiet
        if stopped and all(status in STOPPED for status in stopped):
            return stopped[0]
    for each in found:
        if failing and each.status in STOPPED and each.time < failing[0].time:
            return each.status  # the others have lost a rank that was stopped before
    if failing and (not silent or has_waited(failing[0].error)):
        # What the agent has killed in the end had not answered before, nor has one that it has
        # stopped before its first step.
        late = {each.rank for each in found if not (asked or each.error)}
        missing = ", ".join(map(str, sorted(silent.keys() | late)))
        who = f"no answer from rank {missing}: " if missing else ""
        raise RankFailed(failing[0].status, who + failing[0].error, may_restart=not asked)
    if silent:
        rank, failure = min(silent.items(), key=lambda pair: pair[1].timestamp)
        killed = failure.exitcode < 0
        how = f"signal {failure.signal_name()}" if killed else f"exit status {failure.exitcode}"
        printed = f"; what it printed is in {log}" if failure.local_rank and log.exists() else ""
        if failure.local_rank and not printed and (last := _last_lines(place, failure.local_rank)):
            printed = f"; its last lines:\n{last}"
        text = f"rank {rank} has ended by {how} and said nothing{printed}"
        raise RankFailed(1, text, may_restart=killed and not asked)
    return min(found).status


def _last_lines(place: Path, local_rank: int) -> str:
    """The last lines that a rank printed; empty where it printed none."""
    lines: list[str] = []
    for file in sorted((place / "output").rglob(f"{local_rank}/std*.log")):
        lines += file.read_text(errors="replace").splitlines()[-LAST_LINES:]
    return "\n".join(f"  {line}" for line in lines)


def _status_apart(place: Path, nodes: Nodes, error: Exception) -> int:
    """What the ranks here have ended with, where the other machines are not to be reached.

    The one at the endpoint may have ended a moment before this one, as all ranks stop together.

    Raises:
        RunError: the ranks have not started, or one has failed.
    """
    found, started = endings(place), ranks_here(place)
    if not started:
        raise _not_met(nodes, error) from error
    failing = [each for each in found if each.error]
    if failing:
        first = failing[0]
        raise RankFailed(first.status, first.error, first.is_lost, first) from error
    if len(found) < len(started):
        raise RankFailed(
            1, f"the node at {nodes.endpoint} has ended, and not all ranks here have said how", True
        ) from error
    return found[0].status


def _not_met(nodes: Nodes, error: Exception) -> RunError:
    why = f": {error}" if str(error) else ""
    return RunError(
        f"not all of {nodes.least} nodes have met at {nodes.endpoint} within parallel.timeout "
        f"= {nodes.timeout:g} s{why}\nValid: `setpoint train` with the same --nnodes, "
        f"--rdzv-endpoint and --rdzv-id on each node, and an endpoint on one of them whose "
        f"port is free"
    )


def _exit_status(code: int) -> int:
    """The status that a shell gives for an exit code of torch's, negative for a signal."""
    return code if code >= 0 else 128 - code


class RankFailed(RunError):
    """What the first rank that failed says.

    Arguments:
        status: its exit status, which is that of the launcher.
        may_restart: whether it was killed or did not answer, which may not happen again.
        of: how that rank has ended, whose traceback is shown; None: there is none.
    """

    def __init__(
        self, status: int, text: str, may_restart: bool = False, of: Ended | None = None
    ) -> None:
        super().__init__(text)
        self.status, self.may_restart = status, may_restart
        self.rank_traceback = "" if of is None else of.traceback
        if of is not None and of.log:
            setattr(self, LOG_OF, of.log)
