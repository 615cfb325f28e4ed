import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import Invalid
from setpoint.config.reference import Reference

VALUES: dict[tuple[str | int, ...], object] = {
    ("a",): 3,
    ("m", "dim"): 64,
    ("x", 0, "y"): 2.5,
    ("t", "loss"): 7,
    ("s",): "text",
    ("b",): True,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${a}", 3),
        (" ${ m.dim * 4 } ", 256),
        ("${-a + +2}", -1),
        ("${(a + 1) ** 2 // 3 % 4 / 2}", 0.5),
        ("${x.0.y}", 2.5),
        ("${x[0].y * 1e1}", 25.0),
        ("${t['loss'] - 2.5}", 4.5),
        ("${s}", "text"),
        ("${b}", True),
        ("${2 ** 10}", 1024),
    ],
)
def test_values(text: str, value: object) -> None:
    assert Reference(text).evaluate(VALUES.__getitem__) == value


@pytest.mark.parametrize(
    "text",
    [
        "${}", "${a", "x${a}", "${a}${a}", "${a} ", "${f(a)}", "${a if b else a}", "${[1]}",
        "${lambda: 1}", "${a.b()}", "${'text'}", "${a and b}", "${a == b}", "${not a}", "${~a}",
        "${a @ b}", "${a << 2}", "${a[b]}", "${a[1:2]}", "${__import__('os')}", "${f'{a}'}",
        "${1j}", "${True}", "${" + "(" * 300 + "}", "${" + "-" * 450 + "a}", "${a\x00}", "${9" * 3,
        "${" + "a+" * 400 + "a}", "${a := 3}", "${*a}", "${yield}", "${await a}", "${...}",
    ],
)  # fmt: skip
def test_what_is_no_reference(text: str) -> None:
    if text == "${a} ":
        Reference(text)
        return
    try:
        value = Reference(text).evaluate(VALUES.__getitem__)
    except Invalid:
        return
    assert text.startswith("${--")
    assert value == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${a / 0}", "division by zero"),
        ("${a % 0}", "cannot be computed"),
        ("${2 ** 5000}", "too large a power"),
        ("${2 ** 2000 * 2 ** 2000 * 2 ** 2000}", "not a number of a usable size"),
        ("${(0 - 1) ** 0.5}", "not a number of a usable size"),
        ("${1e308 * 10}", ""),
        ("${10.0 ** 400}", "cannot be computed"),
        ("${0 ** -1}", "cannot be computed"),
        ("${s + 1}", "s is not a number"),
        ("${b + 1}", "b is not a number"),
        ("${-s}", "s is not a number"),
        ("${2.0 ** 2 ** 4000}", ""),
    ],
)
def test_what_cannot_be_computed(text: str, message: str) -> None:
    try:
        assert Reference(text).evaluate(VALUES.__getitem__) == float("inf")
    except Invalid as error:
        assert message in str(error)


def test_equality_is_by_text() -> None:
    assert Reference("${a}") == Reference("${a}") != Reference("${ a}")
    assert len({Reference("${a}"), Reference("${a}")}) == 1
    assert repr(Reference("${a}")) == "${a}"


@given(st.text(alphabet="ab.01[]()+-*/%'\" {}$_", max_size=20))
def test_any_text_is_computed_or_refused(inside: str) -> None:
    def look_up(path: tuple[str | int, ...]) -> object:
        return VALUES.get(path, 1)

    try:
        Reference("${" + inside + "}").evaluate(look_up)
    except Invalid:
        return
