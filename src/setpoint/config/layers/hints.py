"""Hints about values: other systems' spellings, how to write them in a layer, overrides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

from ..draft.walk import leaves
from ..schema.field import FieldInfo
from ..types.containers import OptionalType, unwrapped
from ..types.scalars import EnumType, LiteralType
from ..types.sections import SectionType
from ..values.node import Node
from ..values.origin import (
    COMMAND_LINE,
    DERIVED,
    ENVIRONMENT,
    FILE,
    MODIFIER,
    PROGRAM,
    REFERENCE,
    Origin,
    Recorded,
)
from ..words.errors import Invalid
from ..words.names import Path, dotted
from ..words.plain_data import MISSING, PlainScalar, plain, rebuild
from ..words.text import for_error, for_file, for_shell

# How other languages, and people, write that there is nothing.
NULL_WORDS = ("none", "nil", "false", "off", "no", "~", "")
WRONG_KIND = "is not"  # how the errors of types begin; those of ranges say something else
SWITCH_WORDS = ("true", "false", "yes", "no", "on", "off")
VALUE_ITSELF = ((), ("type",))  # where an error is about the value as a whole


def explained(
    info: FieldInfo, value: object, error: Invalid, path: Path, origin: Origin
) -> Invalid:
    """The error for a value that a field cannot take, with what was meant where that is known."""
    if len(error.parts) > 1 or error.secret or not error.message.startswith(WRONG_KIND):
        return error
    message, at, hint = error.message, error.at, error.hint
    if (value is None or value == "null") and at in (*VALUE_ITSELF, (0,)):
        message, at = "cannot be null", ()
    if at not in VALUE_ITSELF or not isinstance(value, str | int | float | None):
        return error
    word = "null" if value is None else str(value).lower().removeprefix("torch.")
    kind = unwrapped(info.type)
    if isinstance(kind, SectionType) and kind is not info.type and word in SWITCH_WORDS:
        hint = switches(kind, path, origin)
    elif isinstance(info.type, OptionalType) and word in NULL_WORDS:
        hint = "Write null for no value."
    elif isinstance(kind, SectionType) and not kind.variants() and word != "null":
        hint = _inside(kind, word, path) or hint
    return Invalid(message, error.valid, at, hint)


def switches(kind: SectionType, path: Path, origin: Origin) -> str:
    """The hint how to switch a section that may be null on and off."""
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
        is_choice = isinstance(unwrapped(info.type), LiteralType | EnumType)
        if _takes(info, word) if is_choice else info.default == word:
            return f"Did you mean {dotted((*path, info.name))}={word}?"
    required = [info for info in fields if info.required]
    if len(required) == 1 and _takes(required[0], word):
        return f"Did you mean {dotted((*path, required[0].name))}={word}?"
    return f"Did you mean {dotted((*path, fields[0].name))}?" if len(fields) == 1 else ""


def _takes(info: FieldInfo, word: str) -> bool:
    try:
        return info.read(PlainScalar(word), Origin(PROGRAM)) is not MISSING
    except Invalid:
        return False


def written(values: Mapping[str, object], origin: Origin) -> str:
    """Values as they are written in the layer that an unknown key came from."""
    values = {path: _rounded(value) for path, value in values.items()}
    if origin.layer == FILE:
        # A file cannot have a section as a text and as a table as well.
        values = {
            f"{path}.type" if any(other.startswith(f"{path}.") for other in values) else path: value
            for path, value in values.items()
        }
        parts = [_in_file(path, value, origin.label) for path, value in values.items()]
        return "; ".join(parts)
    parts: list[str] = []
    for path, value in values.items():
        if origin.layer == COMMAND_LINE:
            parts.append(f"--{path} {for_shell(value)}")
        elif origin.layer == ENVIRONMENT:
            prefix, mark, _ = origin.label.partition("__")  # that of the root of this program
            name = f"{prefix if mark else 'SETPOINT'}__{path.upper().replace('.', '__')}"
            parts.append(f"{name}={for_shell(value)}")
        else:
            parts.append(f"{path} = {for_file(value)}")
    return " ".join(parts) if origin.layer in (COMMAND_LINE, ENVIRONMENT) else "; ".join(parts)


def _in_file(path: str, value: object, name: str) -> str:
    if name.endswith(".toml"):
        section, _, key = path.rpartition(".")
        text = '"null"' if value is None else for_file(value, " = ")
        return f"{key} = {text}" + (f" under [{section}]" if section else "")
    key, *inner = path.split(".")
    if name.endswith(".json"):
        import json

        value = reduce(lambda item, part: {part: item}, reversed(inner), plain(value))
        return f'"{key}": {json.dumps(value, ensure_ascii=False)}'
    text = reduce(lambda item, part: f"{{{part}: {item}}}", reversed(inner), for_file(value))
    return f"{key}: {text}"


def _rounded(value: object) -> object:
    """A converted value without the digits that converting it has made up."""
    if not isinstance(value, float):
        return rebuild(value, _rounded)
    short = float(f"{value:.10g}")
    return int(short) if short.is_integer() and abs(short) < 1e6 else short


def overridden(config: Node) -> Iterator[str]:
    """The values of modifiers that a later layer replaced."""
    for leaf in leaves(config):
        by_modifier = [
            (origin, value)
            for origin, value in leaf.chain[:-1]
            if origin.layer == MODIFIER and not isinstance(origin, Recorded)
        ]
        if not by_modifier:
            continue
        origin, value = by_modifier[-1]
        winner, last = leaf.chain[-1]
        itself = winner.layer == MODIFIER and winner.label == origin.label
        if itself or winner.layer in (DERIVED, REFERENCE) or last == value:
            continue
        yield (
            f"{leaf.key} = {_shown(value)} of --with {origin.label}, "
            f"by {winner.describe(leaf.path)}"
        )


def _shown(value: object) -> str:
    if isinstance(value, Node):
        return type(value).__setpoint__.tag or "a section"
    return for_error(value)
