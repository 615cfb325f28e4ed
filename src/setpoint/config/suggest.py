"""The nearest valid name, also when the key belongs in another section."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from .errors import Invalid

if TYPE_CHECKING:
    from .base import Config
    from .field import FieldInfo
    from .types.base import FieldType

PLAIN = ("int", "float", "bool", "str", "Path")  # annotations that hold no sections
NAME = 60  # a longer name than this is shortened in errors


def nearest(
    name: str, candidates: Iterable[str], count: int = 3, likeness: float = 0.6
) -> list[str]:
    """Names that somebody who typed `name` may have meant.

    Arguments:
        name: what was typed.
        candidates: the valid names.
        count: how many to return at most.
        likeness: how alike two names must be, between 0 and 1 (difflib's ratio); more where the
            candidates are many and a chance likeness would mislead.

    Returns:
        close names, best first.
    """
    import difflib

    word = name.lower().replace("-", "_")
    options = list(dict.fromkeys(candidates))
    close = difflib.get_close_matches(word, options, n=count, cutoff=likeness)
    # A part of the name as typed, or whole words of it: `data` is not meant by `dataloader`.
    words = f"_{word.replace('.', '_')}_"
    inside = [
        option
        for option in options
        if len(word) > 2
        and (word in option or (len(option) > 2 and f"_{option.replace('.', '_')}_" in words))
    ]
    return list(dict.fromkeys([*close, *inside]))[:count]


def did_you_mean(name: str, candidates: Iterable[str], before: str = "") -> str:
    """A sentence that asks whether the nearest of the valid names was meant.

    Arguments:
        name: what was typed.
        candidates: the valid names.
        before: what stands before the sentence, such as the space after another one.

    Returns:
        for instance `Did you mean lr?`; the empty text, without `before`, where nothing is close.
    """
    close = nearest(name, candidates, 1)
    return f"{before}Did you mean {close[0]}?" if close else ""


def section_classes(kind: FieldType) -> list[type[Config]]:
    """The config classes that can stand in a field, through options, lists and mappings.

    Arguments:
        kind: the field's type.

    Returns:
        the classes, or nothing for plain values.
    """
    from .types.sections import SectionType

    if isinstance(kind, SectionType):
        only = kind.only()
        return [only] if only else list(kind.variants().values())
    found = [cls for inner in kind.parts() for cls in section_classes(inner)]
    return list(dict.fromkeys(found))


def classes_at(root: type[Config], path: tuple[str | int, ...]) -> list[type[Config]]:
    """The config classes that can stand at a path, in any of the variants along it.

    Arguments:
        root: the root class.
        path: names, keys and indices, as written.

    Returns:
        the classes, or nothing where no section can stand.
    """
    classes = [root]
    item = False  # whether the next part is an index or a key, which leads to the same classes
    for part in path:
        if item:
            item = False
            continue
        fields = [info for cls in classes if (info := field_of(cls, str(part))) is not None]
        classes = [cls for info in fields for cls in section_classes(info.type)]
        item = any(info.type.is_container() for info in fields)
    return list(dict.fromkeys(classes))


def field_of(cls: type[Config], key: str) -> FieldInfo | None:
    """The field that a key names; hyphens and underscores are the same.

    Arguments:
        cls: the section's class.
        key: the key as written.

    Returns:
        the field, or None.
    """
    fields = cls.__setpoint__.fields
    return fields.get(key) or fields.get(key.replace("-", "_"))


def settable(cls: type[Config], key: str) -> FieldInfo | None:
    """The field that a key sets; a foreign component takes keys that its class does not declare.

    Arguments:
        cls: the section's class.
        key: the key as written.

    Returns:
        the field, or None.

    Raises:
        Invalid: if the key cannot be the name of an argument.
    """
    found = field_of(cls, key)
    opened = getattr(cls, "__setpoint_open__", None)
    return opened(key) if found is None and opened is not None else found


def schema(
    cls: type[Config], prefix: str = "", above: tuple[type[Config], ...] = ()
) -> Iterator[tuple[str, FieldInfo]]:
    """Every field of a tree of config classes, those of all variants included.

    Arguments:
        cls: the root.
        prefix: put before each path.
        above: the classes that lead to the root; a class that contains itself is entered once.

    Returns:
        pairs of dotted path and field.
    """
    for name, info in cls.__setpoint__.fields.items():
        path = f"{prefix}{name}"
        yield path, info
        if info.annotation in PLAIN and info.factory is None:
            continue
        for section in section_classes(info.type):
            if section not in above:
                yield from schema(section, f"{path}.", (*above, section))


def unknown_key(cls: type[Config], key: str) -> Invalid:
    """The error for a key that a section does not have.

    Arguments:
        cls: the section's class.
        key: the key.

    Returns:
        the error, with the section's keys and the nearest of them.
    """
    names = list(cls.__setpoint__.fields)
    close = nearest(key, names, 1)
    hint = former_in(cls, key) or (f"Did you mean {close[0]}?" if close else "")
    tag = cls.__setpoint__.tag
    title = f"{cls.__name__} (type = {tag})" if tag else cls.__name__
    # What was written under a misspelt key may be the secret that the right key refers to.
    secret = bool(close) and cls.__setpoint__.fields[close[0]].type.is_secret()
    word = key if len(key) <= NAME else f"{key[:NAME]}..."
    message = f"unknown key: {title} has no field {word!r}"
    return Invalid(message, tuple(sorted(names)), hint=hint, secret=secret)


def place_of(root: type[Config], key: str, path: str) -> str:
    """A sentence that says where a misplaced or misspelt key belongs in the whole tree.

    Arguments:
        root: the root class.
        key: the last word of the unknown path.
        path: the unknown path.

    Returns:
        the sentence, or the empty string where nothing is close.
    """
    gone = former(root, path)
    if gone:
        return gone
    section, _, last = path.rpartition(".")
    parents = tuple(section.split(".")) if section else ()
    here = [cls for cls in classes_at(root, parents) if field_of(cls, last)]
    if here:
        tags = " or ".join(cls.__setpoint__.tag or cls.__name__ for cls in here)
        return f"It is a field of type = {tags}."
    word = key.lower().replace("-", "_")
    paths = list(dict.fromkeys(path for path, _ in schema(root)))
    exact = [p for p in paths if p.rpartition(".")[2] == word]
    if not exact:
        foreign = name_here(root, key)
        if foreign:
            return foreign
        beside = [name for cls in classes_at(root, parents) for name in cls.__setpoint__.fields]
        close = nearest(word, beside, 1)
        if close:
            return f"Did you mean {section + '.' if section else ''}{close[0]}?"
        everywhere = nearest(word, [p.rpartition(".")[2] for p in paths], 1, likeness=0.8)
        exact = [p for p in paths if everywhere and p.rpartition(".")[2] == everywhere[0]]
    if not exact:
        exact = _called_nearly(root, word)
    return f"Did you mean {' or '.join(exact[:3])}?" if exact else ""


def _first_places(root: type[Config]) -> dict[FieldInfo, str]:
    """The path of each field; of a section that stands in several places the first is meant."""
    first: dict[FieldInfo, str] = {}
    for path, info in schema(root):
        first.setdefault(info, path)
    return first


def _called_nearly(root: type[Config], word: str) -> list[str]:
    """The fields that other systems call nearly so: a misspelt name of somebody else's."""
    import difflib

    every = list(schema(root))
    names = [name for _, info in every for name in info.also_called]
    # Many names invite chance likenesses.
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.85)
    return list(
        dict.fromkeys(path for path, info in every if close and close[0] in info.also_called)
    )


def former(root: type[Config], path: str, file: str | None = None) -> str:
    """What became of a key that older schemas of a root had.

    Arguments:
        root: the root class.
        path: the unknown path.
        file: the file that holds it; None for flags, variables and Python.

    Returns:
        a sentence that says what to do, or the empty string.
    """
    if root.__setpoint__.migrations is None:
        return ""
    from .migrate.tombstone import tombstone

    return tombstone(root, path, file)


def former_in(cls: type[Config], key: str) -> str:
    """What became of a key that older schemas had in a section; see `former`.

    Arguments:
        cls: the section's class.
        key: the unknown key.

    Returns:
        a sentence, or the empty string.
    """
    from .meta import versioned

    if not versioned:
        return ""
    from .migrate.tombstone import tombstone_in

    return tombstone_in(cls, key)


def name_here(root: type[Config], key: str) -> str:
    """A sentence that says what a field is called here that other systems call by another name.

    Arguments:
        root: the root class.
        key: the last word of the unknown path.

    Returns:
        the sentence; the empty string where no field is `also_called` that, or one has that name.
    """
    word = key.lower().replace("-", "_")
    every = list(schema(root))
    if any(info.name == word for _, info in every):
        return ""
    places = _first_places(root).items()
    paths = list(dict.fromkeys(path for info, path in places if word in info.also_called))
    return f"Here it is called {' or '.join(paths)}." if paths else ""


def names_secret(root: type[Config], key: str) -> bool:
    """Whether an unknown key may be the misspelt or misplaced name of a secret.

    Arguments:
        root: the root class.
        key: the key.

    Returns:
        True if a field of that or a similar name, anywhere in the tree, holds a secret.
    """
    return any(info.type.is_secret() and nearest(key, [info.name]) for _, info in schema(root))


def holds_secret(kind: FieldType) -> bool:
    """Whether values of a type may hold a secret, also in a section inside.

    Arguments:
        kind: the type.

    Returns:
        True if what was given must not be repeated when it cannot be read at all.
    """
    inside = (info for cls in section_classes(kind) for _, info in schema(cls))
    return kind.is_secret() or any(info.type.is_secret() for info in inside)
