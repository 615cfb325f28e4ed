import hashlib
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from setpoint.data.document import Document
from setpoint.data.reading import split_documents as split_mixture
from setpoint.data.reading import split_position, training_documents

from ..support.snapshots import refused

NAMES = st.lists(st.text("abc/._0", min_size=1, max_size=8), min_size=2, max_size=40, unique=True)


class Split(NamedTuple):
    train: list[Document]
    held_out: list[Document]


def split_documents(documents: list[Document], held_out: float) -> Split:
    (train,), held = split_mixture([documents], held_out)
    return Split(train, held)


def docs(names: list[str]) -> list[Document]:
    return [Document(name, b"x") for name in names]


@given(name=st.text())
@settings(deadline=None)
def test_position_is_the_hash_as_a_fraction(name: str) -> None:
    exact = Fraction(int(hashlib.sha256(name.encode()).hexdigest(), 16), 2**256)
    assert 0 <= split_position(name) < 1
    assert 0 <= exact - Fraction(split_position(name)) < Fraction(1, 2**53)


@given(count=st.integers(3, 60), share=st.floats(0.001, 0.999), seed=st.integers(0, 999))
@settings(max_examples=100, deadline=None)
def test_a_share_of_any_folder_holds_documents_out(count: int, share: float, seed: int) -> None:
    names = [f"{seed}/{number}" for number in range(count)]
    split = split_documents(docs(names), share)
    assert len(split.held_out) == min(max(round(share * count), 1), count - 1)
    assert [d.name for d in [*split.held_out, *split.train]] == sorted(
        names, key=lambda name: hashlib.sha256(name.encode()).digest()
    )
    read = training_documents(lambda: iter(docs(names)), share)
    assert {d.name for d in read} == {d.name for d in split.train}


@given(names=NAMES, name=st.text("xyz", min_size=1), share=st.floats(0.05, 0.95))
@settings(max_examples=100, deadline=None)
def test_one_more_document_moves_at_most_two(names: list[str], name: str, share: float) -> None:
    assume(len(names) > 2)
    before = {d.name for d in split_documents(docs(names), share).held_out}
    after = {d.name for d in split_documents(docs([*names, name]), share).held_out}
    assert len((before ^ after) - {name}) <= 2


def test_documents_without_text_are_on_no_side() -> None:
    empty = Document("a", b"")
    assert split_documents([empty, Document("b", b"")], 0.5) == ([], [])
    train, held_out = split_documents([*docs(["c", "d", "e"]), empty], 0.5)
    assert "a" not in [d.name for d in (*train, *held_out)]


@pytest.mark.parametrize(
    ("text", "share"), [("line\n" * 100, 0.05), ("ä" * 300, 0.3), ("\n" * 40, 0.9)]
)
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


def test_two_documents_are_cut_both() -> None:
    documents = [Document(name, b"a line\n" * 40) for name in "ab"]
    train, held_out = split_documents(documents, 0.2)
    for side, share in ((train, 0.8), (held_out, 0.2)):
        assert {d.name[0] for d in side} == {"a", "b"}
        assert all(abs(d.size / 280 - share) < 0.05 for d in side)
    read = training_documents(lambda: iter(documents), 0.2)
    assert {d.name for d in read} == {d.name for d in train}
    # One that is too short to be cut is trained on.
    train, held_out = split_documents([documents[0], Document("b", b"x")], 0.2)
    assert "b" in [d.name for d in train] and len(held_out) == 1


def test_conversations_are_never_cut() -> None:
    tokens, mask = np.arange(9), np.arange(9) > 4
    one, two = (Document(name, tokens=tokens, trained=mask) for name in "ab")
    split = split_documents([one, two], 0.05)
    assert [d.name for d in split.held_out] == ["b"] and [d.name for d in split.train] == ["a"]
    with refused():
        split_documents([one], 0.05)
    # Their texts, of which a tokenizer is trained, have no mask.
    texts = [Document(name, b"a line\n" * 40) for name in "ab"]
    read = list(training_documents(lambda: iter(texts), 0.05, divisible=False))
    assert [d.name for d in read] == ["a"] and read[0].data == texts[0].data
    with refused():
        list(training_documents(lambda: iter(texts[:1]), 0.05, divisible=False))


@pytest.mark.parametrize("names", ["a", "ab"])
def test_documents_that_are_too_short_to_be_cut(names: str) -> None:
    with refused():
        split_documents(docs([*names]), 0.05)


def test_two_documents_of_one_name_are_refused() -> None:
    with refused():
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


@pytest.mark.parametrize(("names", "count"), [(["a", "b", "c"], 3), (["a"], 1)])
def test_a_number_that_leaves_no_document_to_train_on(names: list[str], count: int) -> None:
    with refused():
        split_documents(docs(names), count)
    with refused():
        split_mixture([docs(names), []], count)
