"""Reading YAML 1.2: `ruamel.yaml` provides syntax events, from which values are made here.

The library constructs no objects. Events arrive one by one, so that each limit applies before
memory is allocated, and nothing recurses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..values.scalar import Struct
from ..words.plain_data import (
    HALF_PAIR,
    MAX_DEPTH,
    TOO_DEEP,
    PlainScalar,
    children,
    is_text,
    listed,
)
from .file_document import (
    FileDocument,
    FileError,
    FilePosition,
    error_at,
    is_mapping,
    named,
    twice,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_COPIED = 100_000  # values repeated by aliases
_NULLS = ("", "~", "null", "Null", "NULL")


def parse_yaml(text: str, name: str) -> FileDocument:
    """Read YAML 1.2; tags, merge keys, duplicate keys and several documents are refused.

    Unquoted scalars become `PlainScalar`, except nulls; no other value is guessed.

    Returns:
        the document; empty text yields an empty mapping. Values inside an alias have the positions
        of its anchor.

    Raises:
        FileError: the text is not YAML, or exceeds a limit.
    """
    builder = _Builder(text, name)
    for event in events(text, name):
        builder.take(event)
    data = builder.finish()
    return FileDocument(name, "yaml", data, text, lambda: builder.places)


class _Frame(Struct):
    """A mapping or list that is not closed yet."""

    value: dict[str, object] | list[object]
    place: FilePosition
    anchor: str | None
    key: tuple[str, int] | None = None  # in a mapping: the key that waits for its value


class _Builder:
    def __init__(self, text: str, name: str) -> None:
        self.places = FilePosition(0)
        self._text = text
        self._name = name
        self._root: object = {}
        self._documents = 0
        self._copied = 0  # keys and values that aliases repeat
        self._open: list[_Frame] = []
        self._anchors: dict[str, tuple[object, FilePosition]] = {}

    def finish(self) -> dict[str, object]:
        if is_mapping(self._root):
            return self._root
        message = "expected 'key: value': the top level is a mapping of keys to values"
        raise self._error(self.places.offset, message)

    def _error(self, offset: int, message: str, advice: str = "") -> FileError:
        return error_at(self._name, self._text, offset, message, advice)

    def take(self, event: Event) -> None:
        kind = type(event).__name__
        if kind == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                message = "expected the end of the file; one file is one document"
                raise self._error(event.start_mark.index, message)
            lines = self._text[: event.start_mark.index].splitlines()
            if any(line[:1] == "%" and line.split()[:2] != ["%YAML", "1.2"] for line in lines):
                raise self._error(0, "expected YAML 1.2, without other directives")
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            self._close()
        elif kind in ("ScalarEvent", "AliasEvent", "SequenceStartEvent", "MappingStartEvent"):
            if kind != "AliasEvent" and event.tag is not None:
                offset = self._text.index("!", event.start_mark.index)  # an anchor may precede it
                tag = named(self._text[offset : offset + 60].split(maxsplit=1)[0])
                raise self._error(offset, f"the tag {tag} is not supported; fields have types")
            frame = self._open[-1] if self._open else None
            if frame is not None and isinstance(frame.value, dict) and frame.key is None:
                frame.key = self._key(frame, kind, event)
            elif kind == "ScalarEvent":
                value = self._scalar(event)
                place = self._put(value, event)
                if event.anchor is not None:
                    self._anchors[event.anchor] = value, place
            elif kind == "AliasEvent":
                self._alias(event)
            else:
                self._start({} if kind == "MappingStartEvent" else [], event)

    def _key(self, frame: _Frame, kind: str, event: Event) -> tuple[str, int]:
        offset = event.start_mark.index
        if kind != "ScalarEvent":
            raise self._error(offset, "expected a key that is text")
        key = event.value
        if not event.style:
            if key == "":
                raise self._error(offset, "expected a key before ':'")
            if key == "<<":
                raise self._error(offset, "the merge key '<<' is not supported", "use `extends`")
        self._check_text(key, offset)
        if key in frame.place.children:
            raise twice(self._name, self._text, key, frame.place.children[key].offset, offset)
        if event.anchor is not None:
            self._anchors[event.anchor] = key, FilePosition(offset)
        return key, offset

    def _scalar(self, event: Event) -> object:
        value, offset = event.value, event.start_mark.index
        self._check_text(value, offset)
        if event.style:
            return value
        if value in _NULLS:
            return None
        return PlainScalar(value)

    def _check_text(self, value: str, offset: int) -> None:
        if not is_text(value):
            raise self._error(offset, HALF_PAIR)

    def _put(self, value: object, event: Event) -> FilePosition:
        """Add a value to the open mapping or list; return its position."""
        if not self._open:
            self.places.offset = event.start_mark.index
            # Only comments, or `---` alone, is an empty file; a written null is not.
            empty = value is None and event.value == ""
            self._root = {} if empty else value
            return self.places
        frame = self._open[-1]
        if isinstance(frame.value, list):
            frame.value.append(value)
            return frame.place.add(len(frame.value) - 1, event.start_mark.index)
        assert frame.key is not None
        key, offset = frame.key
        frame.key = None
        frame.value[key] = value
        return frame.place.add(key, offset)

    def _start(self, value: dict[str, object] | list[object], event: Event) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise self._error(event.start_mark.index, TOO_DEEP)
        place = self._put(value, event)
        if event.anchor is not None:
            self._anchors.pop(event.anchor, None)  # replaced by this anchor from here on
        self._open.append(_Frame(value, place, event.anchor))

    def _close(self) -> None:
        frame = self._open.pop()
        if frame.anchor is not None:
            # Unless an anchor inside, which came later, has the same name.
            self._anchors.setdefault(frame.anchor, (frame.value, frame.place))

    def _alias(self, event: Event) -> None:
        offset = event.start_mark.index
        anchored = self._anchors.get(event.anchor or "")
        if anchored is None:
            inside = any(frame.anchor == event.anchor for frame in self._open)
            mistake = (
                "is used inside itself"
                if inside
                else "is not defined above; text that begins with '*' needs quotes"
            )
            raise self._error(offset, f"the anchor {named(event.anchor or '')} {mistake}")
        value, source = anchored
        self._copied += _count(value)
        if self._copied > _MAX_COPIED:
            raise self._error(offset, f"aliases repeat more than {_MAX_COPIED} keys and values")
        if len(self._open) + _height(value) > MAX_DEPTH:
            raise self._error(offset, TOO_DEEP)
        place = self._put(listed(value), event)  # each alias has its own copy
        place.children = source.children


def _count(value: object) -> int:
    """The number of values in lists and mappings, counted up to the limit."""
    count, queue = 1, [value]
    while queue and count <= _MAX_COPIED:
        items = [item for _, item in children(queue.pop())]
        count += len(items)
        queue.extend(items)
    return count


def _height(value: object) -> int:
    """Nesting depth of a value."""
    if not isinstance(value, dict | list):
        return 0
    return 1 + max((_height(item) for _, item in children(cast(object, value))), default=0)


Event: TypeAlias = Any
"""An event of `ruamel.yaml`, of a class such as `ScalarEvent`."""


def events(text: str, name: str) -> Iterator[Event]:
    """Read the syntax of a YAML text, one event at a time.

    Raises:
        FileError: the text is not YAML.
    """
    try:
        import ruamel.yaml as ruamel
    except ImportError:
        message = "reading YAML needs the package ruamel.yaml; pip install ruamel.yaml"
        raise FileError(name, None, None, message) from None

    library: Any = ruamel
    offset = 0
    loader = library.YAML(typ="safe", pure=True)
    try:
        for event in loader.parse(text):
            offset = event.start_mark.index
            yield event
    except FileError:
        raise
    except library.error.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        offset = offset if mark is None else min(mark.index, len(text))
        raise error_at(name, text, offset, f"not valid YAML: {error.problem}") from None
    except library.reader.ReaderError as error:
        # A character that YAML forbids everywhere, such as a control character.
        message = f"the character U+{error.character:04X} is not allowed in YAML"
        raise error_at(name, text, error.position, message) from None
    except Exception as error:
        # The library was not written for hostile input: an escape beyond Unicode, for instance,
        # raises an error of `chr`, in words that differ between versions of Python.
        raise error_at(name, text, offset, "not valid YAML near here") from error
