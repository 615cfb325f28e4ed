"""A disk that records what is done to it, fails on request, and shows what a crash leaves.

`watched` sees every change of the files below a folder, by Python's own functions: what they do not
see does not come out of a replay, which the tests compare with the folder. `after_crashes` gives
what a disk may hold after a power cut. The model is that of POSIX:

- the content of a file is there once the file was synced; before, all of it may be missing, cut,
  zero or there;
- a name (made, changed, removed) is there once its directory was synced; before, any set of changes
  may be lost, except that a change of a name does not outlive the loss of an earlier one of it;
- a rename happens as a whole.

A killed process is the case in which nothing is lost.
"""

import builtins
import io
import itertools
import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

Tree = Mapping[str, bytes | None]
"""Relative path to content; None for a directory."""


class Operation(NamedTuple):
    """One thing that was done, or is about to be.

    Arguments:
        kind: `create`, `write`, `sync` (a file or a directory), `rename`, `unlink`, `mkdir`,
            `rmdir`, `read`; `enters` and `leaves` a collective, for ranks.
        path: relative to the folder; the name of a collective.
        other: the new name of what is renamed.
        data: what is written.
    """

    kind: str
    path: str
    other: str = ""
    data: bytes = b""
    rank: int = 0


Before = Callable[[Operation], int | None]
"""Called before an operation: it may raise, or end the process, or say how many bytes at most are
written."""


def harmless(operation: Operation) -> None:
    """Every operation works."""


class Log:
    """Operations of all ranks in the order in which they have happened: a file they all add to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, operation: Operation) -> None:
        """Append one."""
        content = pickle.dumps(tuple(operation))
        os.write(self._file, len(content).to_bytes(8, "little") + content)

    def read(self) -> list[Operation]:
        """All of them."""
        content, found = self.path.read_bytes(), []
        while content:
            end = 8 + int.from_bytes(content[:8], "little")
            found.append(Operation(*pickle.loads(content[8:end])))
            content = content[end:]
        return found


@contextmanager
def watched(
    folder: Path, log: Log | None = None, before: Before = harmless, rank: int = 0
) -> Iterator[None]:
    """See what this process does to the files below a folder.

    Arguments:
        folder: absolute, without links.
        log: where successful changes are recorded.
        before: called before each operation; what it raises is what the operation raises.
    """
    inside = f"{folder}{os.sep}"

    def place(path: Any, dir_fd: int | None = None) -> str | None:
        if isinstance(path, int):
            whole = os.readlink(f"/proc/self/fd/{path}")
        else:
            base = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
            whole = os.path.normpath(os.path.join(base, os.fspath(path)))
        if whole == str(folder):
            return "."
        return whole.removeprefix(inside) if whole.startswith(inside) else None

    def done(operation: Operation) -> None:
        if log is not None:
            log.add(operation)

    def seen(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def act(path: Any, *more: Any, dir_fd: int | None = None, **options: Any) -> Any:
            at = place(path, dir_fd)
            given = {**options, **({} if dir_fd is None else {"dir_fd": dir_fd})}
            if at is None:
                return function(path, *more, **given)
            other = place(more[0]) or "" if kind == "rename" else ""
            operation = Operation(kind, at, other, rank=rank)
            before(operation)
            found = function(path, *more, **given)
            done(operation)
            return found

        return act

    class File(io.FileIO):
        """A file that is read or written without a buffer, each call an operation."""

        def __init__(self, path: Any, mode: str, at: str) -> None:
            self.at = at
            if mode != "r":
                before(Operation("create", at, rank=rank))
            super().__init__(path, mode)
            if mode == "a":
                assert log is None, "what is appended is not recorded"
            elif mode != "r":
                assert mode == "x" or not self.tell(), "a file that was there is written"
                done(Operation("create", at, rank=rank))

        def write(self, data: Any) -> int:
            content = bytes(data)
            most = before(Operation("write", self.at, data=content, rank=rank))
            written = super().write(content[:most])
            done(Operation("write", self.at, data=content[:written], rank=rank))
            return written

        def readinto(self, buffer: Any) -> int:
            before(Operation("read", self.at, rank=rank))
            return super().readinto(buffer)

        def readall(self) -> bytes:
            before(Operation("read", self.at, rank=rank))
            return super().readall()

    def opened(path: Any, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
        at = None if isinstance(path, int) else place(path)
        if at is None:
            return real["open"](path, mode, buffering, *more, **options)
        assert "+" not in mode, f"{at} is opened as {mode}"
        options.pop("opener", None)
        raw = File(path, mode.replace("b", "").replace("t", ""), at)
        file = io.BufferedReader(raw) if "r" in mode else io.BufferedWriter(raw)
        if buffering == 1:
            options["line_buffering"] = True
        return file if "b" in mode else io.TextIOWrapper(file, *more, **options)

    def opened_raw(path: Any, flags: int, *more: Any, **options: Any) -> int:
        at = place(path, options.get("dir_fd"))
        if at is not None and flags & (os.O_WRONLY | os.O_RDWR):
            assert log is None, "what a descriptor writes is not recorded"
            before(Operation("create", at, rank=rank))
        return real["os.open"](path, flags, *more, **options)

    def written_raw(descriptor: int, data: Any) -> int:
        at = place(descriptor)
        most = None if at is None else before(Operation("write", at, data=bytes(data), rank=rank))
        return real["os.write"](descriptor, data if most is None else data[:most])

    def read_raw(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        if (at := place(descriptor)) is not None:
            before(Operation("read", at, rank=rank))
        return real["os.preadv"](descriptor, buffers, offset)

    kinds = {"rename": "rename", "replace": "rename", "unlink": "unlink", "remove": "unlink",
             "mkdir": "mkdir", "rmdir": "rmdir", "fsync": "sync"}  # fmt: skip
    real = {"open": builtins.open, "os.open": os.open, "os.write": os.write}
    real["os.preadv"] = os.preadv
    real |= {name: getattr(os, name) for name in kinds}
    for name, kind in kinds.items():
        # Tests run without syncs; those of this disk are in its log.
        setattr(os, name, seen((lambda _: None) if name == "fsync" else real[name], kind))
    builtins.open = io.open = opened
    os.open, os.write, os.preadv = opened_raw, written_raw, read_raw
    try:
        yield
    finally:
        builtins.open = io.open = real["open"]
        os.open, os.write, os.preadv = real["os.open"], real["os.write"], real["os.preadv"]
        for name in kinds:
            setattr(os, name, real[name])


class _Change(NamedTuple):
    """What one operation does to names: (directory, name) to what it stands for from then on."""

    names: dict[tuple[int, str], int | None]


class _File:
    """Content as programs see it, and as the disk is sure to have it."""

    def __init__(self, content: bytes = b"", is_synced: bool = False) -> None:
        self.content = content
        self.is_synced = is_synced


class Disk:
    """Names and contents, those that a power cut cannot take and those that it may.

    Arguments:
        tree: what there is, all of it synced.
    """

    def __init__(self, tree: Tree) -> None:
        self._files: dict[int, _File] = {}
        self._numbers = itertools.count(1)
        self._now: dict[int, dict[str, int]] = {0: {}}
        for path, content in sorted(tree.items()):
            self._add(path, content)
        self._kept = {number: dict(names) for number, names in self._now.items()}
        self._pending: list[_Change] = []

    def _add(self, path: str, content: bytes | None) -> None:
        folder, name = self._place(path)
        number = next(self._numbers)
        if content is None:
            self._now[number] = {}
        else:
            self._files[number] = _File(content, is_synced=True)
        self._now[folder][name] = number

    def _place(self, path: str) -> tuple[int, str]:
        *folders, name = Path(path).parts
        at = 0
        for folder in folders:
            at = self._now[at][folder]
        return at, name

    def _number(self, path: str) -> int:
        if path == ".":
            return 0
        folder, name = self._place(path)
        return self._now[folder][name]

    def _change(self, names: dict[tuple[int, str], int | None]) -> None:
        for (folder, name), number in names.items():
            if number is None:
                del self._now[folder][name]
            else:
                self._now[folder][name] = number
        self._pending.append(_Change(names))

    def apply(self, operation: Operation) -> None:
        """Let it happen."""
        kind, path = operation.kind, operation.path
        match kind:
            case "create":
                number = next(self._numbers)
                self._files[number] = _File()
                self._change({self._place(path): number})
            case "mkdir":
                number = next(self._numbers)
                self._now[number], self._kept[number] = {}, {}
                self._change({self._place(path): number})
            case "write":
                file = self._files[self._number(path)]
                file.content, file.is_synced = file.content + operation.data, False
            case "sync":
                self._sync(self._number(path))
            case "rename":
                number = self._number(path)
                self._change({self._place(path): None, self._place(operation.other): number})
            case "unlink" | "rmdir":
                self._change({self._place(path): None})
            case _:
                raise AssertionError(kind)

    def _sync(self, number: int) -> None:
        if number in self._files:
            self._files[number].is_synced = True
            return
        for change in self._pending:
            if any(folder == number for folder, _ in change.names):
                _apply(self._kept, change)
        self._pending = [
            change
            for change in self._pending
            if all(folder != number for folder, _ in change.names)
        ]

    def tree(self) -> dict[str, bytes | None]:
        """What programs see."""
        return self._tree(self._now, lambda file: file.content)

    def after_crashes(self) -> Iterator[dict[str, bytes | None]]:
        """All that may be there after a power cut now; first what is there without one."""
        yield self.tree()
        seen = {key_of(self.tree())}
        for kept in _survivors(self._pending):
            names = {number: dict(entries) for number, entries in self._kept.items()}
            for change in kept:
                _apply(names, change)
            for damage in DAMAGES:
                found = self._tree(
                    names,
                    lambda file, d=damage: file.content if file.is_synced else d(file.content),
                )
                if (key := key_of(found)) not in seen:
                    seen.add(key)
                    yield found

    def _tree(
        self, names: Mapping[int, Mapping[str, int]], read: Callable[[_File], bytes]
    ) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}

        def walk(number: int, path: str) -> None:
            for name, each in sorted(names[number].items()):
                if each in self._files:
                    found[path + name] = read(self._files[each])
                else:
                    found[path + name] = None
                    walk(each, f"{path}{name}/")

        walk(0, "")
        return found


DAMAGES: tuple[Callable[[bytes], bytes], ...] = (
    lambda content: content,
    lambda content: b"",
    lambda content: content[: len(content) // 2],
    lambda content: bytes(len(content)),
)
"""What a power cut makes of a file that was not synced."""

ALL_SETS = 4
"""Of so many unsynced changes of names every set is tried; of more the first ones, all but one, and
each with those that it needs."""


def _apply(names: dict[int, dict[str, int]], change: _Change) -> None:
    for (folder, name), number in change.names.items():
        if number is None:
            names[folder].pop(name, None)
        else:
            names[folder][name] = number


def _survivors(pending: Sequence[_Change]) -> Iterator[list[_Change]]:
    """The sets of changes that may be on the disk, where none of them has been synced."""
    count = len(pending)
    needs = [
        {j for j in range(i) if pending[i].names.keys() & pending[j].names.keys()}
        for i in range(count)
    ]

    def whole(chosen: Iterable[int]) -> frozenset[int]:
        """Without those that need one that is not chosen."""
        kept: set[int] = set()
        for i in sorted(chosen):
            if needs[i] <= kept:
                kept.add(i)
        return frozenset(kept)

    def with_needs(i: int) -> frozenset[int]:
        return frozenset({i}).union(*(with_needs(j) for j in needs[i]))

    every = range(count)
    if count <= ALL_SETS:
        sets = [whole(s) for n in range(count + 1) for s in itertools.combinations(every, n)]
    else:
        sets = [whole(range(n)) for n in range(count + 1)]
        sets += [whole(set(every) - {i}) for i in every] + [with_needs(i) for i in every]
    for chosen in dict.fromkeys(sets):
        yield [pending[i] for i in sorted(chosen)]


def key_of(tree: Tree) -> frozenset[tuple[str, bytes | None]]:
    """By which trees are looked up."""
    return frozenset(tree.items())


def tree_of(folder: Path) -> dict[str, bytes | None]:
    """What lies below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def lay_out(tree: Tree, folder: Path) -> None:
    """Make a folder hold a tree, and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, content in sorted(tree.items()):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


def orders(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    """Orders in which ranks may have done what they have done, without the collectives.

    Arguments:
        operations: of all ranks, with `enters` and `leaves` around each collective. No rank leaves
            one that all give to before all have entered it, and none leaves one that the main rank
            gives to before that has entered it.
    """
    ranks = sorted({each.rank for each in operations})
    lines = {rank: [each for each in operations if each.rank == rank] for rank in ranks}
    found: list[list[Operation]] = []
    for first in (*ranks, None):
        at, order, turn = dict.fromkeys(ranks, 0), list[Operation](), 0
        entered: dict[tuple[int, str, int], bool] = {}
        counts: dict[tuple[int, str, str], int] = {}
        while any(at[rank] < len(lines[rank]) for rank in ranks):
            turn += 1
            # The first one goes as far as it can before any other; None: they take turns.
            by_turn = ranks[turn % len(ranks) :] + ranks[: turn % len(ranks)]
            tries = by_turn if first is None else [first, *(r for r in by_turn if r != first)]
            for rank in tries:
                if at[rank] == len(lines[rank]):
                    continue
                each = lines[rank][at[rank]]
                if each.kind == "leaves":
                    number = counts.get((rank, each.path, "leaves"), 0)
                    needed = [0] if each.path in FROM_MAIN else ranks
                    if each.path in TO_MAIN and rank:
                        needed = [rank]
                    if not all(entered.get((r, each.path, number)) for r in needed):
                        continue
                if each.kind in ("enters", "leaves"):
                    number = counts.get((rank, each.path, each.kind), 0)
                    counts[rank, each.path, each.kind] = number + 1
                    if each.kind == "enters":
                        entered[rank, each.path, number] = True
                else:
                    order.append(each)
                at[rank] += 1
                break
            else:
                raise AssertionError("each rank waits for another one")
        if order not in found:
            found.append(order)
            yield order


FROM_MAIN = ("broadcast_object_list", "scatter_object_list")
"""Collectives in which the others wait for the main rank only."""
TO_MAIN = ("gather_object",)
"""Collectives in which only the main rank waits."""
COLLECTIVES = ("all_reduce", "all_gather_object", "barrier", "broadcast_object_list",
               "gather_object", "scatter_object_list")  # fmt: skip


@contextmanager
def meetings(log: Log | None, before: Before, rank: int) -> Iterator[None]:
    """Record the collectives of a rank, which its `before` hears of as well."""
    from torch import distributed

    def reach(kind: str, name: str) -> None:
        operation = Operation(kind, name, rank=rank)
        before(operation)
        if log is not None:
            log.add(operation)

    def seen(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def act(*given: Any, **options: Any) -> Any:
            reach("enters", name)
            found = function(*given, **options)
            reach("leaves", name)
            return found

        return act

    real = {name: getattr(distributed, name) for name in COLLECTIVES}
    for name, function in real.items():
        setattr(distributed, name, seen(name, function))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(distributed, name, function)
