"""What a `@check` yields, held to its word: a mistake in the method itself is told in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, cast

from .base import Config
from .errors import SetpointError, UnresolvedError
from .problem import Caution, Problem
from .suggest import did_you_mean

WANTED = "it must yield a Problem for each finding, and nothing where all is well"


def findings_of(section: Config, name: str, cautions: Collection[str]) -> Iterator[Problem]:
    """Run one check.

    Arguments:
        section: the section, whose values are all known and which refuses changes.
        name: the method.
        cautions: the codes that it declares.

    Returns:
        what it found, relative to the section; a problem of the section itself where the method
        is wrong, with its class, name and line.
    """
    method: Any = getattr(section, name)
    try:
        found: Any = method()
        if not isinstance(found, Iterable) or isinstance(found, str | Config | dict):
            yield _mistake(method, f"returned {_kind(cast(object, found))}; {WANTED}")
            return
        for one in cast(Iterable[object], found):
            yield _held(section, method, one, cautions)
    except UnresolvedError:
        # It reads a value that is itself reported as missing or wrong.
        return
    except SetpointError as error:
        yield _mistake(method, f"failed: {error}", error)
    except Exception as error:
        from .user_code import in_words

        yield _mistake(method, f"failed: {in_words(error)}; {WANTED}", error)


def _held(section: Config, method: Any, one: object, cautions: Collection[str]) -> Problem:
    if not isinstance(one, Problem):
        return _mistake(method, f"yielded {_kind(one)}; {WANTED}")
    for path in (one.path, *one.also):
        wrong = _unknown(section, path)
        if wrong:
            return _mistake(method, f"names {path!r}: {wrong} It says: {one.message}")
    if isinstance(one, Caution) and one.code not in cautions:
        declared = f"write @check(cautions={{{one.code!r}: 'what it means'}})"
        return _mistake(method, f"yielded the caution {one.code!r} undeclared; {declared}")
    return one


def _unknown(section: Config, path: str) -> str:
    """Why a path leads nowhere, as a sentence; the empty text if it may lead somewhere."""
    node: object = section
    for part in path.split(".") if path else ():
        if not isinstance(node, Config) or part == "type":
            return ""
        fields = type(node).__setpoint__.fields
        if part not in fields:
            if hasattr(type(node), "__setpoint_open__"):
                return ""  # what is wrong with a callable may be an argument that is missing
            return f"{type(node).__name__} has no such field.{did_you_mean(part, fields, ' ')}"
        try:
            node = getattr(node, part)
        except UnresolvedError:
            return ""
    return ""


def _mistake(method: Any, what: str, error: Exception | None = None) -> Problem:
    from .user_code import traceback_of

    problem = Problem("", f"{title(method)} {what}")
    problem.traceback = traceback_of(error) if error is not None else ""
    return problem


def title(method: Any) -> str:
    """A method by its class, name and place, for errors.

    Arguments:
        method: a function, or a method of an instance.

    Returns:
        for instance `Net._check_heads (shop.py:30)`.
    """
    from .origin import short_name

    code = getattr(method, "__code__", None)
    place = f" ({short_name(code.co_filename)}:{code.co_firstlineno})" if code else ""
    return f"{getattr(method, '__qualname__', method)}{place}"


def _kind(value: object) -> str:
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{'an' if kind[:1] in 'aeiouAEIOU' else 'a'} {kind}"
