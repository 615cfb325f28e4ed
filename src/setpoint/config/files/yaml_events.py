"""The syntax of YAML: the events of `ruamel.yaml`, and its errors in our words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .error import FileError, describe, error_at, named

if TYPE_CHECKING:
    from collections.abc import Iterator


class Mark(Protocol):
    """A position, as `ruamel.yaml` gives it."""

    index: int


class Event(Protocol):
    """What is read of an event of `ruamel.yaml`; each class of event has only some of these."""

    start_mark: Mark
    anchor: str | None
    style: str | None
    value: str


# By a part of what `ruamel.yaml` says; `{}` is what stands at that place.
_WORDS = {
    "mapping values are not allowed": "expected no ':' here; text with ': ' needs quotes",
    "mapping keys are not allowed": "expected no '?' here",
    "sequence entries are not allowed": "expected no '- ' here; a list begins on its own line",
    "could not find expected ':'": "expected ':' after the key above, found {}",
    "cannot start any token": "expected a key or a value, found {}; such text needs quotes",
    "unexpected end of stream": "expected the closing quote of a text, found {}",
    "unknown escape character": "expected an escape after the backslash, found {}",
    "expected escape sequence": "expected hexadecimal digits in the escape, found {}",
    "expected <block end>": "expected the next key or item, indented like those above, found {}",
    "expected the node content": "expected a value, found {}",
    "expected ',' or ']'": "expected ',' or ']' in the list, found {}",
    "expected ',' or '}'": "expected ',' or '}}' in the mapping, found {}",
    "expected '<document start>'": "expected the end of the file, found {}",
    "unexpected document separator": "expected the closing quote of a text, found {}",
    "duplicate anchor": "an anchor is given twice",
}


def events(text: str, name: str) -> Iterator[Event]:
    """Read the syntax of a YAML text, one event after another.

    Arguments:
        text: the whole text.
        name: the file as it is shown to people.

    Returns:
        the events, each as soon as it is known.

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
    loader.Scanner = _strict(library.scanner.Scanner, text, name)
    try:
        for event in loader.parse(text):
            offset = event.start_mark.index
            yield event
    except FileError:
        raise
    except library.error.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        offset = offset if mark is None else min(mark.index, len(text))
        raise _explain(text, name, offset, str(error.problem)) from None
    except library.reader.ReaderError as error:
        # A character that YAML forbids everywhere, as control characters are.
        message = f"the character U+{error.character:04X} may not stand in YAML"
        raise error_at(name, text, error.position, message) from None
    except Exception as error:
        # The library was not written for hostile input: an escape beyond Unicode ends in a
        # ValueError of `chr`, for instance. Whatever it is, the text is what caused it.
        raise error_at(name, text, offset, f"not valid YAML near here: {error}") from None


def _strict(base: Any, text: str, name: str) -> Any:
    """A scanner that refuses tags and directives where they begin, before the library reads them.

    Reading a tag takes the library a time that grows with the square of the tag's length.
    """

    class Scanner(base):
        def fetch_tag(self) -> None:
            offset = self.reader.index
            tag = text[offset : offset + 60].split(maxsplit=1)[0]
            message = f"the tag {named(tag)} is refused; a value is read by its field's type"
            raise error_at(name, text, offset, message)

        def fetch_directive(self) -> None:
            offset = self.reader.index
            if text[offset : offset + 10].split() != ["%YAML", "1.2"]:
                raise error_at(name, text, offset, "expected no directive but '%YAML 1.2'")
            base.fetch_directive(self)

    return Scanner


def _explain(text: str, name: str, offset: int, problem: str) -> FileError:
    # The library points behind the line breaks and spaces; at its end, people look at the line.
    found = describe(text, offset)
    if found == "'\t'" or text[offset : offset + 1] == "\t":
        return error_at(name, text, offset, "expected spaces; YAML refuses tabs here")
    for part, template in _WORDS.items():
        if part in problem:
            return error_at(name, text, offset, template.format(found))
    return error_at(name, text, offset, f"not valid YAML: {problem}")
