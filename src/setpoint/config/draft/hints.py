"""Hints for unknown keys and values of the wrong kind: the intended field and its syntax."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, cast

from ..schema.class_info import all_fields, classes_at, field_of, with_subclasses
from ..schema.field import FieldInfo
from ..types.base import EnumType, LiteralType, takes
from ..types.compound import OptionalType, SectionType, section_classes, unwrapped
from ..values.node import Node
from ..values.origin import COMMAND_LINE, ENVIRONMENT, FILE, Origin
from ..words.errors import WRONG_KIND, Invalid
from ..words.names import SHORT, Path, dotted, folded, nearest
from ..words.plain_data import PlainScalar, plain, rebuild
from ..words.text import for_file, for_flag, for_shell, parsed

SECRET_NAME = re.compile(
    r"(?i)password|passwd|secret|credential|webhook"
    r"|(?:api|access|private|auth|bearer|hf|hub|github)[_-]?(?:key|token(?!s|iz))"
)
"""Names under which other systems expect a secret; our fields of that kind refuse plain text."""
STRANGER = 0.9
"""Likeness of names from which a key of an unknown section is taken for a field elsewhere."""


class OtherName(NamedTuple):
    """Entry in a root's table `OTHER_NAMES`, keyed by a name from another system.

    A name of several words joined by dots matches the end of a path or, with a leading dot, a whole
    path; `section.*` matches any key of a section with that name. The longest match wins.

    Arguments:
        fields: the corresponding fields; several if the name is ambiguous.
        answer: a function that converts the value, see `ForeignKey` in
            `setpoint.config.other_names`, or the hint itself.
    """

    fields: tuple[str, ...] = ()
    answer: Callable[[Any], Any] | str = ""


def foreign_table(root: type[Node], table: str = "OTHER_NAMES") -> Mapping[str, Any]:
    """Import the module that the root names as `other_names`, and return its table."""
    module = root.__setpoint__.other_names
    if module is None:
        return {}
    from importlib import import_module

    return getattr(import_module(module), table, {})


def other_name(root: type[Node], path: str, value: object = None) -> OtherName | None:
    """The entry for an unknown key, with only those of its fields that exist in the root.

    For a mapping, only sections with one of its keys match.
    """
    names = foreign_table(root)
    if not names:
        return None
    fields = {path for path, _ in all_fields(root)}
    words = [word for word in folded(path).split(".") if not word.isdecimal()]
    if not words:
        return None  # a number is not a name
    keys = [".".join(words[start:]) for start in range(len(words))]
    if any(field.rpartition(".")[2] == words[-1] for field in fields):
        keys.pop()  # one of the root's field names
    for key in (f".{'.'.join(words)}", *keys, *(f"{word}.*" for word in words[-2::-1])):
        entry = names.get(key)
        if entry is not None:
            known_fields = tuple(
                field
                for field in entry.fields
                if field in fields
                and (not classes_at(root, tuple(field.split("."))) or may_hold(root, field, value))
            )
            if known_fields or not entry.fields:
                return entry._replace(fields=known_fields)
    return None


def other_name_hint(entry: OtherName) -> str:
    """The hint that needs no value: the names of Setpoint's fields, or the entry's sentence."""
    sentence = entry.answer if isinstance(entry.answer, str) else ""
    return sentence or f"Setpoint calls it {' or '.join(entry.fields)}."


def is_foreign_key(root: type[Node], path: str) -> bool:
    """True if other systems have a key that no field matches."""
    return other_name(root, path) is not None


def retired_hint(root: type[Node], path: str, file: str | None = None) -> str:
    """The hint for an unknown key of an older schema; see `migrations.hint_for_key`."""
    if root.__setpoint__.migrations is None:
        return ""
    from ..migrations import hint_for_key

    return hint_for_key(root, path, file)


def is_secret_key(root: type[Node], path: str) -> bool:
    """True if an unknown key may name a secret: misspelled, misplaced, or from another system."""
    entry, key = other_name(root, path), path.rpartition(".")[2]
    if entry is not None and entry.fields:
        fields = (info for field, info in all_fields(root) if field in entry.fields)
        return any(info.type.is_secret() for info in fields)
    if SECRET_NAME.search(key):
        return True
    # `tokn` is a misspelt `token`, a secret; `max_tokens` and `pad_token` count or name tokens.
    if "_" in folded(key) or folded(key) == "tokens":
        return False
    secrets = (info.name for _, info in all_fields(root) if info.type.is_secret())
    return any(nearest(key, [name], 1, 0.75) for name in secrets)


def foreign_keys(root: type[Node], path: Path, value: object) -> list[tuple[Path, object]]:
    """Split a section of another system into keys to report one by one; else the key itself."""
    fallback = [(path, value)]
    if not isinstance(value, Mapping):
        return fallback
    entries = cast(Mapping[str, object], value)
    section = dotted(path)
    similar = [
        name for cls in classes_at(root, path[:-1]) for name in cls.__setpoint__.near(str(path[-1]))
    ]
    if any(may_hold(root, dotted((*path[:-1], name)), entries) for name in similar):
        return fallback  # a misspelt section
    entry = other_name(root, section, entries)
    if (entry is not None and entry.fields) or retired_hint(root, section):
        return fallback
    names = {field.rpartition(".")[2] for field, _ in all_fields(root)}
    if not any(key in names or is_foreign_key(root, f"{section}.{key}") for key in entries):
        return fallback
    inner = (((*path, str(key)), item) for key, item in entries.items())
    return [pair for full, item in inner for pair in foreign_keys(root, full, item)]


def location_hint(
    root: type[Node],
    path: str,
    search: bool = True,
    value: object = None,
    nearest_field: str = "",
) -> str:
    """Return a hint about the path of an unknown key; empty if nothing is close.

    If `value` is a mapping, only sections with one of its keys match; `search` also allows names
    that are only similar; `nearest_field` is the hint to a similar field of the same section.
    """
    retired = retired_hint(root, path)
    if retired:
        return retired
    section, _, last = path.rpartition(".")
    parents = tuple(section.split(".")) if section else ()
    if variants := _variants(root, parents, last):
        return f"{nearest_field} {variants}" if nearest_field else variants
    entry = other_name(root, path, value)
    if entry is not None:
        return other_name_hint(entry)
    word = folded(last)
    off = word.removeprefix("no_")
    infos = (field_of(cls, off) for cls in classes_at(root, parents) if off != word)
    if any(info is not None and isinstance(info.type, OptionalType) for info in infos):
        return f"Set {dotted((*parents, off))} to null."
    is_known = not section or bool(classes_at(root, parents))
    paths = list(dict.fromkeys(path for path, _ in all_fields(root)))
    places = [path for path in paths if path.rpartition(".")[2] == word]
    names = [name for cls in classes_at(root, parents) for name in cls.__setpoint__.near(word)]
    nearby = [f"{section}.{name}" if section else name for name in names[:1]]
    if not places:
        likeness = (STRANGER, STRANGER) if section else (0.8, 0.85)
        places = nearby or (_similar_fields(root, paths, word, *likeness) if search else [])
    elif section:
        if not classes_at(root, parents[:1]):
            # Of several, prefer those in a section of the same name.
            end = f".{section.rpartition('.')[2]}.{word}"
            matches = [path for path in places if f".{path}".endswith(end)]
            places = places if len(places) == 1 else matches
        else:  # deep in another section, the same name means something else
            top = f"{section.partition('.')[0]}."
            others = 2 if is_known or len(places) == 1 else 0
            places = [p for p in places if p.count(".") < others or p.startswith(top)]
        places = [*places, *nearby]
    places = [path for path in dict.fromkeys(places) if may_hold(root, path, value)]
    if not places:
        return ""
    hint = f"Did you mean {' or '.join(places[:3])}?"
    # A name similar to a field of the section's current variant refers to that.
    is_of_some = not all(
        field_of(cls, name) for cls in classes_at(root, parents) for name in names[:1]
    )
    is_other = search and nearby == places and parents and is_of_some
    return f"{hint} {_variants(root, parents, names[0])}" if is_other else hint


def assignment_hint(section: type[Node], name: str, value: object, nearest_field: str) -> str:
    """Return a hint about an unknown field of a section in Python; empty if nothing is close.

    A section does not know its root: the hint is that of an imported root that contains its class
    and knows the names of other systems.

    Arguments:
        nearest_field: the hint to a similar field of the section.
    """
    root, path = section, name
    for other in with_subclasses(Node) if section.__setpoint__.other_names is None else ():
        info = getattr(other, "__setpoint__", None)
        fields = all_fields(other) if info is not None and info.other_names is not None else ()
        places = [place for place, inner in fields if section in section_classes(inner.type)]
        if places:
            root, path = other, f"{places[0]}.{name}"
            break
    return location_hint(root, path, not nearest_field, value, nearest_field) or nearest_field


def _variants(root: type[Node], parents: Path, name: str) -> str:
    """Sentence that names the variants of a section that have a field; empty if there are none."""
    variants = [cls for cls in classes_at(root, parents) if field_of(cls, name)]
    tags = " or ".join(cls.__setpoint__.tag or cls.__name__ for cls in variants)
    return f"It is a field of type = {tags}." if variants else ""


def may_hold(root: type[Node], path: str, value: object) -> bool:
    """True if a value is not a mapping, or the section at a path has one of its keys."""
    if not isinstance(value, Mapping) or not value:
        return True
    keys = [*map(str, cast(Mapping[object, object], value))]
    classes = classes_at(root, tuple(path.split(".")))
    closed = [cls.__setpoint__ for cls in classes if not hasattr(cls, "__setpoint_open__")]
    return any(info.find(key) or (key == "type" and info.tag) for info in closed for key in keys)


def _similar_fields(
    root: type[Node], paths: Sequence[str], word: str, own: float, foreign: float
) -> list[str]:
    """Paths of all fields whose name, here or in other systems, resembles a word.

    Arguments:
        own: the minimum similarity to a name of a field.
        foreign: the minimum similarity to a name of another system.
    """
    import difflib

    if len(word) <= SHORT:
        return []
    own_names: dict[str, list[str]] = {}
    for path in paths:
        own_names.setdefault(path.rpartition(".")[2], []).append(path)
    other_names = {
        name: fields
        for name, entry in foreign_table(root).items()
        if "." not in name and (fields := [path for path in entry.fields if path in paths])
    }
    # Many names invite chance matches, and misspellings rarely change the first letter.
    matches: list[tuple[float, list[str]]] = []
    for names, likeness in ((own_names, own), (other_names, foreign)):
        first = [name for name in names if name[0] == word[0]]
        for name in difflib.get_close_matches(word, first, n=1, cutoff=likeness):
            ratio = difflib.SequenceMatcher(None, word, name).ratio()
            matches.append((ratio, names[name]))
    if matches:
        return max(matches, key=lambda match: match[0])[1]
    if own >= STRANGER:
        return []
    longer = [path for name in own_names if name.startswith(f"{word}_") for path in own_names[name]]
    return longer if len(longer) <= 3 and all(path.count(".") < 2 for path in longer) else []


# Spellings of null in other languages and in prose.
NULL_WORDS = ("none", "nil", "false", "off", "no", "~", "")
SWITCH_WORDS = ("true", "false", "yes", "no", "on", "off")
VALUE_ITSELF = ((), ("type",))  # the error is about the value as a whole


def explained(
    root: type[Node], info: FieldInfo, value: object, error: Invalid, path: Path, origin: Origin
) -> Invalid:
    """The error for a value that a field cannot accept, with the intended value if known."""
    if len(error.parts) > 1 or error.secret or error.kind != WRONG_KIND:
        return error
    message, place, hint = error.message, error.at, error.hint
    if (value is None or value == "null") and place in (*VALUE_ITSELF, (0,)):
        message, place = "cannot be null", ()
    if place not in VALUE_ITSELF or not isinstance(value, str | int | float | None):
        return error
    word = "null" if value is None else str(value).lower().removeprefix("torch.")
    kind = unwrapped(info.type)
    if isinstance(kind, SectionType) and kind is not info.type and word in SWITCH_WORDS:
        hint = switches(kind, path, origin)
    elif isinstance(info.type, OptionalType) and word in NULL_WORDS:
        hint = "Write null for no value."
    elif isinstance(kind, SectionType) and not kind.variants() and word != "null":
        hint = _inner_field_hint(kind, word, path) or hint
    elif isinstance(value, PlainScalar) and origin.layer == COMMAND_LINE:
        hint = _sweep_hint(root, info, value, path) or hint
    return error.but(message=message, at=place, hint=hint)


def switches(kind: SectionType, path: Path, origin: Origin) -> str:
    """Return a hint about switching an optional section on and off."""
    cls, name = kind.only(), dotted(path)
    off = f"off with {written({name: None}, origin)}."
    if cls is None:
        tag = next(iter(kind.variants()))
        return f"Enable it by choosing a type, as in {written({name: tag}, origin)}; {off}"
    required = [info.name for info in cls.__setpoint__.fields.values() if info.required]
    if required:
        return f"Enable it by setting {dotted((*path, required[0]))}; {off}"
    return f"Enable it with its defaults: {written({name: {}}, origin)}; {off}"


def _inner_field_hint(kind: SectionType, word: str, path: Path) -> str:
    """Suggest the field for a value that was given to its section."""
    cls = kind.only()
    fields = list(cls.__setpoint__.fields.values()) if cls else []
    for info in fields:
        is_choice = isinstance(unwrapped(info.type), LiteralType | EnumType)
        if takes(info, PlainScalar(word)) if is_choice else info.default == word:
            return f"Did you mean {dotted((*path, info.name))}={word}?"
    required = [info for info in fields if info.required]
    if len(required) == 1 and takes(required[0], PlainScalar(word)):
        return f"Did you mean {dotted((*path, required[0].name))}={word}?"
    return f"Did you mean {dotted((*path, fields[0].name))}?" if len(fields) == 1 else ""


def _sweep_hint(root: type[Node], info: FieldInfo, text: PlainScalar, path: Path) -> str:
    """Return a hint about trying several values of a field; empty if the text is not a list."""
    values = parsed(text)
    items = cast(list[object], values) if isinstance(values, list) else []
    if len(items) < 2 or not all(takes(info, item) for item in items):
        return ""
    flag = f"--{dotted(path)} {for_shell(','.join(map(for_flag, items)))}"
    command = root.__setpoint__.command("sweep")
    return f"Several values make the points of a sweep: {flag}, with {command}."


def written(values: Mapping[str, object], origin: Origin) -> str:
    """Format values in the syntax of the layer that contains an unknown key."""
    values = {path: _rounded(value) for path, value in values.items()}
    if origin.layer == FILE:
        # A file cannot have a section both as a text and as a table.
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
            prefix, separator, _ = origin.label.partition("__")  # the prefix of this program's root
            name = f"{prefix if separator else 'SETPOINT'}__{path.upper().replace('.', '__')}"
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
    """Round a converted value to ten digits, to remove conversion errors."""
    if not isinstance(value, float):
        return rebuild(value, _rounded)
    short = float(f"{value:.10g}")
    return int(short) if short.is_integer() and abs(short) < 1e6 else short
