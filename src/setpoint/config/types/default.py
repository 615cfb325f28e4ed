"""Defaults as fields store them: read by the field's type, once, like a value that is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ..errors import DeclarationError, Invalid
from ..field import MISSING

if TYPE_CHECKING:
    from ..field import FieldInfo

# The annotations whose values need no reading if they are of exactly this type.
EXACT: dict[object, type] = {
    **{kind.__name__: kind for kind in (int, float, bool, str)},
    **{kind: kind for kind in (int, float, bool, str)},
}
NULL = " | None"
OPTIONAL: dict[object, type] = {
    f"{kind}{NULL}": EXACT[kind] for kind in ("int", "float", "bool", "str")
}
# What begins a message that has the value for its subject.
VERBS = ("is", "has", "holds", "needs", "cannot", "would", "takes")


def stored_default(default: Any, where: str) -> Any:
    """A default as its field would have read it.

    Arguments:
        default: as written in the class: a function stands for its import path, and the flags of a
            regular expression become part of its text.
        where: the class and the field, for errors.

    Returns:
        the default, which most are already.

    Raises:
        TypeError: if no import path leads to the function.
    """
    cls = cast(Any, type(default))
    pattern = cls.__module__ == "re" and cls.__name__ == "Pattern"
    if not pattern and (not callable(default) or hasattr(cls, "__setpoint_scalar__")):
        return default
    from ..import_path import ImportPath
    from ..origin import DEFAULT, Origin
    from .pattern import PatternType

    try:
        return PatternType().read(default, Origin(DEFAULT)) if pattern else ImportPath(default)
    except Invalid as error:
        raise DeclarationError(f"{where}: the default {error.message}") from None


def is_settled(info: FieldInfo) -> bool:
    """Whether a default is what the field would read, as far as that is plain to see.

    Most are, and their types then need not be worked out before somebody sets the field.

    Arguments:
        info: the field, with its annotation as written.

    Returns:
        False where the type has to be asked.
    """
    default, annotation, bounds = cast(Any, info.written), info.annotation, info.bounds
    cls: Any = default.__class__
    if info.item_bounds is not None or info.before is not MISSING:
        return False
    kind = None
    if annotation.__class__ is str:
        kind = EXACT.get(annotation) or OPTIONAL.get(annotation)
        if kind is None:
            return bounds is None and _is_named(cast(str, annotation), default, cls)
    elif annotation.__class__ is type:
        kind = EXACT.get(annotation)
    if kind is not cls:
        # Null, where the annotation names it; without a pattern, which nobody would look at.
        return default is None and bounds is None and f"{annotation}" in OPTIONAL
    if cls is str:
        return bounds is None and default.isidentifier() and default != "null"
    if cls is int and not -(2**63) <= default < 2**64:
        return False
    if cls is float and not (default > 0 or default < 0 or str(default) == "0.0"):
        return False
    if bounds is None:
        return True
    try:
        bounds.check(default)
    except Invalid:
        return False
    return cls is not bool and bounds.pattern is None


def _is_named(annotation: str, default: Any, cls: Any) -> bool:
    """Whether a default is a word of a `Literal`, or of a class that reads its own values."""
    if annotation.startswith("Literal[") and cls is str and default.isidentifier():
        alone = annotation.count("[") == 1 and annotation.endswith("]")
        return alone and (f"'{default}'" in annotation or f'"{default}"' in annotation)
    return hasattr(cls, "__setpoint_scalar__") and annotation in (cls.__name__, cls.__name__ + NULL)


def settle(info: FieldInfo) -> None:
    """Read the default of a field that all instances share.

    Arguments:
        info: the field; its default becomes what the type makes of it.

    Raises:
        DeclarationError: if the field cannot take it.
    """
    from ..meta import is_mutable

    value = read_default(info, info.written)
    if is_mutable(value):
        raise DeclarationError(
            f"{info.full_name}: the default is read as {info.type.describe()}, which would be "
            f"shared by all configs; write field(factory=...)"
        )
    info.written = value
    info.settled = True


def made(info: FieldInfo, value: object) -> Any:
    """Read what a factory has made.

    Arguments:
        info: the field.
        value: what its factory returned.

    Returns:
        the value as the field stores it.

    Raises:
        DeclarationError: if the field cannot take it.
    """
    result = read_default(info, value)
    info.settled = True
    return result


def read_default(info: FieldInfo, value: object) -> Any:
    """Read a default like a value that is set.

    Arguments:
        info: the field.
        value: its default, or what its factory made.

    Returns:
        the value as the field stores it.

    Raises:
        DeclarationError: if the field cannot take it.
    """
    from ..origin import DEFAULT, Origin
    from ..reference import may_refer
    from .base import shown_part

    if may_refer(value) and not info.type.is_secret():
        raise DeclarationError(
            f"{info.full_name}: a reference cannot be a default: it names fields by their path "
            f"from the root, which the class does not know. Declare the field as derived() and "
            f"compute it in a method marked @derive({info.name!r})"
        )
    try:
        return info.read(value, Origin(DEFAULT))
    except Invalid as error:
        what = "what the factory makes" if info.factory is not None else "the default"
        lines: list[str] = []
        for part in error.parts:
            place = "".join(f".{key}" for key in part.at)
            given = "" if part.secret or "got " in part.message else f" {shown_part(value, part)}"
            if part.message.partition(" ")[0] not in VERBS:
                given = ":"  # a sentence of its own
            text = f"{info.full_name}{place}: {what}{given} {part.message}"
            text += f"; valid: {', '.join(part.valid)}" if part.valid else ""
            if value is None:
                text += "; to allow it, write ... | None"
            lines.append(f"{text}. {part.hint}" if part.hint else text)
        raise DeclarationError("\n".join(lines)) from None
