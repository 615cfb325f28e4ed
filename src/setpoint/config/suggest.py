"""The nearest valid name, also when the key belongs in another section."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import Invalid

if TYPE_CHECKING:
    from .base import Config
    from .field import FieldInfo
    from .types.base import FieldType

PLAIN = ("int", "float", "bool", "str", "Path")  # annotations that hold no sections
SHORT = 2  # letters of a name that is taken as it is
LONG = 6  # letters from which on one wrong letter leaves much alike
PREFIX = 4  # letters that may stand for a longer word
NAME = 60  # a longer name than this is shortened in errors
FORGOTTEN = "One of your own is known once its module is imported: --import MODULE"


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

    word = _folded(name)
    options = {_folded(option): option for option in reversed(list(candidates))}
    close = difflib.get_close_matches(word, [*options][::-1], n=count, cutoff=likeness)
    # A part of the name as typed, or whole words of it: `data` is not meant by `dataloader`.
    inside = [each for each in [*options][::-1] if _is_part(word, each)]
    return [options[each] for each in dict.fromkeys([*close, *inside])][:count]


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")


def _words(name: str) -> str:
    return "_" + name.replace(".", "_").replace("/", "_") + "_"


def _is_part(word: str, option: str) -> bool:
    """Whether one name is made of whole words of the other, or of the beginning of one."""
    inside, whole = _words(word), _words(option)
    if not word:
        return False
    begins = inside[:-1] if len(word) >= PREFIX else inside
    return begins in whole or (len(option) > SHORT and whole in inside)


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
    if not kind.nested:
        return []
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


def near_key(key: str, cls: type[Config]) -> list[str]:
    """The field of a section whose name is nearest to a key.

    Arguments:
        key: what was typed.
        cls: the section's class.

    Returns:
        one name, or nothing where none is close: `training` is not `tracking`.
    """
    likeness = 0.7 if len(key) < LONG else 0.78
    return nearest(key, cls.__setpoint__.fields, 1, likeness)


def unknown_key(cls: type[Config], key: str) -> Invalid:
    """The error for a key that a section does not have.

    Arguments:
        cls: the section's class.
        key: the key.

    Returns:
        the error, with the section's keys and the nearest of them.
    """
    names = list(cls.__setpoint__.fields)
    close = near_key(key, cls)
    hint = former_in(cls, key) or (f"Did you mean {close[0]}?" if close else "")
    tag = cls.__setpoint__.tag
    title = f"{cls.__name__} (type = {tag})" if tag else cls.__name__
    # What was written under a misspelt key may be the secret that the right key refers to.
    secret = bool(close) and cls.__setpoint__.fields[close[0]].type.is_secret()
    word = key if len(key) <= NAME else f"{key[:NAME]}..."
    message = f"unknown key: {title} has no field {word!r}"
    return Invalid(message, tuple(sorted(names)), hint=hint, secret=secret)


def place_of(root: type[Config], key: str, path: str, loose: bool = True) -> str:
    """A sentence that says where a misplaced or misspelt key belongs in the whole tree.

    Arguments:
        root: the root class.
        key: the last word of the unknown path.
        path: the unknown path.
        loose: whether names anywhere that are only alike count.

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
    word = _folded(key)
    every = list(dict.fromkeys(path for path, _ in schema(root)))
    places = [each for each in every if each.rpartition(".")[2] == word]
    foreign = "" if places else name_here(root, key)
    if foreign:
        return foreign
    beside = [name for cls in classes_at(root, parents) for name in near_key(word, cls)]
    close = [f"{section}.{name}" if section else name for name in beside[:1]]
    if not places:
        places = close or (_alike(root, every, word) if loose else [])
    elif section:
        places = [*places, *close]
    places = list(dict.fromkeys(places))
    return f"Did you mean {' or '.join(places[:3])}?" if places else ""


def _alike(root: type[Config], paths: Sequence[str], word: str) -> list[str]:
    """The fields anywhere whose name, or name in other systems, is nearly a word."""
    import difflib

    if len(word) <= SHORT:
        return []
    ours: dict[str, list[str]] = {}
    for path in paths:
        ours.setdefault(path.rpartition(".")[2], []).append(path)
    theirs: dict[str, list[str]] = {}
    for path, info in schema(root):
        for name in info.also_called:
            theirs.setdefault(name, []).append(path)
    # Many names invite chance likenesses; who misspells a name seldom does so in its first letter.
    found: list[tuple[float, list[str]]] = []
    for names, likeness in ((ours, 0.8), (theirs, 0.85)):
        first = [name for name in names if name[0] == word[0]]
        for name in difflib.get_close_matches(word, first, n=1, cutoff=likeness):
            ratio = difflib.SequenceMatcher(None, word, name).ratio()
            found.append((ratio, list(dict.fromkeys(names[name]))))
    if found:
        return max(found, key=lambda each: each[0])[1]
    begin = [path for name in ours if name.startswith(f"{word}_") for path in ours[name]]
    return begin if len(begin) <= 3 else []


def first_places(root: type[Config]) -> dict[FieldInfo, str]:
    """The path of each field; of a section that stands in several places the first is meant.

    Arguments:
        root: the root class.

    Returns:
        paths by field.
    """
    first: dict[FieldInfo, str] = {}
    for path, info in schema(root):
        first.setdefault(info, path)
    return first


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
    word = _folded(key)
    every = list(schema(root))
    if any(info.name == word for _, info in every):
        return ""
    places = first_places(root).items()
    paths = list(dict.fromkeys(path for info, path in places if word in info.also_called))
    return f"Here it is called {' or '.join(paths)}." if paths else ""


def foreign_table(root: type[Config]) -> Mapping[str, Any]:
    """What the root declares of names of other systems; see `other_names`.

    Arguments:
        root: the root class.

    Returns:
        sentences and converters by name; empty where the root names no module of them.
    """
    module = root.__setpoint__.other_names
    if module is None:
        return {}
    from importlib import import_module

    return import_module(module).OTHER_NAMES


def foreign_values(root: type[Config]) -> Mapping[str, Any]:
    """What the root declares of values that a place cannot take; see `other_names`.

    Arguments:
        root: the root class.

    Returns:
        sentences and converters by path, with `*` for indices.
    """
    module = root.__setpoint__.other_names
    if module is None:
        return {}
    from importlib import import_module

    return getattr(import_module(module), "OTHER_VALUES", {})


def known_elsewhere(root: type[Config], key: str) -> bool:
    """Whether other systems have a key, so that it is answered as theirs.

    Arguments:
        root: the root class.
        key: the last word of a path.

    Returns:
        True if a field is `also_called` that, or the root's table has it.
    """
    return _folded(key) in foreign_table(root) or bool(name_here(root, key))


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
