from __future__ import annotations

import hashlib
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from setpoint.config import SetpointError
from setpoint.data.document import Document
from setpoint.data.split import split_documents, split_mixture, split_position

NAMES = st.lists(st.text("abc/._0", min_size=1, max_size=8), min_size=2, max_size=40, unique=True)


def docs(names: list[str]) -> list[Document]:
    return [Document(name, b"x") for name in names]


@given(name=st.text())
@settings(deadline=None)
def test_position_is_the_hash_as_a_fraction(name: str) -> None:
    exact = Fraction(int(hashlib.sha256(name.encode()).hexdigest(), 16), 2**256)
    assert 0 <= split_position(name) < 1
    assert 0 <= exact - Fraction(split_position(name)) < Fraction(1, 2**53)


def test_position_never_changes() -> None:
    assert split_position("stdlib/abc.py") == 0.7387529040227028


@given(names=NAMES, more=NAMES, share=st.floats(0.05, 0.95))
@settings(max_examples=100, deadline=None)
def test_adding_documents_moves_none(names: list[str], more: list[str], share: float) -> None:
    positions = [split_position(name) for name in names]
    assume(min(positions) < share <= max(positions))
    before = split_documents(docs(names), share)
    after = split_documents(docs(list({*names, *more})), share)
    assert set(before.train) <= set(after.train)
    assert set(before.held_out) <= set(after.held_out)
    assert {d.name for d in [*before.train, *before.held_out]} == set(names)


@given(names=NAMES, data=st.data())
@settings(max_examples=50, deadline=None)
def test_the_order_documents_arrive_in_does_not_matter(
    names: list[str], data: st.DataObject
) -> None:
    positions = sorted(split_position(name) for name in names)
    shuffled = data.draw(st.permutations(names))
    assert split_documents(docs(names), positions[1]) == split_documents(
        docs(shuffled), positions[1]
    )


def test_share_of_documents_is_near_what_was_asked() -> None:
    split = split_documents(docs([f"n/{i}" for i in range(4000)]), 0.05)
    assert 0.04 < len(split.held_out) / 4000 < 0.06


def test_empty_documents_are_dropped() -> None:
    names = [f"n/{i}" for i in range(100)]
    split = split_documents([*docs(names), Document("n/empty", b"")], 0.5)
    assert len(split.train) + len(split.held_out) == 100


def test_no_text_at_all_is_refused() -> None:
    with pytest.raises(SetpointError, match=r"data\.sources: no source holds a single byte"):
        split_documents([Document("a", b""), Document("b", b"")], 0.5)


def test_nothing_is_held_out() -> None:
    assert split_documents(docs(["a", "b"]), 0).held_out == []
    assert len(split_documents(docs(["a"]), 0).train) == 1


@pytest.mark.parametrize("text", ["line\n" * 100, "ä" * 300, "x" * 999 + "\n", "\n" * 40])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_the_end_of_a_single_document_is_held_out(text: str, share: float) -> None:
    document = Document("text/one.txt", text.encode())
    (train,), (held_out,) = split_documents([document], share)
    assert train.data + held_out.data == document.data
    assert train.data.decode() and held_out.data.decode()  # no sign is cut in two
    assert abs(len(held_out.data) / len(document.data) - share) < 0.02
    if text.startswith("line"):
        assert train.data.endswith(b"\n")
    at = len(train.data)
    assert train.name == f"text/one.txt[0:{at}]"
    assert held_out.name == f"text/one.txt[{at}:{len(document.data)}]"


def test_a_document_that_is_too_short_to_be_cut() -> None:
    with pytest.raises(
        SetpointError, match=r"0\.05 of 'a', the only document of its source, which has 1 b"
    ):
        split_documents(docs(["a"]), 0.05)


@pytest.mark.parametrize(("share", "side"), [(0.001, "held-out"), (0.999, "training")])
def test_an_empty_side_is_refused_and_the_offered_values_work(share: float, side: str) -> None:
    documents = docs(["a", "b", "c"])
    with pytest.raises(
        SetpointError, match=rf"data\.held_out: {share} leaves the {side}"
    ) as caught:
        split_documents(documents, share)
    words = str(caught.value).split("Valid: a value above ")[1].split()
    low, high = float(words[0]), float(words[4].rstrip(","))
    typed = float(words[-1])
    assert words[-2] == "--data.held_out"
    for value in (low + 0.0002, high - 0.0002, typed):
        assert all(split_documents(documents, value))


def test_two_documents_of_one_name_are_refused() -> None:
    with pytest.raises(SetpointError, match="two documents are called 'a'"):
        split_documents(docs(["a", "b", "a"]), 0.5)


def test_a_single_document_of_a_mixture_is_cut() -> None:
    one = [Document("one/a", b"a line\n" * 40)]
    many = docs([f"many/{index}" for index in range(100)])
    alone, whole = split_documents(one, 0.2), split_documents(many, 0.2)
    train, held_out = split_mixture([one, many, []], 0.2)
    assert train == [alone.train, whole.train, []]
    assert sorted(d.name for d in held_out) == sorted(
        d.name for d in [*alone.held_out, *whole.held_out]
    )
    assert [split_position(d.name) for d in held_out] == sorted(
        split_position(d.name) for d in held_out
    )
    assert split_mixture([one, many], 0) == ([one, split_documents(many, 0).train], [])


def test_a_mixture_of_which_nothing_is_held_out_is_refused() -> None:
    with pytest.raises(SetpointError, match="leaves the held-out side empty: the 4 documents"):
        split_mixture([docs(["a/0", "a/1"]), docs(["b/0", "b/1"])], 0.0001)


@given(names=NAMES, more=NAMES, data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_number_of_documents_with_the_lowest_hashes(
    names: list[str], more: list[str], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(names) - 1))
    held_out = {d.name for d in split_documents(docs(names), count).held_out}
    lowest = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[:count]
    assert held_out == set(lowest)
    for name in more:
        if name not in names:
            after = {d.name for d in split_documents(docs([*names, name]), count).held_out}
            # At most one other moves, out of the held-out side, and only for the added one.
            assert after == held_out or (after - held_out == {name} and len(after) == count)


def test_a_number_of_documents_of_all_sources_of_a_mixture() -> None:
    sources = [docs(["one/a"]), docs([f"two/{n}" for n in range(40)]), docs(["three/a"])]
    alone = split_documents([d for source in sources for d in source], 7)
    train, held_out = split_mixture(sources, 7)
    assert held_out == alone.held_out and len(held_out) == 7
    for source, part in zip(sources, train, strict=True):
        assert part == [d for d in alone.train if d in source]


@pytest.mark.parametrize(
    ("names", "count", "valid"),
    [
        (["a", "b", "c"], 3, "a whole number up to 2, or a share below 1"),
        (["a", "b", "c"], 2000000, "a whole number up to 2, or a share below 1"),
        (["a"], 1, "a share below 1, which cuts it in two"),
    ],
)
def test_a_number_that_leaves_no_document_to_train_on(
    names: list[str], count: int, valid: str
) -> None:
    refused = rf"^data\.held_out: {count} documents? of {len(names)} would .*\nValid: {valid}\.$"
    with pytest.raises(SetpointError, match=refused):
        split_documents(docs(names), count)
    with pytest.raises(SetpointError, match=refused):
        split_mixture([docs(names), []], count)
