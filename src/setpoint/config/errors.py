"""The errors that a user can cause; everything else is a bug and keeps its traceback."""

from __future__ import annotations

from .credentials import hide_secrets


def printable(text: str) -> str:
    """A text that any terminal can take: what does not print is escaped, line breaks stay.

    Arguments:
        text: any text, perhaps from a hostile file or flag.

    Returns:
        the text itself where nothing had to be escaped.
    """
    if all(sign.isprintable() or sign == "\n" for sign in text):
        return text
    return "".join(
        sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text
    )


class SetpointError(Exception):
    """An error in words: what is wrong, where, and what would be valid.

    The command line prints the message alone and leaves with `status`; no traceback is shown.
    """

    # The configuration or the arguments are wrong.
    status = 2

    def __str__(self) -> str:
        return printable(hide_secrets(super().__str__()))


class RunError(SetpointError):
    """An error of a run whose configuration is right: lost data, a loss that is not finite."""

    status = 1


class UserCodeError(SetpointError):
    """A fault in a preset, modifier, factory or module of the user's own.

    The command line prints the traceback from the user's code on, and leaves with status 1, since
    neither the configuration nor the arguments are wrong.

    Arguments:
        message: what failed, with the exception and its line.
        traceback: of the exception, without the frames of the engine.
    """

    status = 1

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message, traceback)
        self.message = message
        self.traceback = printable(hide_secrets(traceback))

    def __str__(self) -> str:
        return printable(hide_secrets(self.message))


class Invalid(SetpointError):
    """One value that cannot be taken: by a field, or by `Period`, `ref` and the like in Python.

    Who reads a field adds its name and where the value came from.

    Arguments:
        message: what is wrong, without the field's name.
        valid: what would be valid, nearest first.
        at: where inside the value, for instance `(2, "lr")` for a field of a list's third section.
        hint: a sentence that says what to do, or the empty string.
        secret: whether the value may be a secret, so that no report may repeat it.
    """

    def __init__(
        self,
        message: str,
        valid: tuple[str, ...] = (),
        at: tuple[str | int, ...] = (),
        hint: str = "",
        secret: bool = False,
    ) -> None:
        super().__init__(message, valid, at, hint, secret)
        self.message = message
        self.valid = valid
        self.at = at
        self.hint = hint
        self.secret = secret
        self.parts: tuple[Invalid, ...] = (self,)
        # Of a fault in the method that computes the value: its traceback.
        self.traceback: str | None = None
        # What a program has called itself, since no report of a configuration will name the value.
        self.call = ""

    def __str__(self) -> str:
        if not self.call:
            return printable(hide_secrets(self.message))
        valid = f". Valid: {', '.join(self.valid)}" if self.valid else ""
        hint = f". {self.hint}" if self.hint else ""
        return printable(hide_secrets(f"{self.call} {self.message}{valid}{hint}"))

    def called(self, name: str, value: object) -> Invalid:
        """The same error, with the call that raised it in its text.

        Arguments:
            name: the class or function.
            value: its argument.

        Returns:
            this error.
        """
        whole = isinstance(value, int) and value.bit_length() > 1000  # too long to be written out
        text = "a whole number" if whole else repr(value)
        self.call = f"{name}({text if len(text) <= 100 else text[:97] + '...'})"
        return self

    def inside(self, key: str | int) -> Invalid:
        """The same error, seen from one level further out.

        Arguments:
            key: the name or index that leads to the value.

        Returns:
            a new error whose `at` begins with `key`, for each of its parts.
        """
        if len(self.parts) == 1:
            return Invalid(self.message, self.valid, (key, *self.at), self.hint, self.secret)
        return several([part.inside(key) for part in self.parts])


def several(errors: list[Invalid]) -> Invalid:
    """One error that stands for several, so that all of them reach the report.

    Arguments:
        errors: at least one.

    Returns:
        the only one, or an error whose `parts` are all of them.
    """
    if len(errors) == 1:
        return errors[0]
    first = errors[0]
    whole = Invalid(first.message, first.valid, first.at, first.hint, first.secret)
    whole.parts = tuple(part for error in errors for part in error.parts)
    return whole


class DeclarationError(SetpointError, TypeError):
    """A class that cannot be configured as it is declared; it and the field are named."""


class UnresolvedError(SetpointError):
    """A value was read that only `resolve` can know: a derived or referenced field, still unset."""
