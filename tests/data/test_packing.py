from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.config import SetpointError, resolve
from setpoint.data.config import Packing
from setpoint.data.corpus import Corpus, Parts, build_corpus
from setpoint.data.document import Document
from setpoint.data.order import MixedRows, Sampler
from setpoint.data.packing import (
    COUNTED_GROUPS,
    Packer,
    build_packed,
    first_fit_decreasing,
    next_fit,
    pieces_of,
    require_pieces,
)
from setpoint.data.rows import Cut, DocumentRows, MixedSequences, cut_rows, training_rows
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.shapes.batch import IGNORE_INDEX

from ..support.snapshots import refused

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60)


def corpus_of(lengths: list[int], trained: list[bool] | None = None) -> Corpus:
    """Documents whose bytes say which they are; `trained` says whether all tokens are targets."""
    documents = []
    for number, length in enumerate(lengths):
        text = bytes([65 + number % 60, 97 + number // 60]) * length
        document = Document(f"t/{number:03}", text[:length])
        if trained is not None:
            tokens = np.frombuffer(document.data, np.uint8)
            mask = np.full(length, trained[number])
            document = Document(document.name, tokens=tokens, trained=mask)
        documents.append(document)
    return build_corpus(documents, ByteTokenizer(), side="train")


def packed(
    corpus: Corpus, length: int = 32, seed: int = 3, bucket: int = 4, **section: Any
) -> tuple[DocumentRows, Sampler]:
    section = {"method": "first_fit_decreasing", "group_size": 16, **section}
    if section["method"] != "none":
        section.pop("length_buckets", None)
    elif not section.get("length_buckets"):
        section.pop("group_size")
    rows, cursor = build_packed(
        corpus, resolve(Packing(**section)), length=length, seed=seed, bucket=bucket
    )
    return rows, Sampler([cursor])


def packer_of(sampler: Sampler) -> Packer:
    return cast(Packer, sampler.cursors[0])


def rows_of(rows: Parts) -> list[list[tuple[int, int]]]:
    """(start, length) of the pieces of each row."""
    pieces = list(zip(rows.starts.tolist(), rows.lengths.tolist(), strict=True))
    return [
        pieces[first:last]
        for first, last in zip([0, *rows.ends[:-1].tolist()], rows.ends.tolist(), strict=True)
    ]


def epoch_of(sampler: Sampler) -> list[list[tuple[int, int]]]:
    packer = packer_of(sampler)
    return [row for n in range(packer.groups) for row in rows_of(packer.group(0, n))]


def plain_first_fit_decreasing(lengths: list[int], size: int) -> list[list[int]]:
    bins: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        found = next((each for each in bins if sum(each) + length <= size), None)
        if found is None:
            bins.append(found := [])
        found.append(length)
    return bins


def by_bin(lengths: list[int], bins: np.ndarray[Any, Any]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(int(bins.max()) + 1)]
    for length, number in zip(lengths, bins.tolist(), strict=True):
        found[number].append(length)
    return found


@given(LENGTHS, st.integers(40, 90))
@settings(max_examples=50, deadline=None)
def test_bins_are_those_of_the_plain_algorithms(lengths: list[int], size: int) -> None:
    found = by_bin(lengths, first_fit_decreasing(np.array(lengths), size))
    expected = plain_first_fit_decreasing(lengths, size)
    assert [sorted(each, reverse=True) for each in found] == expected
    following: list[list[int]] = [[]]
    for length in lengths:
        if sum(following[-1]) + length > size:
            following.append([])
        following[-1].append(length)
    assert by_bin(lengths, next_fit(np.array(lengths), size)) == following
    # The bound of Dosa (2007) on the fewest bins there are, of which next-fit has at least as many.
    assert 9 * len(found) <= 11 * len(following) + 6


@given(
    lengths=LENGTHS,
    size=st.integers(3, 50),
    group=st.integers(1, 70),
    method=st.sampled_from(["next_fit", "first_fit_decreasing", "none"]),
    buckets=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=50, deadline=None)
def test_nothing_is_lost_or_twice_and_no_row_too_full(
    lengths: list[int], size: int, group: int, method: str, buckets: bool, seed: int
) -> None:
    corpus = corpus_of(lengths)
    sequences, sampler = packed(
        corpus, size, seed, method=method, group_size=group, length_buckets=buckets
    )
    rows = epoch_of(sampler)
    assert all(sum(length for _, length in row) <= size for row in rows)
    read = [token for row in rows for start, n in row for token in range(start, start + n)]
    assert sorted(read) == list(range(len(corpus.tokens) - 1))
    if packer_of(sampler).groups <= COUNTED_GROUPS:
        assert len(sequences) == len(rows)
    taken = sampler.take(len(rows))
    assert rows_of(taken) == rows and sampler.epoch == 1.0
    batch = sequences.batch_of(taken)
    assert (batch.tokens, batch.target_tokens) == (len(read), len(read))
    assert batch.target_bytes == corpus.byte_count
    again = sorted(piece for row in rows_of(sampler.take(len(rows))) for piece in row)
    if method == "none":
        assert again == sorted(piece for row in rows for piece in row)


@given(LENGTHS, st.integers(3, 50), st.sampled_from(["packed", "training", "evaluation"]))
@settings(max_examples=50, deadline=None)
def test_labels_never_cross_a_document(lengths: list[int], size: int, kind: str) -> None:
    corpus = corpus_of(lengths)
    if kind == "packed":
        sequences, sampler = packed(corpus, size)
        batch = sequences.batch_of(sampler.take(len(sequences)))
    else:
        cut = cut_rows if kind == "evaluation" else training_rows
        windows = cut(corpus, min(size, len(corpus.tokens) - 1), isolated=True)
        batch = windows.batch_of(np.arange(len(windows)))
    assert batch.documents is not None and batch.positions is not None
    separator = corpus.separator
    for inputs, targets, positions, documents in zip(
        batch.inputs, batch.targets, batch.positions, batch.documents, strict=True
    ):
        for place, target in enumerate(targets.tolist()):
            if target == IGNORE_INDEX:
                # The last separator of an evaluated text is read, and nothing follows it.
                assert positions[place] == documents[place] == -1 or kind == "evaluation"
                continue
            token, document = int(inputs[place]), int(documents[place])
            if place and document == documents[place - 1]:
                assert positions[place] == positions[place - 1] + 1
                assert token != separator  # it begins a document, and stands nowhere else
            else:
                assert positions[place] == 0
                assert place == 0 or document == documents[place - 1] + 1
            if token != separator and target != separator and target != token:
                assert {token, target} in [{65 + n % 60, 97 + n // 60} for n in range(60)]


def test_the_rows_of_a_seed_never_change() -> None:
    # Checkpoints hold a place among these rows: if they changed, old runs could not be resumed.
    corpus = corpus_of([9, 4, 20, 13, 7, 2, 30, 11])
    found = {
        method: [
            [int(np.searchsorted(corpus.starts, start + 1)) for start, _ in row]
            for row in epoch_of(packed(corpus, 32, 1234, method=method)[1])
        ]
        for method in ("next_fit", "first_fit_decreasing", "none")
    }
    assert found == {
        "next_fit": [[7, 3], [2, 0], [6], [1, 5, 4]],
        "first_fit_decreasing": [[7, 3, 1], [2, 0], [5, 4], [6]],
        "none": [[7], [3], [2], [0], [6], [1], [5], [4]],
    }


@pytest.mark.parametrize(
    ("policy", "done", "lengths"),
    [
        ("split", "split", [10, 10, 6, 5]),
        ("truncate", "cut (16 tokens in no row)", [10, 5]),
        ("drop", "left out (26 tokens in no row)", [5]),
    ],
)
def test_documents_longer_than_a_row(policy: str, done: str, lengths: list[int]) -> None:
    corpus = corpus_of([25, 4])
    pieces = pieces_of(corpus, 10, policy)
    assert pieces.lengths.tolist() == lengths
    assert pieces.left_out == 31 - sum(lengths)
    said = packed(corpus, 10, too_long=policy)[0].note
    assert said.endswith(f", 1 of 2 documents are longer than 10 tokens: {done}")


def test_a_document_that_is_too_long_is_named() -> None:
    with refused():
        pieces_of(corpus_of([4, 25, 30]), 10, "error")
    with refused():
        require_pieces(pieces_of(corpus_of([30]), 10, "drop"), corpus_of([30]), 10)


def test_documents_without_targets_are_left_out() -> None:
    corpus = corpus_of([5, 6, 7, 25, 1], [True, False, True, False, True])
    pieces = pieces_of(corpus, 10, "split")
    assert pieces.lengths.tolist() == [4, 6] and pieces.without_targets == 3
    sequences, sampler = packed(corpus, 10)
    assert "3 of 5 conversations have no trained token within 10: dropped" in sequences.note
    batch = sequences.batch_of(sampler.take(len(sequences)))
    assert batch.target_tokens == 10
    with refused():
        corpus = corpus_of([5], [False])
        require_pieces(pieces_of(corpus, 10, "split"), corpus, 10)


def test_complete_documents_keep_their_start_where_text_is_split() -> None:
    """No answer is trained without its question; a row of n tokens reads all but the last."""
    tokens = np.arange(30)
    late = Document("c/late", tokens=tokens, trained=tokens >= 25)
    early = Document("c/early", tokens=tokens, trained=(tokens > 5) & (tokens < 8))
    fits = Document("c/fits", tokens=tokens[:11], trained=tokens[:11] > 8)
    text = Document("t", b"x" * 15)
    corpus = build_corpus([late, text, early, fits], ByteTokenizer(), side="train")
    sequences, sampler = packed(corpus, 10, method="none")
    batch = sequences.batch_of(sampler.take(4))
    rows = sorted(batch.inputs.tolist())
    assert rows == [list(range(10))] * 2 + [[120] * 6 + [256] * 4, [256] + [120] * 9]
    assert (batch.targets != IGNORE_INDEX).sum(1).tolist().count(2) == 2
    assert sequences.note.endswith(
        "2 of 4 documents are longer than 10 tokens: cut (38 tokens in no row), 1 of 4 documents "
        "are longer than 10 tokens: split, 1 of 4 documents have no trained token within 10: "
        "dropped"
    )


def concatenated(corpus: Corpus, length: int) -> DocumentRows:
    """Rows without a token between them, whether documents are complete or not."""
    cut = Cut(corpus, length, stride=length, divided=True)
    return DocumentRows(corpus, length, numbered=cut, count=cut.count, isolated=True)


@given(LENGTHS, st.integers(1, 20), st.data())
def test_concatenated_rows_read_each_document_without_its_last_token(
    lengths: list[int], length: int, data: st.DataObject
) -> None:
    """Rows end to end are what is read of the documents end to end, with the targets one on."""
    complete = [data.draw(st.booleans()) for _ in lengths]
    documents: list[Document] = []
    read: list[tuple[int, int]] = []
    for number, (size, whole) in enumerate(zip(lengths, complete, strict=True)):
        tokens = np.arange(size) + number * 3 % 200
        mask = np.arange(size) % 2 == 1
        documents.append(Document(f"t/{number:03}", tokens=tokens, trained=mask if whole else None))
        targets = np.where(mask, tokens, IGNORE_INDEX) if whole else tokens
        if whole:
            read += zip(tokens[:-1].tolist(), targets[1:].tolist(), strict=True)
        else:
            read += zip([256, *tokens.tolist()], [*tokens.tolist(), 256], strict=True)
    corpus = build_corpus(documents, ByteTokenizer(), side="train")
    count = len(read) // length
    if not count:
        with pytest.raises(SetpointError, match="tokens for one row"):
            concatenated(corpus, length)
        return
    sequences = concatenated(corpus, length)
    assert len(sequences) == count
    batch = sequences.batch_of(np.arange(count)[::-1])
    pairs = zip(
        batch.inputs.flip(0).flatten().tolist(), batch.targets.flip(0).flatten().tolist(),
        strict=True,
    )  # fmt: skip
    assert list(pairs) == read[: count * length]
    names = sequences.names_in(np.arange(count))
    assert [name for row in names for name in row[:-1]] == [
        name.name
        for name, size, whole in zip(documents, lengths, complete, strict=True)
        for _ in range(size - 1 if whole else size + 1)
    ][: count * length]


def test_buckets_hold_rows_of_similar_length() -> None:
    lengths = np.random.default_rng(0).permutation(np.arange(1, 33)).tolist()
    rows = epoch_of(packed(corpus_of(lengths), 40, method="none", group_size=35,
                           length_buckets=True)[1])  # fmt: skip
    found = [row[0][1] for row in rows]
    buckets = [found[n : n + 4] for n in range(0, 32, 4)]
    assert sorted(buckets) == [list(range(n, n + 4)) for n in range(2, 34, 4)]
    assert buckets != sorted(buckets)


@pytest.mark.parametrize(("multiple", "width"), [(None, 64), (8, 24), (1, 21), (100, 64)])
def test_padding(multiple: int | None, width: int) -> None:
    sequences, sampler = packed(corpus_of([20, 3]), 64, method="none", pad_to_multiple_of=multiple)
    batch = sequences.batch_of(sampler.take(2))
    assert batch.inputs.shape == (2, width) and batch.tokens == 25
    assert batch.documents is None  # a row has one
    said = "2 rows, 80.5% padding" if multiple is None else "2 rows of 12 tokens on average"
    assert said in sequences.note


def test_the_documents_of_a_row() -> None:
    corpus = corpus_of([4, 7, 2])
    sequences, sampler = packed(corpus, 32)
    rows = sampler.take(1)
    named = {0: "t/000", 5: "t/001", 13: "t/002"}
    parts = list(zip(rows.starts.tolist(), rows.lengths.tolist(), strict=True))
    assert sorted(parts) == [(0, 5), (5, 8), (13, 3)]
    names = [named[start] for start, length in parts for _ in range(length)]
    assert sequences.names_in(rows) == [[*names, *[None] * (33 - 16)]]
    assert all(name in sequences.describe(rows) for name in named.values())


def test_rows_of_many_groups_are_counted_from_some() -> None:
    corpus = corpus_of([5, 9, 14, 3] * 100)
    sequences, sampler = packed(corpus, 16, group_size=4)
    assert packer_of(sampler).groups > COUNTED_GROUPS
    assert len(sequences) == pytest.approx(len(epoch_of(sampler)), rel=0.1)
    assert sequences.note.startswith(f"about {len(sequences):,} rows, ")


def test_padding_of_an_estimate_is_never_negative() -> None:
    lengths = np.random.default_rng(1).choice([15, 7], 2800).tolist()
    sequences, _ = packed(corpus_of(lengths), 16, 2, group_size=40)
    assert sequences.note == "about 2,092 rows, 0.0% padding"  # they hold 2,094 x 16 tokens


@pytest.mark.parametrize(
    "change",
    [{"method": "next_fit"}, {"group_size": 7}, {"too_long": "drop"}, {"length": 31}, {"seed": 4}],
    ids=str,
)
def test_a_state_of_another_packing_is_refused(change: dict[str, Any]) -> None:
    corpus = corpus_of(list(range(1, 40)))
    _, old = packed(corpus)
    old.take(5)
    _, new = packed(corpus, **change)
    with refused():
        new.load_state_dict(old.state_dict())
    assert new.epoch == 0


def test_states_that_are_no_place_are_refused() -> None:
    corpus = corpus_of(list(range(1, 40)))
    _, sampler = packed(corpus)
    state = sampler.state_dict()["sources"][""]

    def load(**changes: Any) -> None:
        sampler.load_state_dict({"sources": {"": {**state, **changes}}})

    for wrong in ({"row": 99}, {"group": 99}, {"epoch": -1}, {"row": True}, {"group": "1"}):
        with refused():
            load(**wrong)
    with refused():
        load(more=1)
    with refused():
        load(method="concatenate")


def test_other_data_goes_on_near_the_place() -> None:
    _, old = packed(corpus_of(list(range(1, 40)) * 3))
    while old.state_dict()["sources"][""]["group"] < 6:
        old.take(1)
    _, new = packed(corpus_of(list(range(1, 40))))
    new.load_state_dict(old.state_dict(), other_data=True)
    assert new.epoch == 1.0


def test_a_mixture_pads_its_sources_to_one_width() -> None:
    members = [
        packed(corpus_of([length] * 9), 32, method="none", pad_to_multiple_of=1)
        for length in (5, 20)
    ]
    mixture = MixedSequences(("a", "b"), [sequences for sequences, _ in members])
    rows = tuple(sampler.take(2) for _, sampler in members)
    batch = mixture.batch_of(MixedRows(np.array([1, 0, 0, 1]), rows))
    assert batch.inputs.shape == batch.targets.shape == (4, 21)
    assert (batch.targets != IGNORE_INDEX).sum(1).tolist() == [21, 6, 6, 21]
