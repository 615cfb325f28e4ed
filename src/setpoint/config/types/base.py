"""The base of all field types, and the reading of values that may be references."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..values.node import Node
from ..values.reference import Reference, is_reference, reference
from ..words.errors import Invalid
from ..words.plain_data import OPENING, LiteralText, PlainScalar, plain_scalar, refers, unescaped
from ..words.text import for_error

if TYPE_CHECKING:
    from ..values.origin import Origin
    from ..words.names import Path

PLAIN = frozenset({int, float, bool, str, type(None)})
"""Classes of values that hold nothing."""


class FieldType:
    """Reads, writes and describes the values of one annotation.

    A type is made once per field and used for all instances; it holds no values.

    Arguments:
        parts: the types inside: of the items, of the alternatives, of what is optional.
    """

    # The type in words; empty for a closed vocabulary.
    words = ""
    # The closed vocabulary.
    vocabulary: tuple[str, ...] = ()
    # The JSON Schema of what `read` takes from a file, for editors; that of anything where the
    # type has parts or sections.
    json_schema: Mapping[str, Any] = {}
    # True if a text may stand here, so that it may hold references.
    takes_text = False
    # How a typed text begins that gives a list or mapping where a text may stand as well.
    opening: tuple[str, ...] = ()
    # True if values may contain sections, so that walks can pass over plain values quickly.
    nested = False
    parts: tuple[FieldType, ...] = ()

    def __init__(self, *parts: FieldType) -> None:
        self.parts = parts
        self.nested = self.nested or any(part.nested for part in parts)

    def describe(self) -> str:
        """The type in words, as help texts and errors show it.

        Returns:
            for instance `a number` or `one of: auto, never`.
        """
        return self.words or f"one of: {', '.join(self.candidates())}"

    def candidates(self) -> tuple[str, ...]:
        """The closed vocabulary of the type, for suggestions and completion."""
        return self.vocabulary

    def read(self, value: object, origin: Origin) -> Any:
        """Turn a Python value, a file's value or a text into what the field stores.

        Arguments:
            value: the value; texts that are to be read by type are `PlainScalar`s.

        Raises:
            Invalid: if it does not fit.
        """
        raise self.refuse(value)

    def refuse(self, value: object) -> Invalid:
        """The error for a value of the wrong type."""
        if self.is_secret():
            return Invalid(f"is not {self.describe()}", secret=True)
        return Invalid(f"is not {self.describe()}: got {for_error(value)}", self.candidates())

    def dump(self, value: Any) -> Any:
        """The value in plain data, such that `read` gives it back.

        Returns:
            None, bool, int, float, str, list or dict.
        """
        return value

    def replace_sections(self, value: Any, function: Callable[[Any], Any], frozen: bool) -> Any:
        """A copy of the value with each section inside replaced."""
        return value

    def items(self, value: Any) -> Iterable[tuple[str | int, Any, FieldType]]:
        """The items of a list, tuple or mapping with their types; none of any other value."""
        return ()

    def item_type(self, key: str | int) -> FieldType | None:
        """The type of an item; None where there is none, or it depends on the value."""
        return None

    def sections(self, value: Any) -> Iterator[tuple[Path, Node]]:
        """The sections directly inside a value."""
        for key, item, kind in self.items(value):
            if not isinstance(item, Reference):
                for path, section in kind.sections(item):
                    yield (key, *path), section

    def is_container(self) -> bool:
        """True if values have items that a path can name by index or key."""
        return any(part.is_container() for part in self.parts)

    def lists_items(self, text: str) -> bool:
        """True if a text that is typed gives the items of a list or mapping."""
        return any(part.lists_items(text) for part in self.parts)

    def with_items(self, value: Any, key: object) -> FieldType:
        """The type, or of alternatives the one, by which a path goes on inside a value.

        Arguments:
            value: what stands there; None if nothing does.
            key: the next part of the path: an index, a key, or a word that edits a list.

        Returns:
            a list or mapping; the type itself where the value is a single one.
        """
        return self

    def is_secret(self) -> bool:
        """True if values may be secrets, so that no error may repeat what was given.

        Returns:
            True for `Secret`, and for containers of it.
        """
        return any(part.is_secret() for part in self.parts)


def read_item(kind: FieldType, item: object, origin: Origin) -> Any:
    """Read the value of a field, or one item of it; a reference stays one until resolve.

    Raises:
        Invalid: if it does not fit.
    """
    if isinstance(item, Reference) and not kind.is_secret():
        return item
    if not isinstance(item, str) or OPENING not in item or kind.is_secret():
        return kind.read(plain_scalar(item), origin)
    # The items of a list on one line, as flags give it, may be references themselves.
    listed = isinstance(item, PlainScalar) and kind.lists_items(item) and not is_reference(item)
    if listed or isinstance(item, LiteralText):
        return kind.read(item, origin)
    if refers(item):
        return reference(item, kind.takes_text)
    return kind.read(unescaped(item), origin)


def dump_item(kind: FieldType, item: Any) -> Any:
    """One item in plain data; a reference as its text."""
    return item.text if isinstance(item, Reference) else kind.dump(item)


def replace_in_item(
    kind: FieldType, item: Any, function: Callable[[Any], Any], frozen: bool
) -> Any:
    """A copy of one item, as `FieldType.replace_sections` makes it; a reference stays as it is."""
    return item if isinstance(item, Reference) else kind.replace_sections(item, function, frozen)
