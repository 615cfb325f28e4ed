"""What no input may cause: a traceback, a hang, or anything done that was not asked for."""

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SECONDS = 5.0
"""Of processor time, for one input of a few kilobytes; a thousand times what it should take."""

# Imported already, or when they are first used; all else the first, harmless inputs load.
_LIBRARY = ("ast", "difflib", "inspect", "json", "tomllib", "unicodedata", "warnings")
_OURS = ("setpoint", "ruamel", "encodings")
_FORBIDDEN = (
    *("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill"),
    *("os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.putenv"),
    *("socket.", "urllib.", "ftplib.", "http.", "smtplib.", "ctypes.", "mmap.", "shutil."),
    *("pickle.", "webbrowser.", "glob.", "tempfile.", "shelve.", "sqlite3."),
)


class Hang(BaseException):
    """An input took longer than any may take; no `except Exception` catches it."""


class Breach(BaseException):
    """An input made the program do what it may not do."""


class _Watch:
    def __init__(self) -> None:
        self.on = False
        self.folder: str | None = None
        self.breaches: list[str] = []
        self.hooked = False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        breach = self.judge(event, args)
        if breach:
            self.breaches.append(breach)
            raise Breach(breach)

    def judge(self, event: str, args: tuple[Any, ...]) -> str | None:
        """What is wrong with an event, or None."""
        if event == "import":
            name = str(args[0]).partition(".")[0]
            return None if name in _OURS else f"imports {args[0]}"
        if event == "exec":
            # A module is compiled from its file; what came as text has a name in angle brackets.
            name = args[0].co_filename
            ours = not name.startswith("<") or "frozen" in name or _reads_annotations()
            return None if ours else f"runs code of {name}"
        if event in ("open", "os.listdir", "os.scandir"):
            return None if self.may_open(args) else f"{event} {args[0]!r}"
        if event.startswith("glob.glob") and "ruamel" in str(args[0]):
            return None  # the YAML library looks for parts of its own
        return f"{event} {args!r:.200}" if event.startswith(_FORBIDDEN) else None

    def may_open(self, args: tuple[Any, ...]) -> bool:
        """Whether a path is the folder of the input, or a module that is imported."""
        path = str(args[0])
        if self.folder is not None and path.startswith(self.folder):
            return True
        # The nearest names in the working folder are looked for beside a file that is missing.
        listed = path in (".", "")
        return listed or path.endswith((".py", ".pyc")) or os.path.isdir(path)


# What evaluates annotations, which are written as text in the modules that declare them.
_ANNOTATIONS = {("inspect", "get_annotations"), ("setpoint.config.schema.field", "compile_field")}


def _reads_annotations() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _ANNOTATIONS:
            return True
        frame = frame.f_back
    return False


_watch = _Watch()


def _expired(number: int, frame: FrameType | None) -> None:
    raise Hang("too much processor time")


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `Hang` in a block that takes more processor time."""
    before = signal.signal(signal.SIGPROF, _expired)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def guarded(folder: str | None = None, seconds: float = SECONDS) -> Iterator[None]:
    """Watch what a block does.

    Arguments:
        folder: where it may open files; without one it may open none but modules of ours.
        seconds: of processor time that it may take.

    Raises:
        Hang: if it takes too long.
        Breach: if it imports, runs, opens, starts or sends what it may not, also if it caught
            the error that this caused.
    """
    if not _watch.hooked:
        for module in _LIBRARY:
            importlib.import_module(module)
        sys.addaudithook(_watch)
        _watch.hooked = True
    _watch.folder, _watch.breaches = folder, []
    with limited(seconds):
        _watch.on = True
        try:
            yield
        finally:
            _watch.on = False
    if _watch.breaches:
        raise Breach("; ".join(_watch.breaches))
