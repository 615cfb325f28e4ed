"""Values that may be references until all layers are merged: fields, and the items inside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..files.plain import PlainScalar
from ..literal import OPENING, LiteralText, refers, unescaped
from ..reference import Reference, is_whole, reference

if TYPE_CHECKING:
    from ..base import Config
    from ..origin import Origin
    from .base import FieldType


def read_item(kind: FieldType, item: object, origin: Origin) -> Any:
    """Read the value of a field, or one item of it; a reference stays one until resolve.

    Arguments:
        kind: the type of the item.
        item: the item as it came.
        origin: where it comes from.

    Returns:
        the item as the container stores it.

    Raises:
        Invalid: if it does not fit.
    """
    if isinstance(item, Reference) and not kind.is_secret():
        return item
    if not isinstance(item, str) or OPENING not in item or kind.is_secret():
        return kind.read(item, origin)
    # The items of a list on one line, as flags give it, may be references themselves.
    listed = isinstance(item, PlainScalar) and kind.is_container() and not is_whole(item)
    if listed or isinstance(item, LiteralText):
        return kind.read(item, origin)
    if refers(item):
        return reference(item, kind.takes_text)
    return kind.read(unescaped(item), origin)


def dump_item(kind: FieldType, item: Any) -> Any:
    """One item in plain data; a reference as its text.

    Arguments:
        kind: the type of the item.
        item: a stored item.

    Returns:
        plain data.
    """
    return item.text if isinstance(item, Reference) else kind.dump(item)


def map_item(kind: FieldType, item: Any, function: Callable[[Config], Config], frozen: bool) -> Any:
    """A copy of one item, as `FieldType.map` makes it; a reference stays as it is.

    Arguments:
        kind: the type of the item.
        item: a stored item.
        function: gives the replacement of a section.
        frozen: whether containers of the copy refuse changes.

    Returns:
        the copy.
    """
    return item if isinstance(item, Reference) else kind.map(item, function, frozen)
