"""Run by test_crashes.py: ranks save a checkpoint together, and one of them fails or dies.

    crashed_ranks.py power|fails|dies|damage FOLDER RANKS STRIDE

`power` cuts the power of all at any moment, `fails` lets each STRIDE-th operation of one rank fail,
`dies` kills one before it, `damage` changes files of the newest checkpoint. It prints one line of
JSON: how many of each there were.
"""

import errno
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
import torch._dynamo  # which DTensor imports, and takes a second
import torch.distributed.checkpoint.default_planner
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from setpoint.checkpoint.folder import unfinished
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import SetpointError, resolve
from setpoint.files import atomic
from setpoint.parallel.config import Parallel
from setpoint.parallel.process_group import LostRanks, joined
from setpoint.parallel.world import World, world_of

from ..support.ranks import fork, free_port, launched
from .crashed import (
    ACTIONS,
    BEFORE,
    ROOT,
    Action,
    Failing,
    Newest,
    Place,
    Recorded,
    Tensors,
    begin,
    check,
    crash_everywhere,
    look,
    recover,
    shared,
)
from .disk import Before, Log, Operation, harmless, lay_out, meetings, orders, tree_of, watched

TIMEOUT = 60.0
"""Seconds: more than a rank waits for the others on a busy machine."""
OneRank = Callable[[World, Place], None]


def on_ranks(size: int, act: OneRank, lost: Path | None = None) -> int:
    """Run a function on ranks that have met; the worst of their exit statuses.

    Arguments:
        lost: a folder in which each rank that lost the others writes what it says of it.
    """
    port = free_port()

    def one_rank(rank: int, _: str) -> None:
        torch.set_num_threads(1)
        launched(rank, size, port)
        config = resolve(Parallel(timeout=TIMEOUT))
        with written_down(rank, lost), joined(config):
            mesh = DeviceMesh("cpu", list(range(size)))

            def divided(tensors: Tensors) -> Tensors:
                """The rows of matrices are divided; vectors are the same on all ranks."""
                return {
                    stem: {
                        name: distribute_tensor(each, mesh, [Shard(0)], src_data_rank=None)
                        if each.ndim > 1
                        else each
                        for name, each in named.items()
                    }
                    for stem, named in tensors.items()
                }

            act(world_of(config), divided)

    return fork(one_rank, size)


@contextmanager
def written_down(rank: int, lost: Path | None) -> Iterator[None]:
    try:
        yield
    except LostRanks as error:
        if lost is None:
            raise
        (lost / f"rank-{rank}").write_text(str(error))


def power(folder: Path, size: int, stride: int) -> dict[str, int]:
    """Do everything once, and look at all that a power cut may leave, in several orders.

    Arguments:
        stride: 1: every state; otherwise alike ones once; from 8 on for one action only.
    """
    actions = ACTIONS if stride < 8 else {SOME[1]: ACTIONS[SOME[1]]}

    def act(world: World, place: Place) -> None:
        for name, action in actions.items():
            run = folder / name
            if world.is_main:
                run.mkdir()
            world.all_of(None)
            begin(run, world, place, action)
            if world.is_main:
                lay_out(tree_of(run), folder / f"{name}, before")
            log = Log(folder / f"{name}.log")
            store = shared(run, world, action.keep)
            world.all_of(None)
            with watched(run, log, rank=world.rank), meetings(log, harmless, world.rank):
                action.act(store, place)
            world.all_of(None)

    assert on_ranks(size, act) == 0
    total = {"actions": len(actions), "orders": 0}
    for name, action in actions.items():
        possible = list(orders(Log(folder / f"{name}.log").read()))
        before, after = tree_of(folder / f"{name}, before"), tree_of(folder / name)
        recorded = Recorded(action, before, possible, after)
        counts = crash_everywhere(recorded, folder / "trial", every=stride == 1)
        total["orders"] += len(possible)
        for key, count in counts.items():
            total[key] = total.get(key, 0) + count
    return total


SOME = ("a save of the best", "replacing a checkpoint")
FAILS = ACTIONS[SOME[0]]


def fails(folder: Path, size: int, stride: int) -> dict[str, int]:
    """Let an operation of one rank fail, and look at what all of them say."""

    def act(world: World, place: Place) -> None:
        run = folder / "run"
        if world.is_main:
            run.mkdir()
        world.all_of(None)
        begin(run, world, place, FAILS)
        before = world.on_main(lambda: tree_of(run))
        counts: list[int] = []
        for victim in range(size):
            refuse_large_files(world, place, folder / f"{victim}", victim, before)
            for at in range(10**6):
                # Of the main rank's operations there are many.
                nth = at if victim else at * stride
                if not fail(world, place, folder / f"{victim}-{at}", victim, nth, before):
                    counts.append(at)
                    break
        if world.is_main:
            (folder / "counts").write_text(json.dumps(counts))

    assert on_ranks(size, act) == 0
    counts = json.loads((folder / "counts").read_text())
    return {"main": counts[0], "others": sum(counts[1:])}


def fail(
    world: World, place: Place, trial: Path, victim: int, at: int, before: dict[str, bytes | None]
) -> bool:
    """Let one operation of one rank fail, once.

    Returns:
        whether there was such an operation.
    """
    world.on_main(lambda: lay_out(before, trial))
    store, failing, said = shared(trial, world, FAILS.keep), Failing(at, errno.ENOSPC), ""
    with watched(trial, before=failing if world.rank == victim else harmless, rank=world.rank):
        try:
            FAILS.act(store, place)
        except SetpointError as error:
            said = str(error)
    found = world.all_of((said, failing.has_failed))
    assert len({bool(text) for text, _ in found}) == 1, found
    if said:
        assert os.strerror(errno.ENOSPC) in said, said
        assert not victim or f"rank {victim}: " in said, said
    if world.is_main:
        look(trial, FAILS.allowed if said else FAILS.after)
    world.all_of(None)
    FAILS.act(store, place)
    if world.is_main:
        look(trial, FAILS.after)
        recover(trial, FAILS.keep, FAILS.after)
    return any(has_failed for _, has_failed in found)


def refuse_large_files(
    world: World, place: Place, trial: Path, victim: int, before: dict[str, bytes | None]
) -> None:
    """Let the kernel refuse one rank files of more than a few bytes, as a quota does."""
    world.on_main(lambda: lay_out(before, trial))
    store, said = shared(trial, world, FAILS.keep), ""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if world.rank == victim:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        FAILS.act(store, place)
    except SetpointError as error:
        said = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"rank {victim}: " in said and "File too large; step 3 is still there" in said, said
    if world.is_main:
        look(trial, BEFORE)
        assert not unfinished(trial / ROOT)
    world.all_of(None)
    FAILS.act(store, place)
    if world.is_main:
        look(trial, FAILS.after)


class Dying:
    """Kills this process before an operation or a collective.

    Arguments:
        at: which one, from 0.
    """

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, operation: Operation) -> None:
        """See `Before`."""
        if operation.kind != "read":
            self.left -= 1
            if self.left == -1:
                os.kill(os.getpid(), signal.SIGKILL)


def dies(folder: Path, size: int, stride: int) -> dict[str, int]:
    """Kill one rank, and look at how the others end, and what they leave."""
    counts = dict.fromkeys(map(str, range(size)), 0)
    for name in SOME:
        action, run = ACTIONS[name], folder / name
        run.mkdir()

        def begun(world: World, place: Place, run: Path = run, action: Action = action) -> None:
            begin(run, world, place, action)

        assert on_ranks(size, begun) == 0
        before = tree_of(run)
        for victim in range(size):
            # Each victim dies at other moments where not every one is tried.
            at = victim * 2 % stride
            while die(folder, before, action, size, victim, at):
                counts[str(victim)] += 1
                at += stride
    return counts


def die(
    folder: Path, before: dict[str, bytes | None], action: Action, size: int, victim: int, at: int
) -> bool:
    """Kill one rank.

    Returns:
        whether it got so far.
    """
    trial, lost = folder / "trial", folder / "lost"
    lay_out(before, trial)
    lay_out({}, lost)

    def act(world: World, place: Place) -> None:
        hook: Before = Dying(at) if world.rank == victim else harmless
        with ExitStack() as within:
            within.enter_context(watched(trial, before=hook, rank=world.rank))
            within.enter_context(meetings(None, hook, world.rank))
            action.act(shared(trial, world, action.keep), place)

    if not on_ranks(size, act, lost):
        look(trial, action.after)
        return False
    said = tree_of(lost)
    assert said.keys() == {f"rank-{rank}" for rank in range(size)} - {f"rank-{victim}"}, said
    assert all(
        f"{name[5:]} lost its connection to the others" in str(text) for name, text in said.items()
    ), said
    assert "Timed out" not in str(said), said
    look(trial, action.allowed)
    recover(trial, action.keep, action.allowed)
    return True


DAMAGES = ("flipped", "cut", "missing", "unreadable", "unreadable by others")


def damage(folder: Path, size: int, stride: int) -> dict[str, int]:
    """Damage each file of the newest checkpoint, and load on all ranks."""
    del stride

    def act(world: World, place: Place) -> None:
        run = folder / "run"
        if world.is_main:
            run.mkdir()
        world.all_of(None)
        begin(run, world, place, FAILS)
        store = shared(run, world)
        newest = run / ROOT / "step-00000003"
        names = world.on_main(lambda: sorted(each.name for each in newest.iterdir()))
        for name in names:
            file = newest / name
            whole = world.on_main(file.read_bytes)
            for kind in DAMAGES:
                if world.is_main and not kind.startswith("unreadable"):
                    change(file, kind, whole)
                world.all_of(None)
                found = load(store, world, f"{ROOT}/step-00000003/{name}", kind)
                answers = world.all_of(found)
                assert all(each == answers[0] for each in answers), (name, kind, answers)
                newest_step, said = answers[0]
                # A file that another rank compares may be one that these never read.
                if kind != "unreadable by others" or said:
                    assert newest_step == (2, "old") and name in said, (name, kind, answers)
                world.all_of(None)
                if world.is_main:
                    file.write_bytes(whole)
                world.all_of(None)
        if world.is_main:
            (folder / "names").write_text(json.dumps(names))

    assert on_ranks(size, act) == 0
    return {"files": len(json.loads((folder / "names").read_text())) * len(DAMAGES)}


def change(file: Path, kind: str, whole: bytes) -> None:
    if kind == "missing":
        file.unlink()
    elif kind == "cut":
        file.write_bytes(whole[:-1])
    else:
        middle = len(whole) // 2
        file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :])


def load(store: CheckpointStore, world: World, path: str, kind: str) -> tuple[Newest | None, str]:
    """The newest checkpoint that all ranks load, and why they pass over another one."""

    def unreadable(operation: Operation) -> None:
        if (operation.kind, operation.path) == ("read", path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    is_hit = kind == "unreadable" or (kind == "unreadable by others" and world.rank)
    said: list[str] = []
    with watched(store.root.parent, before=unreadable if is_hit else harmless, rank=world.rank):
        found = store.load_newest(lambda path, why: said.append(f"{path.name}: {why}"))
    return check(found), "; ".join(said)


if __name__ == "__main__":
    atomic.PAUSE = 0.0
    os.fsync = lambda descriptor: None
    kind, place, size, stride = sys.argv[1:]
    acts = {"power": power, "fails": fails, "dies": dies, "damage": damage}
    print(json.dumps(acts[kind](Path(place), int(size), int(stride))))
