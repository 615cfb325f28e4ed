"""What is said about a value that is written as other systems write it."""

from __future__ import annotations

from .errors import Invalid
from .field import MISSING, FieldInfo
from .files.plain import PlainScalar
from .items import unwrapped
from .origin import PROGRAM, Origin, Path
from .types.containers import OptionalType
from .types.scalars import EnumType, LiteralType
from .types.sections import SectionType
from .walk import dotted

# How other languages, and people, write that there is nothing.
NOTHING = ("none", "nil", "false", "off", "no", "~", "")
WRONG_KIND = "is not"  # how the errors of types begin; those of ranges say something else
SWITCHED = ("true", "false", "yes", "no", "on", "off")
HERE = ((), ("type",))  # where an error is about the value as a whole


def explained(
    info: FieldInfo, value: object, error: Invalid, path: Path, origin: Origin
) -> Invalid:
    """The error for a value that a field cannot take, with what was meant where that is known.

    Arguments:
        info: the field.
        value: the value as it came.
        error: what is wrong with it.
        path: the field's path.
        origin: where the value comes from.

    Returns:
        the same error, or one with a better hint.
    """
    if len(error.parts) > 1 or error.secret or not error.message.startswith(WRONG_KIND):
        return error
    message, at, hint = error.message, error.at, error.hint
    if (value is None or value == "null") and at in (*HERE, (0,)):
        message, at = "cannot be null", ()
    if at not in HERE or not isinstance(value, str | int | float | None):
        return error
    word = "null" if value is None else str(value).lower().removeprefix("torch.")
    ours = value_here(info, word)
    kind = unwrapped(info.type)
    if ours:
        hint = f"Here it is called {ours}."
    elif isinstance(kind, SectionType) and kind is not info.type and word in SWITCHED:
        hint = _switches(kind, path, origin)
    elif isinstance(info.type, OptionalType) and word in NOTHING:
        hint = "Write null for none."
    elif isinstance(kind, SectionType) and not kind.variants() and word != "null":
        hint = _inside(kind, word, path) or hint
    return Invalid(message, error.valid, at, hint)


def value_here(info: FieldInfo, word: str) -> str:
    """What a value is called here that other systems call by another name.

    Arguments:
        info: the field.
        word: in small letters.

    Returns:
        the value as it is typed; the empty text where nothing is known.
    """
    return next((ours for ours, names in info.values_also_called.items() if word in names), "")


def _switches(kind: SectionType, path: Path, origin: Origin) -> str:
    """How a section that may be null is switched on and off."""
    from .other_names import written

    cls, name = kind.only(), dotted(path)
    off = f"off with {written({name: None}, origin)}."
    if cls is None:
        tag = next(iter(kind.variants()))
        return f"Switch it on by one of its types, as in {written({name: tag}, origin)}; {off}"
    required = [info.name for info in cls.__setpoint__.fields.values() if info.required]
    if required:
        return f"Switch it on by giving {dotted((*path, required[0]))}; {off}"
    return f"Switch it on, with its defaults, with {written({name: {}}, origin)}; {off}"


def _inside(kind: SectionType, word: str, path: Path) -> str:
    """The field of a section that takes a value which was given to the section itself."""
    cls = kind.only()
    fields = list(cls.__setpoint__.fields.values()) if cls else []
    for info in fields:
        ours = value_here(info, word)
        if not ours and isinstance(unwrapped(info.type), LiteralType | EnumType):
            ours = word if _takes(info, word) else ""
        if ours:
            return f"Did you mean {dotted((*path, info.name))}={ours}?"
    required = [info for info in fields if info.required]
    if len(required) == 1 and _takes(required[0], word):
        return f"Did you mean {dotted((*path, required[0].name))}={word}?"
    return f"Did you mean {dotted((*path, fields[0].name))}?" if len(fields) == 1 else ""


def _takes(info: FieldInfo, word: str) -> bool:
    try:
        return info.read(PlainScalar(word), Origin(PROGRAM)) is not MISSING
    except Invalid:
        return False
