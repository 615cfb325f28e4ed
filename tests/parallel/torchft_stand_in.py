"""Stands in for the package torchft where it is not installed, over gloo, as its manager works.

`Lighthouse` is the server that groups meet at; `Manager` has the arguments and methods that
Setpoint uses of torchft's. A group is alive while the connection of its first rank is open.
"""

import io
import json
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

JOIN = 20.0
"""Seconds that a quorum waits for groups that are alive and have not asked yet."""


class Lighthouse:
    """Gives all groups that are alive one answer: who they are."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        self.changed = threading.Condition()
        self.alive: dict[int, Any] = {}
        self.asking: dict[int, dict[str, Any]] = {}
        self.answers: dict[int, dict[str, Any]] = {}
        self.last: list[Any] = []
        self.quorum = 0
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._decide, daemon=True).start()

    def _accept(self) -> None:
        number = 0
        while True:
            connection, _ = self.server.accept()
            number += 1
            threading.Thread(target=self._serve, args=(connection, number), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with self.changed:
            self.alive[number] = connection
        with connection, connection.makefile("rw") as file, self.changed:
            try:
                while line := self._line(file):
                    self.asking[number] = json.loads(line)
                    self.changed.notify_all()
                    while number not in self.answers:
                        self.changed.wait()
                    file.write(json.dumps(self.answers.pop(number)) + "\n")
                    file.flush()
            except OSError:
                pass
            finally:
                self.alive.pop(number)
                self.asking.pop(number, None)
                self.changed.notify_all()

    def _line(self, file: Any) -> str:
        self.changed.release()
        try:
            return file.readline()
        except OSError:
            return ""
        finally:
            self.changed.acquire()

    def _decide(self) -> None:
        while True:
            with self.changed:
                while not self.asking:
                    self.changed.wait()
                ends = time.monotonic() + JOIN
                while self.asking.keys() != self.alive.keys() and time.monotonic() < ends:
                    self.changed.wait(0.05)
                if any(len(self.asking) < asked["least"] for asked in self.asking.values()):
                    self.changed.wait(0.1)
                    continue
                groups = sorted((asked["id"], number) for number, asked in self.asking.items())
                if groups != self.last or any(a["broken"] for a in self.asking.values()):
                    self.quorum += 1
                self.last = groups
                told = [self.asking[number] for _, number in groups]
                for _, number in groups:
                    self.answers[number] = {"quorum": self.quorum, "groups": told}
                self.asking.clear()
                self.changed.notify_all()


class ProcessGroupGloo:
    """Is made anew by the manager for each quorum."""

    def __init__(self, timeout: timedelta) -> None:
        self.timeout = timeout


ProcessGroupNCCL = ProcessGroupGloo


class _Work:
    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait


class Manager:
    """A rank of a group, and those of its number in the others."""

    def __init__(
        self, *, pg: ProcessGroupGloo, load_state_dict: Callable[[Any], None],
        state_dict: Callable[[], Any], min_replica_size: int, use_async_quorum: bool,
        timeout: timedelta, quorum_timeout: timedelta, connect_timeout: timedelta, rank: int,
        world_size: int, store_addr: str, store_port: int, lighthouse_addr: str, replica_id: str,
        hostname: str, init_sync: bool,
    ) -> None:  # fmt: skip
        assert not use_async_quorum and not init_sync
        self._load, self._state, self._least = load_state_dict, state_dict, min_replica_size
        self._timeout, self._wait = timeout, quorum_timeout
        self._rank, self._size, self._id = rank, world_size, replica_id
        self._store = TCPStore(store_addr, store_port, is_master=False, timeout=quorum_timeout)
        self._place = [store_addr, store_port]
        self._lighthouse = None
        if rank == 0:
            host, _, port = lighthouse_addr.removeprefix("http://").partition(":")
            connection = socket.create_connection(
                (host, int(port)), connect_timeout.total_seconds()
            )
            connection.settimeout(quorum_timeout.total_seconds())
            self._lighthouse = connection.makefile("rw")
        self._pg: Any = None
        self._error: Exception | None = None
        self._failed = False
        self._asked = self._voted = self._step = 0
        self._quorum = -1
        self._groups: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, int]:
        return {"step": self._step, "batches_committed": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._step = state["step"]

    def start_quorum(self) -> None:
        self._asked += 1
        key = f"quorum/{self._asked}"
        if self._lighthouse is not None:
            own = {"id": self._id, "step": self._step, "store": self._place, "least": self._least,
                   "broken": self._failed}  # fmt: skip
            self._lighthouse.write(json.dumps(own) + "\n")
            self._lighthouse.flush()
            self._store.set(key, self._lighthouse.readline())
        answer = json.loads(self._store.get(key))
        self._groups, self._error = answer["groups"], None
        if answer["quorum"] != self._quorum:
            self._quorum = answer["quorum"]
            host, port = self._groups[0]["store"]
            store = TCPStore(host, port, is_master=False, timeout=self._timeout)
            place = PrefixStore(f"{self._quorum}/{self._rank}", store)
            try:
                self._pg = dist.ProcessGroupGloo(
                    place, self.participating_rank(), len(self._groups), self._timeout
                )
            except RuntimeError as error:
                self._error = error
        self._heal()

    def _heal(self) -> None:
        """Ranks of a group that has all steps give their state to those of their number."""
        most = max(each["step"] for each in self._groups)
        giver = next(each for each in self._groups if each["step"] == most)
        key = f"state/{self._quorum}/{most}/{self._rank}"
        if self._step < most:
            store = TCPStore(*giver["store"], is_master=False, timeout=self._wait)
            self._load(torch.load(io.BytesIO(store.get(key)), weights_only=True))
            self._step = most
        elif giver["id"] == self._id and any(each["step"] < most for each in self._groups):
            held = io.BytesIO()
            torch.save(self._state(), held)
            self._store.set(key, held.getvalue())

    def participating_rank(self) -> int:
        return [each["id"] for each in self._groups].index(self._id)

    def num_participants(self) -> int:
        return len(self._groups)

    def errored(self) -> Exception | None:
        return self._error

    def allreduce(self, tensor: torch.Tensor, reduce_op: Any) -> _Work:
        def wait() -> None:
            if self._error is not None:
                return
            try:
                options = dist.AllreduceOptions()
                options.reduceOp = reduce_op
                self._pg.allreduce([tensor], options).wait()
            except RuntimeError as error:
                self._error = error

        return _Work(wait)

    def should_commit(self) -> bool:
        self._voted += 1
        key = f"vote/{self._voted}"
        self._store.set(f"{key}/{self._rank}", str(int(self._error is None)))
        votes = [self._store.get(f"{key}/{rank}") for rank in range(self._size)]
        self._failed = b"0" in votes
        return not self._failed

    def shutdown(self, wait: bool) -> None:
        del wait
        if self._lighthouse is not None:
            self._lighthouse.close()
