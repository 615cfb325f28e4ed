"""Plain values: missing or the same, as JSON has them, and as errors show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, Flag
from itertools import islice
from typing import Any, cast

from .credentials import hide_secrets
from .errors import Invalid, Problem
from .names import Path, dotted
from .texts import PlainScalar, parse_flow, parse_list

# Longer whole numbers cannot be written out in digits; Python refuses 4301 of them.
MAX_BITS = 14_284


INFINITIES = (float("inf"), float("-inf"))


KERNEL = "setpoint.config."


SHOWN_LEVELS = 4


SHOWN = 50  # items of a list that an error looks at; it shows 100 characters in all


def shown_part(value: object, error: Invalid) -> str:
    """The part of a value that an error is about, as the error shows it.

    Returns:
        a short text; `***` for what may be a secret.
    """
    if error.secret:
        return "***"
    whole = value
    if error.at and isinstance(value, PlainScalar):
        value = parsed(value)
    for key in error.at:
        listed_here = isinstance(value, list | tuple) and isinstance(key, int)
        if not listed_here and not isinstance(value, Mapping):
            return shown(whole)  # the path goes on where the value does not, as for a tag
        value = item_at(cast(object, value), key)
    return shown(None if value is MISSING else value)


def problem_of(part: Invalid, path: Path, value: object, origin: str) -> Problem:
    """The finding about one part of a value that stands at a path."""
    return Problem(
        dotted((*path, *part.at)),
        part.message,
        valid=part.valid,
        hint=part.hint,
        value=shown_part(value, part),
        origin=origin,
    )


def parsed(text: PlainScalar) -> object:
    """A text of the command line as the list or mapping that it stands for."""
    try:
        return parse_flow(text) if text.startswith("{") else parse_list(text)
    except Invalid:
        return text


def shown(value: object, level: int = 0) -> str:
    """A value as an error shows it: quoted texts in quotes, with the kind of other things named.

    Arguments:
        level: the lists and mappings that it stands in; it may contain itself.
    """
    if isinstance(value, PlainScalar):
        text = str(value) if value and value.isprintable() else repr(str(value))
    elif isinstance(value, str):
        text = repr(str(value))
    elif value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        text = f"a number of {value.bit_length()} bits"
    elif isinstance(value, int | float):
        text = repr(value)
    elif isinstance(value, list | tuple | Mapping) and level == SHOWN_LEVELS:
        text = "..."
    elif isinstance(value, list | tuple):
        items = cast(Sequence[object], value)[:SHOWN]
        text = f"[{', '.join(shown(item, level + 1) for item in items)}]"
    elif isinstance(value, Mapping):
        pairs = islice(cast(Mapping[object, object], value).items(), SHOWN)
        text = f"{{{', '.join(f'{key}: {shown(item, level + 1)}' for key, item in pairs)}}}"
    elif is_own(value):
        return shown(cast(Any, value).dump())
    elif level and hasattr(type(value), "__setpoint_written__"):
        return shown(cast(Any, value).__setpoint_written__(), level)
    elif type(value).__module__.partition(".")[0] == "pathlib":
        text = repr(str(value))
    elif isinstance(value, type):
        text = f"the class {value.__name__}"
    else:
        text = " ".join(repr(value).split())
        kind, named = type(value).__name__.lower(), text.lower().partition("(")[0]
        if not named or not (kind in named or named in kind):
            text = f"{type(value).__name__} {text}"
    text = hide_secrets(text)
    return text if len(text) <= 100 else text[:97] + "..."


def is_own(value: object) -> bool:
    """Whether a value is of a class that brings its own reading and writing.

    Arguments:
        value: any value; arrays of other packages have a `dump` of another kind.

    Returns:
        True for `Period`, `Free` and the like.
    """
    cls = type(value)
    brings = hasattr(cls, "__setpoint_scalar__") or cls.__module__.startswith(KERNEL)
    return brings and callable(getattr(cls, "dump", None))


def plain_scalar(value: Any) -> Any:
    """A scalar of numpy or torch as Python's own number or text, where that is exact.

    Returns:
        an int, float, bool or str, also for an array or tensor without dimensions; any other
        value as it is.
    """
    if type(value).__module__ not in ("numpy", "torch") or getattr(value, "shape", None) != ():
        return value
    scalar = value.item()
    return scalar if type(scalar) in (int, float, bool, str) else value


def member_text(member: Enum) -> str:
    """A member of an enum by name; of flags the names of all that are set, or `0` for none."""
    return "|".join(flag_names(member)[0]) or "0" if isinstance(member, Flag) else member.name


def flag_names(flags: Flag) -> tuple[list[str], int]:
    """The members that a combination of flags is made of, and the bits that no member names."""
    if flags.name in type(flags).__members__:
        return [str(flags.name)], 0
    names: list[str] = []
    rest: int = flags.value
    for name, one in sorted(
        type(flags).__members__.items(), key=lambda item: item[1].value.bit_count()
    ):
        if one.value & rest and one.value & flags.value == one.value:
            names.append(name)
            rest &= ~one.value
    return names, rest


def shown_plain(value: Any) -> str:
    """A stored value as reports print it."""
    if is_own(value):
        return shown(value.dump())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    # An expression is shown as it is written.
    return shown(getattr(value, "pattern", value))


def not_of(value: object, root: type) -> str:
    """What a function gave instead of a config of a root.

    Returns:
        for instance `a Motor, not a Job`; with modules where the names are the same.
    """
    if value is None:
        return f"nothing, not {named(root.__name__)}"
    given, wanted = type(value).__name__, root.__name__
    if given == wanted:
        given = f"{type(value).__module__}.{type(value).__qualname__}"
        wanted = f"{root.__module__}.{root.__qualname__}"
        if given == wanted:
            again = "the class was defined anew since, as by importing its module twice"
            return f"a {given} of another definition than this one: {again}"
        return f"a {given}, not a {wanted}"
    return f"{named(given)}, not {named(wanted)}"


def named(name: str) -> str:
    """A class's name with its article.

    Returns:
        `a Job` or `an Inference`.
    """
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def json_value(value: Any) -> Any:
    """A plain value as JSON can hold it."""
    # JSON has no infinities, and json.dumps would write them as words that no reader takes.
    if isinstance(value, float):
        return ("inf" if value > 0 else "-inf") if value in INFINITIES else value
    return value if isinstance(value, (str, int)) else rebuild(value, json_value)


def same(left: Any, right: Any) -> bool:
    """Whether two values are the same configuration."""
    # True equals 1 in Python, and 1 equals 1.0; in a configuration they are different values.
    for kind in (list, tuple):
        if isinstance(left, kind) and isinstance(right, kind):
            ours, theirs = cast(list[Any], left), cast(list[Any], right)
            return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(left, dict) and isinstance(right, dict):
        here, there = cast(dict[str, Any], left), cast(dict[str, Any], right)
        return here.keys() == there.keys() and all(same(here[k], there[k]) for k in here)
    if isinstance(left, int | float) and isinstance(right, int | float):
        return type(left) is type(right) and left == right
    return bool(left == right)


def children(value: object) -> Iterable[tuple[Any, Any]]:
    """The items of a list or tuple with their indices, of a mapping with their keys, else none."""
    if isinstance(value, list | tuple):
        return enumerate(cast(Sequence[Any], value))
    return cast(Mapping[Any, Any], value).items() if isinstance(value, Mapping) else ()


def nested(value: object, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """What lists, tuples and mappings inside one another hold, with its path.

    Any other value comes alone, with the path that was given.
    """
    if isinstance(value, Mapping | list | tuple):
        for key, item in children(cast(object, value)):
            yield from nested(item, (*path, key))
    else:
        yield path, value


def rebuild(value: Any, function: Callable[[Any], Any]) -> Any:
    """A list, tuple or mapping with what a function makes of each item, as a plain list or dict.

    Any other value stays as it is.
    """
    if isinstance(value, (list, tuple)):
        return [function(item) for item in cast(Sequence[Any], value)]
    if isinstance(value, Mapping):
        return {key: function(item) for key, item in children(cast(object, value))}
    return value


def listed(value: Any) -> Any:
    """A copy of lists, tuples and mappings inside one another, as plain lists and dicts."""
    return rebuild(value, listed)


def item_at(value: Any, key: object) -> Any:
    """The item of a list, tuple or mapping; MISSING where there is none."""
    if isinstance(value, Mapping):
        return cast(Mapping[object, Any], value).get(key, MISSING)
    if isinstance(value, list | tuple) and isinstance(key, int):
        items = cast(Sequence[Any], value)
        return items[key] if 0 <= key < len(items) else MISSING
    return MISSING


def count_values(value: object, most: int) -> int:
    """Count the values in lists and mappings inside one another, each time that one is met.

    Arguments:
        most: where to stop, since what is repeated inside itself may hold more than can be counted.

    Returns:
        the number, the value itself included; no more than `most` and what lies directly beside.
    """
    found = 1
    waiting = [value]
    while waiting and found <= most:
        items = [item for _, item in children(waiting.pop())]
        found += len(items)
        waiting.extend(items)
    return found


class Missing:
    """The type of `MISSING`, which stands for "no value", since None is a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()
