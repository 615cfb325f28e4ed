"""What every field type can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from ..credentials import hide_secrets
from ..errors import Invalid
from ..files.plain import PlainScalar

# Longer whole numbers cannot be written out in digits; Python refuses 4301 of them.
MAX_BITS = 14_284
KERNEL = __name__.rpartition("types.")[0]
SHOWN_LEVELS = 4
SHOWN = 50  # items of a list that an error looks at; it shows 100 signs in all

if TYPE_CHECKING:
    from ..base import Config
    from ..origin import Origin


class FieldType:
    """Reads, writes and describes the values of one annotation.

    A type is built once per field and used for all instances; it holds no values.
    """

    __slots__ = ()

    # Whether values may contain sections, so that walks can pass over plain values quickly.
    nested = False
    # Whether a text may stand here, so that it may hold references.
    takes_text = False

    def describe(self) -> str:
        """The type in words, as help texts and errors show it.

        Returns:
            for instance `a number` or `one of: auto, never`.
        """
        raise Invalid("an abstract type has no values")

    def read(self, value: object, origin: Origin) -> Any:
        """Turn a Python value, a file's value or a text into what the field stores.

        Arguments:
            value: the value; texts that are to be read by type are `PlainScalar`s.
            origin: where it comes from, for the sections inside.

        Returns:
            the stored value.

        Raises:
            Invalid: if it does not fit.
        """
        raise self.refuse(value)

    def refuse(self, value: object) -> Invalid:
        """The error for a value of the wrong type.

        Arguments:
            value: the value as it came.

        Returns:
            the error, to be raised by the caller.
        """
        if self.is_secret():
            return Invalid(f"is not {self.describe()}", secret=True)
        return Invalid(f"is not {self.describe()}: got {shown(value)}", self.candidates())

    def adopt(self, value: Any) -> Any:
        """Turn what a default factory returned into a draft's own value, without an origin.

        Arguments:
            value: a value of the right type.

        Returns:
            the value, in the containers that drafts use.
        """
        return value

    def dump(self, value: Any) -> Any:
        """The value in plain data, such that `read` gives it back.

        Arguments:
            value: a stored value.

        Returns:
            None, bool, int, float, str, list or dict.
        """
        return value

    def map(self, value: Any, function: Callable[[Config], Config], frozen: bool) -> Any:
        """A copy of the value with each section inside replaced.

        Arguments:
            value: a stored value.
            function: gives the replacement of a section.
            frozen: whether containers of the copy refuse changes.

        Returns:
            the copy.
        """
        return value

    def sections(self, value: Any) -> Iterator[tuple[tuple[str | int, ...], Config]]:
        """The sections directly inside a value.

        Arguments:
            value: a stored value.

        Returns:
            pairs of the path inside the value and the section.
        """
        return iter(())

    def parts(self) -> tuple[FieldType, ...]:
        """The types inside this one: of the items, of the alternatives, of what is optional.

        Returns:
            nothing for plain types and for sections.
        """
        return ()

    def is_container(self) -> bool:
        """Whether values have items that a path can name by index or key.

        Returns:
            True for lists, tuples and mappings, also optional ones.
        """
        return any(part.is_container() for part in self.parts())

    def is_secret(self) -> bool:
        """Whether values may be secrets, so that no error may repeat what was given.

        Returns:
            True for `Secret`, and for containers of it.
        """
        return any(part.is_secret() for part in self.parts())

    def candidates(self) -> tuple[str, ...]:
        """The closed vocabulary of the type, for suggestions and completion.

        Returns:
            texts, or nothing where the values are not enumerable.
        """
        return ()


def shown_part(value: object, error: Invalid) -> str:
    """The part of a value that an error is about, as the error shows it.

    Arguments:
        value: the whole value.
        error: what is wrong with it, and where inside it.

    Returns:
        a short text; `***` for what may be a secret.
    """
    if error.secret:
        return "***"
    whole = value
    if error.at and isinstance(value, PlainScalar):
        value = parsed(value)
    for key in error.at:
        if isinstance(value, Mapping):
            value = cast(Mapping[Any, object], value).get(key)
        elif isinstance(value, list | tuple) and isinstance(key, int):
            items = cast(Sequence[object], value)
            value = items[key] if key < len(items) else None
        else:  # the path goes on where the value does not, as for the tag of a variant
            return shown(whole)
    return shown(cast(object, value))


def parsed(text: PlainScalar) -> object:
    """A text of the command line as the list or mapping that it stands for.

    Arguments:
        text: the text.

    Returns:
        its items, or the text where it has none.
    """
    from ..layers.flow import parse_flow, parse_list

    try:
        return parse_flow(text) if text.startswith("{") else parse_list(text)
    except Invalid:
        return text


def shown(value: object, level: int = 0) -> str:
    """A value as an error shows it: quoted texts in quotes, with the kind of other things named.

    Arguments:
        value: any value.
        level: the lists and mappings that it stands in; it may contain itself.

    Returns:
        a short text.
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


def plain_number(value: Any) -> Any:
    """A number of another package as Python's own number, where that is exact.

    Arguments:
        value: any value.

    Returns:
        a whole number, a float or a truth value for a scalar of numpy; else the value itself.
    """
    if type(value).__module__ != "numpy" or getattr(value, "shape", None) != ():
        return value
    number = value.item()
    return number if type(number) in (int, float, bool) else value


def shown_plain(value: Any) -> str:
    """A stored value as reports print it.

    Arguments:
        value: any stored value.

    Returns:
        a short text.
    """
    if is_own(value):
        return shown(value.dump())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    # An expression is shown as it is written.
    return shown(getattr(value, "pattern", value))
