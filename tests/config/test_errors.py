import pickle

import pytest

from setpoint.config import Invalid, RunError, SetpointError
from setpoint.config.words.errors import UnresolvedError, printable, several


def test_exit_statuses() -> None:
    assert (SetpointError("x").status, UnresolvedError("x").status, RunError("x").status) == (
        2,
        2,
        1,
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é\n", "plain é\n"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\udcff", "\\udcff"),
        ("a\u202eb", "a\\u202eb"),
        ("a\tb\r", "a\\tb\\r"),
        ("", ""),
    ],
)
def test_messages_are_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert str(SetpointError(text)) == shown
    assert str(Invalid(text)) == shown


def test_an_error_seen_from_outside() -> None:
    error = Invalid("is wrong", ("1",), hint="Do it.", secret=True).inside("lr").inside(2)
    assert (error.at, error.valid, error.hint, error.secret) == ((2, "lr"), ("1",), "Do it.", True)
    assert error.parts == (error,)


def test_several_errors_travel_as_one() -> None:
    first, second, third = (Invalid(text) for text in "abc")
    assert several([first]) is first
    whole = several([several([first.inside(0), second.inside(1)]).inside("x"), third])
    assert [(part.at, part.message) for part in whole.parts] == [
        (("x", 0), "a"),
        (("x", 1), "b"),
        ((), "c"),
    ]


def test_errors_can_be_sent_to_other_processes() -> None:
    error = pickle.loads(pickle.dumps(Invalid("is wrong", ("1",), (2,), "Do it.", True)))
    assert (str(error), error.valid, error.at, error.hint, error.secret) == (
        "is wrong", ("1",), (2,), "Do it.", True,
    )  # fmt: skip
    assert str(pickle.loads(pickle.dumps(SetpointError("x")))) == "x"
