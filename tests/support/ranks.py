"""Ranks as forked processes: what programs of several ranks have in common.

Forking one process that has imported torch, and run nothing of it, takes a third of the time that
a launcher takes.
"""

import importlib
import os
import random
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .forks import forked

GRACE = 100.0
"""Seconds that ranks may go on after another has failed."""


def fork(one_rank: Callable[[int, str], None], world: int) -> int:
    """Run a function on ranks, each a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        children: list[int] = []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    one_rank(rank, f"{folder}/store")
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        # That of a rank that was killed is negative, and no better than any other.
        return max(map(abs, _exit_codes(children)))


def _exit_codes(children: list[int]) -> list[int]:
    """Wait for all ranks; those that still run `GRACE` seconds after another failed are killed."""
    running = {os.pidfd_open(child): child for child in children}
    codes: list[int] = []
    while running:
        ended, _, _ = select.select([*running], [], [], GRACE if any(codes) else None)
        if not ended:
            for child in running.values():
                os.kill(child, signal.SIGKILL)
        for descriptor in ended:
            os.close(descriptor)
            status = os.waitpid(running.pop(descriptor), 0)[1]
            codes.append(os.waitstatus_to_exitcode(status))
    return codes


def fork_group(one_rank: Callable[[int, str], None], world: int) -> int:
    """Run a function as `fork` does, on ranks of one thread each that are a group of gloo."""

    def joined(rank: int, store: str) -> None:
        import torch
        from torch import distributed

        torch.set_num_threads(1)
        distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world
        )
        one_rank(rank, store)
        distributed.destroy_process_group()

    return fork(joined, world)


def run_on_ranks(world: int, *acts: Callable[[Path], None]) -> None:
    """Run functions of a test module, one after the other, on ranks that are a group of gloo.

    Each rank gives them a folder of its own, beside those of the other ranks.
    """
    forked(__name__, str(world), *(f"{act.__module__}:{act.__name__}" for act in acts))


def _run_acts(world: str, *names: str) -> int:
    places = (name.split(":") for name in names)
    acts = [getattr(importlib.import_module(module), name) for module, name in places]

    def one_rank(rank: int, store: str) -> None:
        from torch import distributed

        for act in acts:
            folder = Path(store).parent / act.__name__ / f"rank-{rank}"
            folder.mkdir(parents=True)
            act(folder)
            distributed.barrier()

    return fork_group(one_rank, int(world))


def rejoin(store: str) -> None:
    """Leave the group and all groups made of it, and make a new one.

    The threads of each group of gloo wake up a hundred times a second until it is destroyed.
    """
    from torch import distributed

    rank, world = distributed.get_rank(), distributed.get_world_size()
    distributed.barrier()  # another rank may still be connecting to this one
    distributed.destroy_process_group()
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world
    )


def free_port() -> int:
    """A free port below those that Linux gives to connections, which could take it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("localhost", port))
            return port


def launched(rank: int, world: int, port: int | None = None) -> None:
    """Give this process the variables that a launcher gives a rank.

    Arguments:
        port: where ranks meet that make their group themselves.
    """
    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}
    if port is not None:
        given |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in given.items()}


@contextmanager
def group_of(rank: int, world: int, store: str) -> Iterator[None]:
    """Be a rank of one thread in a group of gloo, or one process where there is one rank."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    if world == 1:
        yield
        return
    launched(rank, world)
    place = f"file://{store}"
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=world)
    yield
    distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(_run_acts(*sys.argv[1:]))
