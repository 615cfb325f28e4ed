"""A process that has imported torch and forks Python programs; see `forks`, which starts it.

Its first argument is the number of the socket that it listens at, the others name the modules that
it has imported. A request is one line, a dictionary as Python writes it, with `words`, as they
would follow `python`, `folder`, `environment`, and the `executable` that the program starts others
with; standard input, output and error come along as file descriptors. The answer is two lines: the
number of the process, and its exit status, negative for a signal. It ends when its standard input
does, and what it has forked with it.
"""

import array
import ast
import atexit
import functools
import gc
import importlib
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
import typing
import weakref
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from types import ModuleType
from typing import Any, NoReturn

LONGEST = 1 << 20
# What registers itself, or imports what takes long or need not be there.
NOT_YET = ("setpoint.presets.", "setpoint.model.attention.flex")


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The request and the three open files that come with its first bytes."""
    files = array.array("i")
    text, extra, _, _ = connection.recvmsg(LONGEST, socket.CMSG_LEN(3 * files.itemsize))
    for _, _, data in extra:
        files.frombytes(data)
    while not text.endswith(b"\n"):
        text += connection.recv(LONGEST)
    return ast.literal_eval(text.decode()), list(files)


def run_file(path: str) -> None:
    """Run a file as `__main__`, which stays that of the process."""
    module = ModuleType("__main__")
    module.__dict__.update(
        __file__=path, __loader__=SourceFileLoader("__main__", path), __builtins__=__builtins__
    )
    sys.modules["__main__"] = module
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def run_code(code: str) -> None:
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(code, "<string>", "exec", dont_inherit=True), module.__dict__)


def run_program(words: list[str], path: list[str]) -> None:
    """Do what `python WORDS` does."""
    option, *rest = words
    here = [os.getcwd()]
    if option == "-P":
        here = []
        option, *rest = rest
    if option == "-c":
        sys.argv, sys.path = ["-c", *rest[1:]], ["" for _ in here] + path
        run_code(rest[0])
    elif option == "-m":
        sys.argv, sys.path = rest, [*here, *path]
        # What runs as `__main__` has not been imported.
        is_package = hasattr(sys.modules.get(rest[0]), "__path__")
        sys.modules.pop(f"{rest[0]}.__main__" if is_package else rest[0], None)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path = [option, *rest], [os.path.dirname(os.path.realpath(option)), *path]
        run_file(option)


def exit_status(words: list[str], path: list[str]) -> int:
    """Run a program; its exit status, with what Python prints of an uncaught exception."""
    try:
        run_program(words, path)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def output(number: int) -> TextIOWrapper:
    """Standard output or error, as Python opens it where it is not a terminal."""
    file = BufferedWriter(FileIO(number, "w", closefd=False))
    coding = sys.stdin.encoding
    if number == 1:
        return TextIOWrapper(file, coding)
    return TextIOWrapper(file, coding, errors="backslashreplace", line_buffering=True)


def become(request: dict[str, Any], files: list[int], path: list[str]) -> NoReturn:
    """Turn a fork into the program that was asked for."""
    status = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        sys.stdin, sys.stdout, sys.stderr = (
            TextIOWrapper(BufferedReader(FileIO(0, closefd=False)), sys.stdin.encoding),
            output(1),
            output(2),
        )
        if request["environment"].get("PYTHONUNBUFFERED"):
            sys.stdout.reconfigure(write_through=True)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.executable = request["executable"]
        first = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
        status = exit_status(request["words"], [*first, *path])
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BrokenPipeError:
        status = 120
    finally:
        os._exit(status)


def prepare(names: list[str]) -> None:
    """Do what each program would do for itself: import, and look up what stays the same."""
    import setpoint

    for name in names:
        with suppress(ModuleNotFoundError):  # of a newer torch
            importlib.import_module(name)
    found = (module.name for module in pkgutil.walk_packages(setpoint.__path__, "setpoint."))
    for name in (name for name in found if not name.startswith(NOT_YET)):
        importlib.import_module(name)
    from setpoint.config.composition import compose
    from setpoint.plan.preflight import preflight
    from setpoint.track import environment
    from setpoint.train.config import Job

    # As in tests/conftest.py.
    os.fsync = lambda descriptor: None
    if sys.version_info < (3, 12):
        typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
    environment._own_code()
    environment._packages()
    preflight(compose(Job).resolve())  # looks into the classes of all sections
    # What torch has registered need not be taken back at the end of a fork, which takes as long as
    # a small command does.
    for each in list(weakref.finalize._registry):  # pyright: ignore[reportAttributeAccessIssue]
        each.atexit = False
    gc.collect()
    gc.freeze()


def serve(listener: socket.socket) -> None:
    """Answer requests until standard input ends."""
    own = [os.path.abspath(part) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    path = [part for part in sys.path if part not in own]
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, woken, 0], [], [])
        if 0 in ready and not os.read(0, 1):
            break
        if woken in ready:
            os.read(woken, 4096)
            for child in list(running):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    with running.pop(child) as connection:
                        answer(connection, os.waitstatus_to_exitcode(status))
        if listener in ready:
            connection, _ = listener.accept()
            request, files = receive(connection)
            child = os.fork()
            if child == 0:
                for other in (listener, connection, *running.values()):
                    other.close()
                os.close(woken)
                os.close(wake)
                become(request, files, path)
            for file in files:
                os.close(file)
            running[child] = connection
            answer(connection, child)
    for child in running:
        os.kill(child, signal.SIGKILL)


def answer(connection: socket.socket, number: int) -> None:
    with suppress(BrokenPipeError):  # Who asked has gone.
        connection.sendall(f"{number}\n".encode())


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    with socket.socket(fileno=int(sys.argv[1])) as at:
        prepare(sys.argv[2:])
        serve(at)
