"""What is done to a store of checkpoints, and what must hold wherever a fault cuts it off."""

import errno
import itertools
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from setpoint.checkpoint.folder import list_checkpoints, read_pointer, unfinished
from setpoint.checkpoint.loading import LoadedCheckpoint, load_directory, verify_directory
from setpoint.checkpoint.manifest import DamagedCheckpoint
from setpoint.checkpoint.repartition import convert
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import SetpointError
from setpoint.parallel.world import World
from setpoint.shapes.placed import as_placed

from .disk import Disk, Log, Operation, Tree, key_of, lay_out, tree_of, watched
from .stored import load, pointers

Tensors = dict[str, dict[str, Tensor]]
Place = Callable[[Tensors], Tensors]
"""Makes of whole tensors what a rank holds."""

Newest = tuple[int, str]
"""A step, and the course of training that it is of."""
Allowed = Mapping[Newest | None, int]
"""What the newest checkpoint may be, and the best one then; None where there is none."""

ROOT = "checkpoints"
OWN: dict[str, bytes | None] = {
    "own": b"says that the others are there",
    f"{ROOT}/notes.txt": b"mine",
    f"{ROOT}/step-00000001.damaged-1": None,
    f"{ROOT}/step-00000001.damaged-1/model.safetensors": b"a disk may answer again",
}
"""What users and earlier sessions have left there, of which nothing may go."""

ALONE = World(torch.device("cpu"))
IN_TEMPORARY = re.compile(r".*\.tmp-[0-9]+/").match


def metric_of(step: int) -> float:
    """What selects the best: 2 is it up to 4, and 5 beats it; from 7 on it is drawn."""
    known = {1: 0.9, 2: 0.5, 3: 0.7, 4: 0.8, 5: 0.1, 6: 7.0}
    return known[step] if step in known else random.Random(step).random() / 5


def content(step: int, course: str) -> tuple[Tensors, dict[str, Any]]:
    """The states of a step; a course of training comes to others than another one."""
    generator = torch.Generator().manual_seed(random.Random(f"{step} {course}").getrandbits(30))
    # Larger than a buffer, so that its file is written in several pieces.
    wide = torch.randn(6, 600, generator=generator)
    model = {"wide": wide, "small": torch.randn(5, generator=generator)}
    states = {"model": model, "optimizer": {"m": torch.randn(4, 3, generator=generator)}}
    return states, {"step": step, "course": course}


def save(
    store: CheckpointStore, place: Place, step: int, course: str, stems: Sequence[str] = ()
) -> None:
    """Save the states of a step.

    Arguments:
        stems: the tensors to save; all if there are none.
    """
    tensors, state = content(step, course)
    chosen = place({stem: tensors[stem] for stem in stems or tensors})
    store.save(step, chosen, state, metric_of(step), {"config.json": "{}"})


class Action(NamedTuple):
    """What is done to a store that holds the steps 1 to 3 of the course `old`.

    Arguments:
        act: does it, on every rank.
        allowed: from what there is before it to what there is after.
        keep: of the store that does it; the one before keeps 3.
    """

    act: Callable[[CheckpointStore, Place], object]
    allowed: dict[Newest | None, int]
    keep: int = 2

    @property
    def after(self) -> dict[Newest | None, int]:
        """What is there once it has returned."""
        newest = list(self.allowed)[-1]
        return {newest: self.allowed[newest]}


BEFORE: dict[Newest | None, int] = {(3, "old"): 2}
ACTIONS = {
    "the first save": Action(lambda s, p: save(s, p, 5, "old"), {None: 5, (5, "old"): 5}),
    "a save": Action(lambda s, p: save(s, p, 4, "old"), {**BEFORE, (4, "old"): 2}),
    "a save of the best": Action(lambda s, p: save(s, p, 5, "old"), {**BEFORE, (5, "old"): 5}),
    "replacing a checkpoint": Action(lambda s, p: save(s, p, 3, "new"), {**BEFORE, (3, "new"): 2}),
    "replacing it by weights": Action(
        lambda s, p: save(s, p, 3, "new", ("model",)), {**BEFORE, (3, "new"): 2}
    ),
    "a save that removes three": Action(
        lambda s, p: save(s, p, 5, "old"), {**BEFORE, (5, "old"): 5}, keep=1
    ),
    "setting one aside": Action(lambda s, p: s.set_aside_after(2), {**BEFORE, (2, "old"): 2}),
    "setting two aside": Action(
        lambda s, p: s.set_aside_after(1), {**BEFORE, (2, "old"): 2, (1, "old"): 1}
    ),
}


def shared(folder: Path, world: World, keep: int = 3) -> CheckpointStore:
    """A store in a folder, as all ranks have it."""
    return CheckpointStore(folder / ROOT, keep=keep, world=world)


def begin(folder: Path, world: World, place: Place, action: Action) -> None:
    """Make what there is before an action, in an empty folder."""
    if None in action.allowed:
        return
    store = shared(folder, world)
    for step in (1, 2, 3):
        save(store, place, step, "old")
    if world.is_main:
        for name, mine in OWN.items():
            if mine is None:
                (folder / name).mkdir()
            else:
                (folder / name).write_bytes(mine)


def alone(tensors: Tensors) -> Tensors:
    """What one rank holds: all."""
    return tensors


def check(checkpoint: LoadedCheckpoint | None) -> Newest | None:
    """Compare a checkpoint with what was saved."""
    if checkpoint is None:
        return None
    step, course = checkpoint.state["step"], checkpoint.state["course"]
    tensors, state = content(step, course)
    assert (checkpoint.step, checkpoint.state) == (step, state)
    assert checkpoint.metric == metric_of(step)
    assert "model" in checkpoint.tensors
    for stem, named in checkpoint.tensors.items():
        assert named.keys() == tensors[stem].keys()
        for name, tensor in named.items():
            assert torch.equal(as_placed(tensor, torch.empty(0)), tensors[stem][name]), name
    return step, course


def look(folder: Path, allowed: Allowed) -> None:
    """What holds before anything is repaired: all that is there is whole."""
    store = CheckpointStore(folder / ROOT)
    for directory in list_checkpoints(folder / ROOT).values():
        verify_directory(directory)
    assert check(store.load_newest()) in allowed
    if None in allowed:
        return
    assert check(load(store.root, "latest")) in allowed
    assert load(store.root, "best").step in allowed.values()
    own_is_there(folder)


def recover(folder: Path, keep: int, allowed: Allowed) -> None:
    """The next session goes on from one of those that are allowed, and its save works."""
    store = CheckpointStore(folder / ROOT, keep=keep)
    store.prepare()
    assert not unfinished(folder / ROOT)
    newest = check(store.load_newest())
    assert newest in allowed
    step, course = newest or (0, "old")
    if newest is not None:
        assert pointers(store.root) == (step, allowed[newest])
    save(store, alone, 6, course)
    # A whole save removes what those that were cut off have left.
    assert len(store.steps) <= keep + 1
    assert not unfinished(folder / ROOT)
    assert check(load(store.root, "latest")) == (6, course) == check(store.load_newest())
    assert read_pointer(store.root, "best") == (6 if newest is None else allowed[newest])
    own_is_there(folder)


def own_is_there(folder: Path) -> None:
    """Nothing of the user's is gone."""
    for name, mine in OWN.items() if (folder / "own").exists() else ():
        assert (folder / name).is_dir() if mine is None else (folder / name).read_bytes() == mine


class Recorded(NamedTuple):
    """An action that has worked.

    Arguments:
        before, after: what there was.
        operations: of all ranks, as they may have done them: several orders.
    """

    action: Action
    before: Tree
    orders: list[list[Operation]]
    after: Tree


def record(action: Action, folder: Path) -> Recorded:
    """Let one rank do it in a new folder."""
    folder.mkdir(parents=True)
    begin(folder, ALONE, alone, action)
    before = tree_of(folder)
    done = operations_of(folder, lambda: action.act(shared(folder, ALONE, action.keep), alone))
    return Recorded(action, before, [done], tree_of(folder))


def operations_of(folder: Path, act: Callable[[], object]) -> list[Operation]:
    """What an act does to the files of a folder."""
    log = Log(folder.with_name(f"{folder.name}.log"))
    with watched(folder, log):
        act()
    found = log.read()
    log.path.unlink()
    return found


def crash_everywhere(recorded: Recorded, trial: Path, every: bool) -> dict[str, int]:
    """Crash before and after each operation, and while what is left is repaired.

    Arguments:
        trial: a folder to work in.
        every: whether states that differ in what a folder under a temporary name holds are all
            looked at, or one of them.

    Returns:
        how many operations there were, how many states after a crash, and how many after another
        one while that is repaired; without those that are alike.
    """
    action = recorded.action
    seen: set[Any] = set()
    counts = {"operations": 0, "states": 0, "repairs": 0}

    def crash(tree: Tree, allowed: Allowed, repairs: int = 1) -> None:
        looked_at = tree if every else {p: c for p, c in tree.items() if not IN_TEMPORARY(p)}
        if (key := (len(allowed), key_of(looked_at))) in seen:
            return
        seen.add(key)
        counts["states" if repairs else "repairs"] += 1
        lay_out(tree, trial)
        look(trial, allowed)
        again, root = Disk(tree), trial / ROOT
        steps = operations_of(trial, lambda: CheckpointStore(root).prepare()) if repairs else ()
        recover(trial, action.keep, allowed)
        for each in steps:
            again.apply(each)
            for found in again.after_crashes():
                crash(found, allowed, repairs - 1)

    for operations in recorded.orders:
        disk = Disk(recorded.before)
        for operation in (None, *operations):
            if operation is not None:
                disk.apply(operation)
                counts["operations"] += 1
            for tree in disk.after_crashes():
                crash(tree, action.after if operation is operations[-1] else action.allowed)
        assert disk.tree() == recorded.after, "the log lacks something that was done"
    return counts


class Failing:
    """An operation that fails, or all from it on.

    Arguments:
        at: which one, from 0.
        goes_on: whether those after it fail as well.
        kinds: which operations count; all but reads and collectives if there are none.
    """

    def __init__(
        self, at: int, code: int, goes_on: bool = False, kinds: tuple[str, ...] = ()
    ) -> None:
        self.left, self.code, self.goes_on, self.kinds = at, code, goes_on, kinds
        self.has_failed = False

    def __call__(self, operation: Operation) -> None:
        """See `Before`."""
        if operation.kind in ("read", "enters", "leaves") and operation.kind not in self.kinds:
            return
        self.left -= 1
        if self.left == -1 or (self.left < 0 and self.goes_on):
            self.has_failed = True
            raise OSError(self.code, os.strerror(self.code))


CODES = {"disk full": errno.ENOSPC, "I/O error": errno.EIO, "read-only": errno.EROFS}


def fail_everywhere(recorded: Recorded, trial: Path, code: int, goes_on: bool) -> int:
    """Let each operation fail; then the same store does the same on a disk that works.

    Returns:
        how many have failed.
    """
    action = recorded.action
    for count in range(10**6):
        lay_out(recorded.before, trial)
        store, failing, said = shared(trial, ALONE, action.keep), Failing(count, code, goes_on), ""
        with watched(trial, before=failing):
            try:
                action.act(store, alone)
            except SetpointError as error:
                said = str(error)
        if not failing.has_failed:
            assert not said
            return count
        # A file that is to be removed may stay; a session that begins removes it.
        assert not said or os.strerror(code) in said, said
        assert not said or str(trial) in said
        look(trial, action.allowed if said else action.after)
        # A disk that has failed for good leaves what the next session removes.
        copy = trial.with_name("copy")
        lay_out(tree_of(trial), copy)
        action.act(store, alone)
        look(trial, action.after)
        recover(trial, action.keep, action.after)
        recover(copy, action.keep, action.allowed if said else action.after)
        shutil.rmtree(copy)
    raise AssertionError("it never ends")


def short_writes(folder: Path) -> int:
    """Let the disk take half of each piece, and then the other half; how many writes there are."""
    writes = 0

    def half(operation: Operation) -> int:
        return (len(operation.data) + 1) // 2

    for name, action in ACTIONS.items():
        recorded = record(action, folder / name)
        trial, log = folder / "trial", Log(folder / f"{name}.log")
        lay_out(recorded.before, trial)
        with watched(trial, log, half):
            action.act(shared(trial, ALONE, action.keep), alone)
        assert tree_of(trial) == recorded.after
        writes += sum(each.kind == "write" for each in log.read())
    return writes


def clocks_that_go_back(folder: Path) -> int:
    """Let the clock and the times of files run backwards; how many actions do not mind."""
    clock, real = itertools.count(10**9, -1000), time.time
    time.time = lambda: float(next(clock))
    try:
        for name, action in ACTIONS.items():
            run = folder / name
            run.mkdir()
            begin(run, ALONE, alone, action)
            for path in sorted(run.rglob("*")):
                os.utime(path, (time.time(), time.time()))
            action.act(shared(run, ALONE, action.keep), alone)
            look(run, action.after)
            recover(run, action.keep, action.after)
    finally:
        time.time = real
    return len(ACTIONS)


def reads_that_fail(folder: Path) -> int:
    """Let each read of files with parts fail, once and for good, while a model is filled.

    Returns:
        how many have failed.
    """
    whole = {"w": torch.arange(12.0).reshape(4, 3), "b": torch.arange(5.0)}
    parts = folder / ROOT / "step-00000001"
    convert(CheckpointStore(folder / "whole").save(1, {"model": whole}, {}), parts, 2)
    failed = 0
    for goes_on in (False, True):
        for count in range(10**6):
            failing = Failing(count, errno.EIO, goes_on, kinds=("read",))
            found = load_directory(parts).tensors["model"]
            with watched(folder, before=failing):
                try:
                    filled = {name: as_placed(found[name], torch.empty(0)) for name in whole}
                except DamagedCheckpoint as error:
                    assert goes_on and "cannot be read back (Input/output error)" in str(error)
                else:
                    assert all(torch.equal(filled[name], whole[name]) for name in whole)
                    assert not (goes_on and failing.has_failed)
            if not failing.has_failed:
                break
            failed += 1
    return failed
