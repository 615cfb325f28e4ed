"""The user's own code: what may be imported, importing it, and descriptions of its errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..words.errors import (
    ConfigError,
    DeclarationError,
    Invalid,
    RunError,
    SetpointError,
    UserCodeError,
    hide_secrets,
    printable,
)
from ..words.names import can_be_named, did_you_mean
from .origin import short_name

if TYPE_CHECKING:
    from traceback import FrameSummary

LIBRARY = os.path.dirname(os.__file__) + os.sep
PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep
# Frames that run the user's code but do not explain its errors.
ENGINE = (
    os.path.join(PACKAGE, "config") + os.sep,
    os.path.join(PACKAGE, "cli") + os.sep,
    os.path.join(PACKAGE, "sweep") + os.sep,
    os.path.join(PACKAGE, "units") + os.sep,
    os.path.join(os.path.dirname(os.__file__), "importlib") + os.sep,
    "<frozen importlib",
)
VARIABLE = "SETPOINT_IMPORTS"
LOG_OF = "setpoint_log"
"""The attribute of an exception that names the log file which has its whole traceback."""
_named: set[str] = set()
_shows_all_frames = False


def import_user_module(name: str, source: str, *, trusted: bool = True) -> ModuleType:
    """Import a module by name, including from the working folder.

    Raises:
        SetpointError: the module does not exist, or its import fails.
    """
    import importlib

    if not can_be_named(name):
        raise SetpointError(f"{source!r}: {name!r} is not a valid name of a module")
    if not name or name.startswith("."):
        advice = "expected module:function" if ":" in source else "give one such as package.module"
        raise SetpointError(f"{source}: {name!r} is not a module; {advice}")
    try:
        folder = os.getcwd()
    except OSError as error:
        raise SetpointError(
            f"{source}: modules are looked for in the working directory, which cannot be "
            f"read: {error.strerror}"
        ) from None
    if not {"", folder} & set(sys.path):
        # Last, so that a local file such as random.py cannot shadow the standard library.
        sys.path.append(folder)
    try:
        module = importlib.import_module(name)
        package = name.partition(".")[0]
        if trusted and package != "setpoint":  # setpoint has functions that import anything
            allow_imports(package)
        return module
    except ModuleNotFoundError as error:
        raise SetpointError(f"{source}: {_missing_module(name, error)}") from None
    except Exception as error:
        if isinstance(error, SetpointError) and not isinstance(error, DeclarationError):
            raise
        reason = error_in_words(error)
        if isinstance(error, DeclarationError):
            reason = f"{error}{place_of(error)}"
        elif isinstance(error, SyntaxError):
            place = f"{short_name(error.filename)}:{error.lineno}: " if error.filename else ""
            reason = f"{place}{type(error).__name__}: {error.msg}"
        raise UserCodeError(
            f"{source}: importing {name} failed: {reason}", traceback_of(error)
        ) from error


def _missing_module(name: str, error: ModuleNotFoundError) -> str:
    """The error for a missing module: the named one, or one that it imports."""
    missing = error.name or ""
    if missing and name != missing and not name.startswith(f"{missing}."):
        return f"importing {name} failed: there is no module {missing!r}{place_of(error)}"
    if name.endswith(".py"):
        module = name.removesuffix(".py").replace("/", ".")
        return f"a module is named without .py: did you mean {module}?"
    return f"there is no module {missing or name!r}"


def find_user_function(source: str) -> Callable[..., Any]:
    """Import the function of `module:function`.

    Raises:
        SetpointError: the module does not exist or lacks the function.
    """
    module_name, _, name = source.partition(":")
    module = import_user_module(module_name, source)
    function = getattr(module, name, None)
    if function is not None and not callable(function):
        kind = type(function).__name__
        raise SetpointError(f"{source}: {name} in {module_name} is of type {kind}, not a function")
    if function is None:
        public = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        hint = did_you_mean(name, public, " ")
        raise SetpointError(f"{source}: {module_name} has no function {name!r}.{hint}")
    return function


def importable_name(module: str) -> str:
    """The name under which another process can import a module, even a running script."""
    # `multiprocessing` adds an alias that only its own processes can import.
    private = ("__main__", "__mp_main__")
    if module not in private:
        return module
    script = sys.modules[module]
    names = (name for name, other in sys.modules.items() if other is script)
    return next((name for name in names if name not in private), "__main__")


def call_user_function(function: Callable[..., Any], title: str, *args: Any, **kwargs: Any) -> Any:
    """Call a preset or modifier.

    Raises:
        SetpointError: the function raises one, or sets an invalid value in a config.
        UserCodeError: the function raises any other exception, or misuses the engine.
    """
    try:
        return function(*args, **kwargs)
    except Invalid as error:
        # The error has a value, but neither the field nor the origin.
        raise SetpointError(f"{title}: {error.sentence}{place_of(error)}") from None
    except (ConfigError, RunError, UserCodeError):
        raise
    except SetpointError as error:
        if raised_by_user(error):
            raise
        message = f"{title} failed: {error}{place_of(error)}"
        raise UserCodeError(message, traceback_of(error)) from error
    except Exception as error:
        raise UserCodeError(
            f"{title} failed: {error_in_words(error)}", traceback_of(error)
        ) from error


def error_in_words(error: BaseException) -> str:
    """Format an exception with its line, `ZeroDivisionError: division by zero (own.py:12)`."""
    return f"{type(error).__name__}: {error}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """The line that raised an exception, as ` (own.py:12)`; empty if unknown."""
    import traceback  # slow to import, and rarely needed

    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(ENGINE)]
    frames = outside or ([] if isinstance(error, SetpointError) else frames)
    return f" ({short_name(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""


def traceback_of(error: BaseException, program: bool = False, whole: bool = False) -> str:
    """The traceback of an exception in the user's code and of its causes, without secrets.

    Arguments:
        program: whether the outermost frames are of the script that starts the program.
        whole: whether to keep all frames; otherwise frames of the engine are removed, as are frames
            of packages above the innermost user frame.
    """
    import traceback

    root = traceback.TracebackException.from_exception(error)
    queue: list[traceback.TracebackException | None] = [] if whole else [root]
    while queue:
        part = queue.pop()
        if part is not None:
            users = _user_frames(part.stack, program)
            part.stack = traceback.StackSummary.from_list(
                frame
                for index, frame in enumerate(part.stack)
                if index in users
                or (index > max(users, default=-1) and not frame.filename.startswith(ENGINE))
            )
            queue += [part.__cause__, part.__context__]
    return printable(hide_secrets("".join(root.format()).rstrip()))


def _user_frames(frames: Sequence[FrameSummary], program: bool) -> list[int]:
    """Indices of the frames in user code, as opposed to packages or the standard library."""
    # The script that starts the program is above all frames of Setpoint.
    indices = (i for i, frame in enumerate(frames) if frame.filename.startswith(PACKAGE))
    start = next(indices, len(frames)) if program else 0
    return [
        index
        for index, frame in enumerate(frames)
        if index >= start
        and not frame.filename.startswith((PACKAGE, LIBRARY, "<frozen "))
        and f"{os.sep}site-packages{os.sep}" not in frame.filename
    ]


def raised_by_user(error: BaseException) -> bool:
    """True if user code itself raised an exception, not a package that it called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not trace.tb_frame.f_code.co_filename.startswith(PACKAGE)


def allow_imports(*modules: str) -> None:
    """Allow this process's configurations to name objects in some modules and their submodules.

    `--import NAME` and `module:function` on the command line do the same.
    """
    _named.update(modules)


def allowed_modules(trusted: Sequence[str] = ()) -> tuple[str, ...]:
    """The modules that an import path may name: allowed ones and those trusted by its class.

    The environment variable SETPOINT_IMPORTS, a comma-separated list, replaces the latter.
    """
    given = os.environ.get(VARIABLE)
    words = trusted if given is None else [word.strip() for word in given.split(",")]
    return tuple(sorted({*filter(None, words), *_named}))


def is_allowed(name: str, modules: Sequence[str]) -> bool:
    """True if a module, or a name inside one, is among the allowed ones or below them."""
    return any(f"{name}.".startswith(f"{module}.") for module in modules)


def not_allowed(name: str, modules: Sequence[str]) -> str:
    """The error for a path that may not be imported."""
    top = name.partition(".")[0].partition(":")[0]
    return (
        f"{name} must not be imported; allowed: {', '.join(modules) or 'no modules'}. If you "
        f"trust it, allow it with --import {top}, sp.allow_imports({top!r}) or in {VARIABLE}"
    )


def show_all_frames(is_on: bool) -> None:
    """Make `users_traceback` keep Setpoint's own frames, as requested by `--traceback`."""
    global _shows_all_frames
    _shows_all_frames = is_on


def users_traceback(error: BaseException, program: bool = False) -> str:
    """The traceback of an exception in user code; empty if the fault is Setpoint's own."""
    import traceback

    if _shows_all_frames:
        return traceback_of(error, whole=True)
    users = _user_frames(traceback.extract_tb(error.__traceback__), program)
    return traceback_of(error, program) if users else ""


def traceback_to_show(error: BaseException) -> str:
    """Traceback of an error, or of its cause, to print when the error ends a command.

    Empty if no user code is involved, or if the message describes the error.
    """
    if isinstance(error, UserCodeError) and not _shows_all_frames:
        return error.traceback
    if not isinstance(error, SetpointError) or _shows_all_frames:
        return users_traceback(error, program=True)
    cause = error.__cause__
    while isinstance(cause, SetpointError):
        cause = cause.__cause__
    if cause is None or isinstance(cause, OSError):  # the message describes it
        return ""
    return users_traceback(cause, program=True)


def was_quit(error: BaseException | None) -> bool:
    """True if an error results from leaving a debugger, as with `q` in pdb."""
    while error is not None and type(error).__name__ != "BdbQuit":
        error = error.__cause__
    return error is not None


def log_of(error: BaseException) -> str:
    """The file with all frames of an error that ends a run; empty if it was not logged."""
    return getattr(error, LOG_OF, "")
