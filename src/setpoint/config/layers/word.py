"""A word of the command line that stands in a response file."""

from __future__ import annotations


class Word(str):
    """A word of a response file.

    Arguments:
        text: the word, without its quotes.
        place: `file:line`.
    """

    __slots__ = ("place",)

    place: str

    def __new__(cls, text: str, place: str) -> Word:
        """See the class."""
        word = super().__new__(cls, text)
        word.place = place
        return word


def label_of(word: str, name: str) -> str:
    """What origins call an override.

    Arguments:
        word: the word of the command line that the override begins with.
        name: the part of the word that names the field.

    Returns:
        the name, and for a word of a response file where it stands.
    """
    return f"{name} ({word.place})" if isinstance(word, Word) else name
