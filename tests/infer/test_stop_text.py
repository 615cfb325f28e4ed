from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from setpoint.infer.continuation import StopTexts


def fed(stops: list[str], pieces: list[bytes]) -> tuple[bytes, str | None]:
    """What is shown of pieces that come one after the other, and what ended it."""
    texts = StopTexts(stops)
    shown = b""
    for piece in pieces:
        shown += texts.feed(piece)
        if texts.found is not None:
            return shown, texts.found
    return shown + texts.finish(), None


def test_it_is_cut_where_the_stop_text_begins() -> None:
    assert fed(["\n\n"], [b"a\n", b"b\n", b"\nc"]) == (b"a\nb", "\n\n")
    assert fed(["END"], [b"xE", b"N", b"D and more"]) == (b"x", "END")
    assert fed(["END"], [b"xE", b"N", b"X"]) == (b"xENX", None)
    assert fed(["END"], [b"a tail EN"]) == (b"a tail EN", None)


def test_the_first_of_several_counts() -> None:
    assert fed(["b", "abc"], [b"abc"]) == (b"", "abc")
    assert fed(["c", "b"], [b"abc"]) == (b"a", "b")
    # One that is complete ends the text, though a longer one may have begun before it.
    assert fed(["abcd", "b"], [b"ab", b"cd"]) == (b"a", "b")


def test_what_is_certain_is_shown_at_once() -> None:
    texts = StopTexts(["END"])
    assert texts.feed(b"one E") == b"one "
    assert texts.feed(b"x") == b"Ex"
    assert StopTexts([]).feed(b"EN") == b"EN"


def test_a_sign_of_many_bytes_may_come_in_parts() -> None:
    sign = "é".encode()
    assert fed(["é"], [b"a" + sign[:1], sign[1:]]) == (b"a", "é")


@given(
    text=st.text("ab", max_size=12),
    stop=st.text("ab", min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 12)),
)
def test_it_is_where_searching_the_whole_finds_it(text: str, stop: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b].encode() for a, b in pairwise(edges)]
    shown, found = fed([stop], pieces)
    assert shown.decode() == text.partition(stop)[0]
    assert found == (stop if stop in text else None)
