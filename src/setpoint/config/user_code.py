"""Code of the user's own: imported only where it was named, and its errors told in words."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .credentials import hide_secrets
from .errors import DeclarationError, Invalid, RunError, SetpointError, UserCodeError, printable
from .files.limits import can_be_named
from .origin import short_name
from .problem import ConfigError

if TYPE_CHECKING:
    from traceback import FrameSummary

LIBRARY = os.path.dirname(os.__file__) + os.sep
PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
# What runs the user's code and says nothing about a fault in it.
ENGINE = (
    os.path.join(PACKAGE, "config") + os.sep,
    os.path.join(PACKAGE, "cli") + os.sep,
    os.path.join(os.path.dirname(os.__file__), "importlib") + os.sep,
    "<frozen importlib",
)


def import_user_module(name: str, source: str, *, trusted: bool = True) -> ModuleType:
    """Import a module that somebody named, from the working folder as well.

    Arguments:
        name: the module.
        source: what was typed, for errors.
        trusted: whether naming it allows configurations to name what is in its package, too.

    Returns:
        the module.

    Raises:
        SetpointError: if there is no such module, or importing it fails.
    """
    import importlib

    if not can_be_named(name):
        raise SetpointError(f"{source!r}: {name!r} is not a module: nothing can have this name")
    if not name or name.startswith("."):
        wanted = "expected module:function" if ":" in source else "give one such as package.module"
        raise SetpointError(f"{source}: {name!r} is not a module; {wanted}")
    try:
        here = os.getcwd()
    except OSError as error:
        raise SetpointError(
            f"{source}: modules are looked for in the working directory, which cannot be "
            f"read: {error.strerror}"
        ) from None
    if not {"", here} & set(sys.path):
        # Last, so that a file such as random.py here cannot stand in for the standard library.
        sys.path.append(here)
    try:
        module = importlib.import_module(name)
        package = name.partition(".")[0]
        if trusted and package != "setpoint":  # which has functions that import anything
            from .foreign.allow import allow_imports

            allow_imports(package)
        return module
    except DeclarationError as error:
        raise UserCodeError(
            f"{source}: importing {name} failed: {error}{place_of(error)}", traceback_of(error)
        ) from error
    except SetpointError:
        raise
    except ModuleNotFoundError as error:
        raise SetpointError(f"{source}: {_not_there(name, error)}") from None
    except SyntaxError as error:
        place = f"{short_name(error.filename)}:{error.lineno}: " if error.filename else ""
        raise UserCodeError(
            f"{source}: importing {name} failed: {place}{type(error).__name__}: {error.msg}",
            traceback_of(error),
        ) from None
    except Exception as error:
        raise UserCodeError(
            f"{source}: importing {name} failed: {in_words(error)}", traceback_of(error)
        ) from error


def _not_there(name: str, error: ModuleNotFoundError) -> str:
    """Which module is missing: the one that was named, or one that it imports itself."""
    missing = error.name or ""
    if missing and name != missing and not name.startswith(f"{missing}."):
        import traceback

        frames = traceback.extract_tb(error.__traceback__)
        user = [frame for frame in frames if not frame.filename.startswith("<frozen")]
        place = f"{short_name(user[-1].filename)}:{user[-1].lineno}"
        return f"importing {name} failed: there is no module {missing!r}, which {place} imports"
    if name.endswith(".py"):
        module = name.removesuffix(".py").replace("/", ".")
        return f"a module is named without .py: did you mean {module}?"
    return f"there is no module {missing or name!r}"


def find_user_function(source: str) -> Callable[..., Any]:
    """Import the function that `module:function` names.

    Arguments:
        source: as typed, without parameters.

    Returns:
        the function.

    Raises:
        SetpointError: if there is no such module, or no such function in it.
    """
    module_name, _, name = source.partition(":")
    module = import_user_module(module_name, source)
    function = getattr(module, name, None)
    if function is not None and not callable(function):
        kind = type(function).__name__
        raise SetpointError(f"{source}: {name} in {module_name} is no function, but of type {kind}")
    if function is None:
        from .suggest import did_you_mean

        meant = did_you_mean(name, _functions(module), " ")
        raise SetpointError(f"{source}: {module_name} has no function {name!r}.{meant}")
    return function


def _functions(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if callable(value) and name[:1] != "_"]


def importable_name(module: str) -> str:
    """The name under which a module can be imported in another process.

    Arguments:
        module: of a class; that of a script that runs is `__main__`.

    Returns:
        for a script that `setpoint.run` has made known by its own name, that name.
    """
    if module != "__main__":
        return module
    script = sys.modules[module]
    names = (name for name, other in sys.modules.items() if other is script and name != module)
    return next(names, module)


def call_user_function(function: Callable[..., Any], title: str, *args: Any, **kwargs: Any) -> Any:
    """Call a preset or modifier.

    Arguments:
        function: the function.
        title: what it is, for errors.
        args, kwargs: its arguments.

    Returns:
        what it returns.

    Raises:
        SetpointError: if it raises one itself, or gives a config a wrong value.
        UserCodeError: if it raises anything else, or uses the engine wrongly.
    """
    try:
        return function(*args, **kwargs)
    except Invalid as error:
        # It knows a value, and neither the field nor who gave it.
        valid = f"; valid: {', '.join(error.valid)}" if error.valid else ""
        raise SetpointError(f"{title}: {error.message}{valid}{place_of(error)}") from None
    except (ConfigError, RunError, UserCodeError):
        raise
    except SetpointError as error:
        if raised_by_user(error):
            raise
        said = f"{title} failed: {error}{place_of(error)}"
        raise UserCodeError(said, traceback_of(error)) from error
    except Exception as error:
        raise UserCodeError(f"{title} failed: {in_words(error)}", traceback_of(error)) from error


def in_words(error: Exception) -> str:
    """An exception with the line that raised it.

    Arguments:
        error: any exception.

    Returns:
        for instance `ZeroDivisionError: division by zero (own.py:12)`.
    """
    return f"{type(error).__name__}: {error}{place_of(error)}"


def place_of(error: Exception) -> str:
    """The line that raised an exception, or called what did inside the configuration's engine.

    Arguments:
        error: any exception.

    Returns:
        for instance ` (own.py:12)`; the empty text where nothing is known.
    """
    import traceback  # it brings the tokenizer, and most users' code works

    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(ENGINE)]
    frames = outside or ([] if isinstance(error, SetpointError) else frames)
    return f" ({short_name(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""


def traceback_of(error: BaseException) -> str:
    """The traceback of an exception in the user's code, without the frames of the engine.

    Arguments:
        error: as it was caught; what it was caused by is shown as well.

    Returns:
        lines as Python prints them, without the last line break.
    """
    import traceback

    whole = traceback.TracebackException.from_exception(error)
    waiting: list[traceback.TracebackException | None] = [whole]
    while waiting:
        one = waiting.pop()
        if one is not None:
            frames = [f for f in one.stack if not f.filename.startswith(ENGINE)]
            one.stack = traceback.StackSummary.from_list(frames)
            waiting += [one.__cause__, one.__context__]
    return "".join(whole.format()).rstrip()


def raised_by_user(error: BaseException) -> bool:
    """Whether the user's code raised an exception itself, and not the package that it called.

    Arguments:
        error: as it was caught.

    Returns:
        True if the innermost frame lies outside of Setpoint.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not trace.tb_frame.f_code.co_filename.startswith(PACKAGE)


def users_traceback(error: BaseException, program: bool = False) -> str:
    """The traceback of an exception that was raised in, or below, code of the user's.

    Arguments:
        error: the exception; what it was caused by is shown as well.
        program: whether the process is Setpoint's own, whose first frames are not the user's.

    Returns:
        lines as Python prints them, without Setpoint's frames above the innermost frame of the
        user's; empty if there is no such frame, and the fault is Setpoint's own.
    """
    import traceback

    whole = traceback.TracebackException.from_exception(error)
    if _users(whole.stack, program) is None:
        return ""
    waiting: list[traceback.TracebackException | None] = [whole]
    while waiting:
        one = waiting.pop()
        if one is not None:
            last = _users(one.stack, program)
            if last is not None:
                one.stack = traceback.StackSummary.from_list(
                    frame
                    for at, frame in enumerate(one.stack)
                    if at >= last or _is_users(frame.filename, one.stack, at, program)
                )
            waiting += [one.__cause__, one.__context__]
    return printable(hide_secrets("".join(whole.format()).rstrip()))


def _users(frames: Sequence[FrameSummary], program: bool) -> int | None:
    """The innermost frame of the user's code."""
    known = [at for at, f in enumerate(frames) if _is_users(f.filename, frames, at, program)]
    return known[-1] if known else None


def _is_users(file: str, frames: Sequence[FrameSummary], at: int, program: bool) -> bool:
    """Whether a frame is of the user's code, and not of a package or the library."""
    if program and not any(f.filename.startswith(PACKAGE) for f in frames[:at]):
        return False  # the script that starts the program
    if file.startswith((PACKAGE, LIBRARY, "<frozen ")):
        return False
    return f"{os.sep}site-packages{os.sep}" not in file
