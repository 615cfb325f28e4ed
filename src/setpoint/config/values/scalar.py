"""Bases of classes of values: `Struct`, and `Scalar` for fields; and `Secret`, a scalar.

A secret must never be written down: a `Secret` is a reference to one, not the secret itself.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, SupportsIndex, cast, dataclass_transform

from ..words.credentials import HIDDEN
from ..words.errors import Invalid, SetpointError


@dataclass_transform(eq_default=False)
class Struct:
    """The constructor takes the annotated attributes, by name or in their order.

    Importing `dataclasses` would take longer than most of what a command does.
    """

    _names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._names = tuple(dict.fromkeys((*cls._names, *cls.__annotations__)))

    def __init__(self, *args: Any, **options: Any) -> None:
        values = dict(zip(self._names, args, strict=False)) | options
        wrong = [name for name in self._names if name not in values and not hasattr(self, name)]
        wrong += [name for name in options if name not in self._names]
        if wrong or len(values) != len(args) + len(options):
            takes, about = ", ".join(self._names), f": see {', '.join(wrong)}" if wrong else ""
            raise TypeError(f"{type(self).__name__} takes {takes}{about}")
        vars(self).update(values)


class Scalar:
    """A value that reads itself from a file or a flag, and writes itself as plain data.

    Values with the same plain data are equal. A subclass gives `__setpoint_scalar__`, which
    describes it in words and is what marks such a class, also one without this base; and
    `__setpoint_json_schema__`, a schema of what `read` takes from a file, for editors.
    """

    __slots__ = ()
    __setpoint_scalar__: str

    @classmethod
    def read(cls, value: Any) -> Self:
        """Make a value from what a layer holds.

        Raises:
            Invalid: if it cannot be read.
        """
        return value if isinstance(value, cls) else cast(Any, cls)(value)

    def dump(self) -> Any:
        """The value in plain data, of which `read` makes an equal value."""
        raise AssertionError(f"{type(self).__name__} does not say what it is in plain data")

    def __str__(self) -> str:
        return str(self.dump())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dump()!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.dump() == other.dump()

    def __hash__(self) -> int:
        return hash(str(self.dump()))


class Revealed(str):
    """A secret in use: an ordinary text that does not show itself.

    Its `repr`, which debuggers, tracebacks and logs of whole objects print, hides it, and it cannot
    be pickled. Formatted into another text it is itself, since that is how it is used.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Revealed({HIDDEN!r})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        raise SetpointError("a revealed secret cannot be pickled; pass on the Secret instead")


class Secret(Scalar):
    """Where a secret is to be found, read only at the moment it is used.

    Arguments:
        reference: `"env:NAME"` for an environment variable or `"file:PATH"` for a file's first
            line.

    Raises:
        Invalid: for any other text, which is not repeated since it may be the secret itself.
    """

    __slots__ = ("reference",)
    __setpoint_scalar__ = "a reference to a secret: 'env:NAME' or 'file:PATH'"
    __setpoint_secret__ = True
    __setpoint_json_schema__ = {  # noqa: RUF012 - read only
        "type": "string",
        "pattern": r"^(env|file):[\s\S]*\S",
    }

    def __init__(self, reference: str) -> None:
        text = reference if isinstance(cast(object, reference), str) else ""
        kind, separator, name = text.partition(":")
        if kind not in ("env", "file") or not separator or not name.strip():
            raise Invalid(
                "is not a reference to a secret (its text is not shown); a configuration "
                "never contains the secret itself",
                ("env:NAME", "file:PATH"),
                secret=True,
            )
        self.reference = str(text)

    def dump(self) -> str:
        """The secret in plain data."""
        return self.reference

    def reveal(self) -> Revealed:
        """Read the secret.

        Returns:
            the text, without surrounding white space; it hides itself where it is shown.

        Raises:
            SetpointError: if the variable is not set or the file cannot be read.
        """
        import os

        kind, _, name = self.reference.partition(":")
        if kind == "env":
            if not os.environ.get(name):
                raise SetpointError(f"the environment variable {name} of a secret is not set")
            return Revealed(os.environ[name].strip())
        try:
            with open(os.path.expanduser(name), encoding="utf-8") as file:
                return Revealed(file.readline().strip())
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise SetpointError(f"the secret's file {name} cannot be read: {reason}") from None
        except ValueError:
            raise SetpointError(f"the secret's file {name} is not UTF-8 text") from None

    def login(self, url: str, user: str = "") -> Revealed:
        """Put the secret into a URL, at the moment it is used; configurations hold the two apart.

        Arguments:
            url: an address such as `https://host/path`, without a login.
            user: the name that goes with the secret; some services want none.

        Returns:
            `https://user:secret@host/path`, with both quoted; it hides itself where it is shown.

        Raises:
            SetpointError: if it is no such address, or the secret cannot be read.
        """
        from urllib.parse import quote, urlsplit, urlunsplit

        parts = urlsplit(url)
        if not parts.scheme or not parts.netloc or "@" in parts.netloc:
            raise SetpointError(f"{url!r} is not a URL without a login, such as https://host")
        login = f"{quote(user, safe='')}:{quote(self.reveal(), safe='')}"
        return Revealed(urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc}")))

    def __str__(self) -> str:
        return repr(self)
