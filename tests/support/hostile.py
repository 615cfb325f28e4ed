"""Run by test_security.py: run directories made to harm who reads them, given to every command.

    hostile.py FOLDER all|some

Each trap is planted in a copy of a run; then commands that take a run read it, each in a process
with a limited memory and time. None may leave a trace outside of the copy, or end otherwise than
in words. It prints one line of JSON: how many traps there were, and how many commands were tried.
"""

import json
import os
import resource
import shlex
import shutil
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from blake3 import blake3

from setpoint.cli.main import main
from setpoint.train.run import train

from ..train.small import small_job

MEMORY = 2 << 30
"""Bytes that a command may take on top of what this process has."""
SECONDS = 20
"""Of the processor that a command may take; it may wait for ten times as long."""
LARGE = 6 << 30
"""Bytes of a file, sparse on the disk, that no command may read into memory."""
DEEP = b"[" * 200_000
STEP = "checkpoints/step-00000004"
READ = ("config.json", "origins.json", "environment.json", "metrics.jsonl", "events.jsonl",
        "chain.jsonl")  # fmt: skip
SEALED = ("state.json", "model.safetensors", "manifest.json")
GROWS = ("metrics.jsonl", "events.jsonl", "logs/rank-0.log", "lock")
FOLDERS = ("checkpoints", "logs", "traces", "heartbeats", "bad-batches", "fetched", "logs/csv")

FREE = (
    "show RUN", "why RUN optimizer.lr", "diff RUN RUN", "fingerprint RUN", "migrate --write RUN",
    "check RUN", "runs list runs", "runs verify RUN", "runs tag RUN good", "checkpoint list RUN",
    "checkpoint verify RUN", "checkpoint prune RUN --keep 1 --yes", "compare RUN RUN",
)  # fmt: skip
TRAINED = (
    "train RUN '--duration=6 steps'", "generate RUN --prompt a --max-tokens 2", "evaluate RUN",
    "export RUN exported", "checkpoint convert RUN converted", f"checkpoint diff RUN/{STEP} RUN",
)  # fmt: skip

Plant = Callable[[Path, Path], None]
"""Changes a run; the second path is a file outside of it, which is to stay as it is."""


def sealed(content: dict[str, Any]) -> bytes:
    """A manifest as Setpoint writes it: an attacker can compute its checksum as well."""
    content.pop("blake3", None)
    bare = (json.dumps(content, indent=1) + "\n").encode()
    digest = blake3(bare).hexdigest()
    return (json.dumps({**content, "blake3": digest}, indent=1) + "\n").encode()


def with_file(name: str) -> Plant:
    """A manifest that names a file of the attacker's choice."""

    def plant(run: Path, outside: Path) -> None:
        path = run / STEP / "manifest.json"
        content = json.loads(path.read_bytes())
        given = name.replace("OUTSIDE", str(outside))
        data = b"planted"
        target = path.parent / given
        if "\0" in given:
            pass  # no file can have that name
        elif not target.exists() and target.parent.is_dir():
            target.write_bytes(data)
        elif target.is_file():
            data = target.read_bytes()
        digest = blake3(data).hexdigest()
        content["files"][given] = {"bytes": len(data), "blake3": digest}
        path.write_bytes(sealed(content))

    return plant


def resealed(file: str, change: Callable[[bytes], bytes]) -> Plant:
    """A file of a checkpoint that is changed, with a manifest that vouches for it."""

    def plant(run: Path, outside: Path) -> None:
        del outside
        path = run / STEP / file
        data = change(path.read_bytes())
        path.write_bytes(data)
        manifest = run / STEP / "manifest.json"
        content = json.loads(manifest.read_bytes())
        digest = blake3(data).hexdigest()
        content["files"][file] = {"bytes": len(data), "blake3": digest}
        manifest.write_bytes(sealed(content))

    return plant


def text(name: str, data: bytes) -> Plant:
    """A file with other content."""

    def plant(run: Path, outside: Path) -> None:
        (run / name).write_bytes(data.replace(b"OUTSIDE", os.fsencode(outside)))

    return plant


def large(name: str) -> Plant:
    """A file of gigabytes."""
    return lambda run, outside: os.truncate(run / name, LARGE)


def link(name: str, to_folder: bool = False) -> Plant:
    """A link that leads outside."""

    def plant(run: Path, outside: Path) -> None:
        path = run / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(outside.parent if to_folder else outside)

    return plant


def moved(name: str) -> Plant:
    """A folder with all that it holds, as another run's, outside; and a link that leads there."""

    def plant(run: Path, outside: Path) -> None:
        folder, place = run / name, outside.with_name("folder")
        shutil.rmtree(place, ignore_errors=True)
        if folder.is_dir():
            shutil.move(folder, place)
        else:
            place.mkdir()
        folder.symlink_to(place)

    return plant


def index_is_link(run: Path, outside: Path) -> None:
    """The index of the runs beside it is a link to a database of another program."""
    outside.unlink()
    with closing(sqlite3.connect(outside)) as base:
        base.execute("create table runs (mine text)")
        base.execute("insert into runs values ('mine')")
        base.commit()
    (run.parent / ".runs.sqlite3").symlink_to(outside)


def traps() -> Iterator[tuple[str, Plant]]:
    """All traps by name."""
    for name in ("latest", "best"):
        for data in (b"../../../outside", b"OUTSIDE", b"step-00000004/../..\n", b"\0\n"):
            yield f"{name} names {data!r}", text(f"checkpoints/{name}", data)
        yield f"{name} is a link", link(f"checkpoints/{name}")
    for name in (*READ, *(f"{STEP}/{each}" for each in SEALED)):
        yield f"{name} is nested", text(name, DEEP)
        yield f"{name} is large", large(name)
    for name in ("state.json", "model.safetensors"):
        yield f"{name} is nested, sealed", resealed(name, lambda data: DEEP)
    yield (
        "a header of gigabytes",
        resealed("model.safetensors", lambda data: (1 << 62).to_bytes(8, "little") + data[8:]),
    )
    for name in ("../../../planted", "OUTSIDE", "sub/../../../planted", "..", "nul\0"):
        yield f"the manifest names {name}", with_file(name)
    for name in GROWS:
        yield f"{name} is a link", link(name)
    yield "a checkpoint is a link", link("checkpoints/step-00000002", to_folder=True)
    for name in FOLDERS:
        yield f"{name} is a link", moved(name)
    yield "the index is a link", index_is_link
    yield "labels are nested", text("labels.json", DEEP)


def snapshot(folder: Path, without: Path) -> dict[str, bytes | None]:
    """All files below a folder but for those of a copy."""
    return {
        str(path): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in sorted(folder.rglob("*"))
        if without not in (path, *path.parents)
    }


def tried(command: str, place: Path) -> tuple[int, str]:
    """Run a command; its status and what it printed."""
    output = place.with_name("output.txt")
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            with output.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            used = int(time.process_time())
            resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS, resource.RLIM_INFINITY))
            signal.alarm(10 * SECONDS)
            os.chdir(place)
            run = f"runs/{next((place / 'runs').glob('small-*')).name}"
            status = main(shlex.split(command.replace("RUN", run)))
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, ended = os.waitpid(pid, 0)
    said = output.read_text(errors="replace")
    output.unlink()
    return os.waitstatus_to_exitcode(ended), said


def check(folder: Path, every: bool) -> dict[str, Any]:
    """Try all traps."""
    job = small_job(folder / "whole", "duration=4 steps", "checkpoint.every=2 steps")
    # In a process of its own: forks of one that has trained cannot compute.
    if os.fork() == 0:
        train(job)
        os._exit(0)
    os.wait()
    (directory,) = (folder / "whole" / "runs").glob("small-*")
    place, wrong, commands = folder / "place", list[str](), 0
    planted = list(traps())
    for number, (name, plant) in enumerate(planted):
        if not every and number % 4:
            continue
        shutil.rmtree(place, ignore_errors=True)
        beside = folder / "beside"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        outside = beside / "outside.txt"
        outside.write_text("mine\nno line end")
        run = place / "runs" / directory.name
        chosen = [*FREE, *TRAINED]
        if not every:
            chosen = [FREE[number % len(FREE)], TRAINED[number // 4 % len(TRAINED)]]
        for command in chosen:
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(directory, run)
            plant(run, outside)
            before = snapshot(folder, place)
            status, said = tried(command, place)
            commands += 1
            told = f"{name}: setpoint {command}: {status}\n{said[-1500:]}"
            if status not in (0, 1, 2) or "Traceback (most recent" in said:
                wrong.append(told)
            if (after := snapshot(folder, place)) != before:
                changed = {k for k in {*before, *after} if before.get(k) != after.get(k)}
                wrong.append(f"OUTSIDE {changed}: {told}")
    return {"traps": len(planted), "commands": commands, "wrong": wrong}


if __name__ == "__main__":
    os.fsync = lambda descriptor: None
    print(json.dumps(check(Path(sys.argv[1]), sys.argv[2] == "all")))
