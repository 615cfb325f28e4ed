import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.config import RunError, SetpointError, resolve
from setpoint.data.config import Data, Packing, WorkerOptions
from setpoint.data.corpus import Corpus, build_corpus
from setpoint.data.document import Document
from setpoint.data.loader import EvaluationFeed
from setpoint.data.packing import evaluation_rows
from setpoint.data.rows import DocumentRows, cut_rows, training_rows
from setpoint.data.sources.config import Conversations, Random, SourceConfig, Tokens
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.shapes.batch import IGNORE_INDEX, Batch

from ..support.snapshots import refused


def evaluation_batches(
    rows: DocumentRows, *, micro_size: int, limit: int | None = None
) -> list[Batch]:
    feed = EvaluationFeed({"t": (rows, limit)}, micro_size=micro_size)
    return list(feed.batches("t"))


@given(
    texts=st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=6),
    sequence_length=st.integers(1, 12),
    micro_size=st.integers(1, 5),
)
@settings(max_examples=50, deadline=None)
def test_every_token_but_the_first_is_predicted_once_in_order(
    texts: list[bytes], sequence_length: int, micro_size: int
) -> None:
    documents = [Document(str(i), text) for i, text in enumerate(texts)]
    corpus = build_corpus(documents, ByteTokenizer(), side="held_out")
    if len(corpus.tokens) <= sequence_length:
        return
    windows = cut_rows(corpus, sequence_length)
    batches = evaluation_batches(windows, micro_size=micro_size)
    predicted = [t for b in batches for t in b.targets.flatten().tolist() if t != IGNORE_INDEX]
    assert predicted == corpus.tokens[1:].tolist()
    assert sum(b.target_tokens for b in batches) == len(predicted)
    assert sum(b.target_bytes for b in batches) == corpus.byte_count == sum(map(len, texts))
    assert [len(b.inputs) for b in batches[:-1]] == [micro_size] * (len(batches) - 1)
    assert sum(len(b.inputs) for b in batches) == len(windows)


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    method=st.sampled_from(["none", "next_fit", "first_fit_decreasing"]),
    too_long=st.sampled_from(["split", "truncate", "drop"]),
    isolates=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_documents_are_predicted_by_themselves_in_order(
    lengths: list[int], method: Any, too_long: Any, isolates: bool
) -> None:
    """Texts have separators around them; every other document has a mask, so it is complete."""
    size = 12
    texts = [bytes(range(10 * number, 10 * number + n)) for number, n in enumerate(lengths)]
    masks = [np.arange(len(text)) % 2 == 0 if at % 2 else None for at, text in enumerate(texts)]
    documents = [
        Document(str(at), text, trained=mask)
        for at, (text, mask) in enumerate(zip(texts, masks, strict=True))
    ]
    corpus = build_corpus(documents, ByteTokenizer(), side="held_out")
    kept: list[tuple[list[int], list[int]]] = []
    for text, mask in zip(texts, masks, strict=True):
        read, wanted = [256, *text], [*text, 256]
        if mask is not None:
            read = [*text[:-1]]
            wanted = [t if m else IGNORE_INDEX for t, m in zip(text[1:], mask[1:], strict=True)]
        if len(read) > size and too_long == "drop":
            continue
        parts = range(0, len(read) if too_long == "split" and mask is None else 1, size)
        pieces = [(read[at : at + size], wanted[at : at + size]) for at in parts]
        kept += [(a, b) for a, b in pieces if any(t != IGNORE_INDEX for t in b)]
    section = resolve(Packing(method=method, too_long=too_long))
    if not kept:
        with pytest.raises(SetpointError, match=r"none is left in held_out to evaluate on"):
            evaluation_rows(corpus, section, size, isolates=isolates)
        return
    rows = evaluation_rows(corpus, section, size, isolates=isolates)
    batches = evaluation_batches(rows, micro_size=3)
    found: list[tuple[list[int], list[int]]] = []
    for batch in batches:
        shared = isolates and method != "none"
        assert (batch.documents is not None) == shared
        documents = batch.documents if batch.documents is not None else [None] * len(batch.inputs)
        for inputs, targets, numbers in zip(batch.inputs, batch.targets, documents, strict=True):
            if numbers is None:
                last = max(int(targets.ne(IGNORE_INDEX).nonzero().max()), 0)
                found.append((inputs.tolist(), targets.tolist()[: last + 1]))
                continue
            for number in range(int(numbers.max()) + 1):
                mine = numbers == number
                found.append((inputs[mine].tolist(), targets[mine].tolist()))
    for (inputs, targets), (read, wanted) in zip(found, kept, strict=True):
        assert inputs[: len(read)] == read
        assert targets == wanted[: len(targets)]
        assert all(each == IGNORE_INDEX for each in wanted[len(targets) :])
    assert sum(b.target_tokens for b in batches) == sum(t >= 0 for _, w in kept for t in w)
    size_of_targets = sum(0 <= t < 256 for _, wanted in kept for t in wanted)
    assert sum(b.target_bytes for b in batches) == size_of_targets


CHAT, PLAIN, IDS = Conversations(paths=("a.jsonl",)), Random(), Tokens(paths=("a.bin",))


@pytest.mark.parametrize(
    ("method", "trained", "evaluated", "expected"),
    [
        ("concatenate", PLAIN, PLAIN, "concatenate"),
        ("concatenate", PLAIN, CHAT, "none"),
        ("concatenate", CHAT, CHAT, "concatenate"),
        ("next_fit", CHAT, CHAT, "next_fit"),
        ("next_fit", CHAT, PLAIN, "concatenate"),
        ("next_fit", CHAT, IDS, "next_fit"),
    ],
)
def test_a_set_is_read_as_training_reads_its_kind(
    method: Any, trained: SourceConfig, evaluated: SourceConfig, expected: str
) -> None:
    data = resolve(Data(sources=(trained,), packing=Packing(method=method)))
    assert data.packing_of([evaluated]).method == expected


@given(limit=st.integers(1, 19), micro_size=st.integers(1, 4), ranks=st.integers(1, 5))
def test_ranks_divide_the_sequences(limit: int, micro_size: int, ranks: int) -> None:
    """Each is counted once, in batches of which every rank makes as many as the others."""
    corpus = build_corpus([Document("d", bytes(range(100)))], ByteTokenizer(), side="held_out")
    texts = {"t": (cut_rows(corpus, 5), limit)}
    feeds = [
        EvaluationFeed(texts, micro_size=micro_size, data_rank=rank, data_size=ranks)
        for rank in range(ranks)
    ]
    batches = [list(feed.batches("t")) for feed in feeds]
    assert len({len(each) for each in batches}) == 1
    assert all(len(batch.inputs) <= micro_size for each in batches for batch in each)
    counted = [
        row
        for feed, each in zip(feeds, batches, strict=True)
        for row in [row for batch in each for row in batch.inputs.tolist()][: feed.local_count("t")]
    ]
    (whole,) = (batch.inputs for batch in evaluation_batches(texts["t"][0], micro_size=limit)[:1])
    assert sorted(counted) == sorted(whole.tolist())


class Dying(DocumentRows):
    """Rows the fifth of which kills who makes it."""

    def batch_of(self, rows: Any) -> Batch:
        if 4 in rows.tolist():
            os.kill(os.getpid(), signal.SIGKILL)
        return DocumentRows.batch_of(self, rows)


def test_workers_give_the_same_batches_at_each_pass(corpus_of: Callable[..., Corpus]) -> None:
    workers = 2
    texts = {
        name: (cut_rows(corpus_of(text, side=name), 4), limit)
        for name, text, limit in (("a", bytes(range(90)), None), ("b", bytes(range(50)), 3))
    }
    alone = EvaluationFeed(texts, micro_size=2)
    helped = EvaluationFeed(texts, micro_size=2, loader=WorkerOptions(workers, 3))

    def rows(feed: EvaluationFeed, name: str) -> list[object]:
        return [(b.inputs.tolist(), b.targets.tolist(), b.target_bytes) for b in feed.batches(name)]

    try:
        processes: set[int | None] = set()
        for name in ("a", "b", "a", "b"):
            assert rows(helped, name) == rows(alone, name)
            processes |= {process.pid for process in multiprocessing.active_children()}
        assert len(processes) == workers  # from the first pass to the end
        next(helped.batches("a"))  # a pass that is left, and one out of turn
        for name in ("a", "b", "b"):
            assert rows(helped, name) == rows(alone, name)
    finally:
        helped.close()
    assert not multiprocessing.active_children()
    assert rows(helped, "b") == rows(alone, "b")
    helped.close()


def test_a_fault_in_a_worker_names_the_text(corpus_of: Callable[..., Corpus]) -> None:
    windows = cut_rows(corpus_of(bytes(range(90)), side="web"), 4)
    dying = Dying(windows.corpus, 4, numbered=windows.numbered, count=len(windows))
    feed = EvaluationFeed({"web": (dying, None)}, micro_size=2, loader=WorkerOptions(1))
    with pytest.raises(RunError, match="rows of web from t/0"):
        list(feed.batches("web"))
    feed.close()


@pytest.mark.parametrize("isolate", [False, True])
def test_a_stream_of_complete_documents_is_read_as_training_reads_it(isolate: bool) -> None:
    texts = [bytes(range(10 * number, 10 * number + n)) for number, n in enumerate((9, 1, 5, 20))]
    documents = [
        Document(str(at), text, trained=np.ones(len(text), np.bool_))
        for at, text in enumerate(texts)
    ]
    corpus = build_corpus(documents, ByteTokenizer(), side="held_out")
    section = resolve(Packing(method="concatenate", isolate=isolate))
    rows = evaluation_rows(corpus, section, 8)
    trained = training_rows(corpus, 8, isolated=isolate)
    whole, same = rows.batch_of(np.arange(len(rows))), trained.batch_of(np.arange(len(trained)))
    assert (len(rows), len(trained)) == (4, 3)
    for name in ("inputs", "targets", "positions", "documents"):
        ours, theirs = getattr(whole, name), getattr(same, name)
        assert (theirs is None) == (name in ("positions", "documents") and not isolate)
        assert theirs is None or ours[:3].equal(theirs)
    predicted = [t for t in whole.targets.flatten().tolist() if t != IGNORE_INDEX]
    assert predicted == [t for text in texts for t in text[1:]]
    assert len(evaluation_rows(corpus, section, 99)) == 1


def test_a_corpus_below_one_row_is_refused(corpus_of: Callable[..., Corpus]) -> None:
    corpus = corpus_of(b"abc", side="train")  # 5 tokens
    assert len(training_rows(corpus, 4)) == 1
    with refused():
        training_rows(corpus, 5)
