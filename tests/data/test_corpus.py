import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import resolve
from setpoint.data.config import Bytes, Data
from setpoint.data.corpus import Corpus, PieceRow, build_corpus, files_digest, gather, slices
from setpoint.data.document import Document
from setpoint.data.reading import documents_of, split_position
from setpoint.data.rows import cut_rows
from setpoint.data.sides import named_corpus
from setpoint.data.sources.config import Random, SourceConfig, Text
from setpoint.data.tokenizer import ByteTokenizer

from ..support.snapshots import refused
from .in_memory import in_memory


def test_documents_lie_between_separators(corpus_of: Callable[..., Corpus]) -> None:
    corpus = corpus_of(b"ab", b"c")
    assert corpus.tokens.tolist() == [256, 97, 98, 256, 99, 256]
    assert corpus.tokens.dtype == np.uint16
    assert corpus.byte_count == 3
    assert corpus.vocab_size == 257
    assert [file.name for file in corpus.files] == ["t/0", "t/1"]


def test_digest_changes_with_name_content_mask_order_and_tokenizer() -> None:
    tokens, mask = np.array([3, 4]), np.array([True, False])
    a, b = Document("a", b"abc").record(), Document("b", b"abc").record()
    c, d = (Document("c", tokens=tokens, trained=each).record() for each in (None, mask))
    assert a == ("a", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    digests = [
        files_digest("bytes", [a, b]),
        files_digest("bytes", [b, a]),
        files_digest("bytes", [a._replace(size=2), b]),
        files_digest("bytes", [a._replace(name="c"), b]),
        files_digest("other", [a, b]),
        files_digest("bytes", [c]),
        files_digest("bytes", [d]),
    ]
    assert len(set(digests)) == len(digests)
    assert files_digest("bytes", [a, b]) == digests[0]


def test_sources_are_joined_split_and_the_same_each_time(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(f"text number {number}")
    config = Data(
        sources=(Random(documents=20, length=50), Text(paths=(f"{tmp_path}/*.txt",))), held_out=0.3
    )
    tokenizer = Bytes().build()
    (train,), held_out = in_memory(config, tokenizer)
    assert (train.side, held_out.side) == ("train", "held_out")
    names = {file.name for file in [*train.files, *held_out.files]}
    assert names == {f"random/{i:06d}" for i in range(20)} | {f"text/{i}.txt" for i in range(20)}
    again = in_memory(config, tokenizer)
    assert again.held_out is not None
    assert [c.digest for c in (*again.train, again.held_out)] == [train.digest, held_out.digest]
    assert np.array_equal(again.train[0].tokens, train.tokens)
    assert json.loads(json.dumps(train.files)) == [list(file) for file in train.files]


def test_equal_digests_mean_equal_tokens_wherever_the_files_lie(tmp_path: Path) -> None:
    digests: list[list[str]] = []
    for place in ("here", "far/away"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        for number in range(10):
            (folder / f"{number}.txt").write_text(f"text number {number}")
        config = Data(sources=(Text(paths=(f"{folder}/*.txt",)),), held_out=0.4)
        (train,), held_out = in_memory(config, ByteTokenizer())
        assert held_out is not None
        digests.append([train.digest, held_out.digest])
    assert digests[0] == digests[1]


def test_a_named_text_is_all_that_its_sources_hold(tmp_path: Path) -> None:
    for name, text in (("a", "first"), ("b", ""), ("c", "third")):
        (tmp_path / f"{name}.txt").write_text(text)
    sources = (Text(paths=(f"{tmp_path}/*.txt",)), Random(documents=3, length=4))
    corpus = named_corpus("web", sources, ByteTokenizer(), where="x.sources")
    assert corpus.side == "web"
    names = [file.name for file in corpus.files]
    assert set(names) == {"text/a.txt", "text/c.txt", *(f"random/{i:06d}" for i in range(3))}
    assert names == sorted(names, key=split_position)
    assert corpus.byte_count == 5 + 5 + 12 and len(corpus.tokens) == 22 + 6
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "c.txt").write_text("")
    with refused():
        named_corpus("web", sources[:1], ByteTokenizer(), where="x.sources")
    with refused():
        missing = (Text(paths=(f"{tmp_path}/none.txt",)),)
        named_corpus("web", missing, ByteTokenizer(), where="x.sources")


def test_a_row_knows_its_source() -> None:
    """That of its first target, where it runs across documents; by the longest name."""
    sources = (Random(name="a", documents=9, length=30), Random(name="a-b", documents=9, length=30))
    (train,), held_out = in_memory(Data(sources=sources, held_out=0.3), ByteTokenizer())
    for corpus in (train, held_out):
        assert corpus.sources == ("a", "a-b")
        names = [file.name for file in corpus.files]
        assert [corpus.sources[i] for i in corpus.source] == [n.split("/")[0] for n in names]
        assert corpus.starts.tolist() == [1 + 31 * i for i in range(len(names))]
        assert (corpus.tokens[corpus.starts - 1] == corpus.separator).all()
        windows = cut_rows(corpus, 10)
        found = windows.batch_of(np.arange(len(windows))).source
        assert found is not None
        expected = [corpus.source[10 * i // 31] for i in range(len(windows))]
        assert found.tolist() == expected
        assert 0 < sum(expected) < len(expected)
    alone = in_memory(Data(sources=sources[:1]), ByteTokenizer()).train[0]
    assert alone.sources == ("a",) and not alone.source.any()


class Whole(ByteTokenizer):
    """One whose tokens depend on the whole text, as those of most do."""

    takes_pieces = False


def test_a_long_document_is_tokenized_in_pieces_where_that_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    documents = [Document("short", b"abc"), Document("long", bytes(range(40))), Document("no", b"")]
    plain = build_corpus(documents, ByteTokenizer(), side="x")
    monkeypatch.setattr("setpoint.data.corpus.PIECE", 16)
    monkeypatch.setattr("setpoint.data.corpus.LARGE", 40)
    shown: list[tuple[str, int, int | None, bool]] = []

    def show(what: str, done: int, total: int | None, now: bool = False) -> None:
        shown.append((what, done, total, now))

    corpus = build_corpus(documents, ByteTokenizer(), side="x", show=show)
    assert corpus.tokens.tolist() == plain.tokens.tolist()
    assert {each[0] for each in shown} == {"tokenizing x, bytes"}
    assert sorted({each[1] for each in shown}) == [0, 3, 19, 35, 43]
    del shown[:]
    build_corpus(documents, Whole(), side="x", show=show)
    # What cannot be cut is named with its size before it is begun.
    assert shown[2] == ("tokenizing x, bytes (document 2 of 3 has 0 MB)", 3, 43, True)
    assert [each[3] for each in shown].count(True) == 1


class Given:
    """A source that gives what the test wants."""

    result: object = None

    class Config(SourceConfig):
        name: str = "given"

    def __init__(self, config: SourceConfig, *, where: str) -> None: ...

    def documents(self) -> object:
        return self.result


@pytest.mark.parametrize(("name", "data"), [("x", b"text"), ("given/x", "text")])
def test_documents_that_do_not_fit_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, data: Any
) -> None:
    monkeypatch.setattr(Given, "result", [Document(name, data)])
    with refused():
        list(documents_of(Given.Config(), "data.sources.0", ByteTokenizer()))


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(Document("given/a", tokens=np.array([3, 257])), id="vocabulary"),
        pytest.param(
            Document("given/a", tokens=np.array([3]), trained=np.array([True, True])), id="mask"
        ),
    ],
)
def test_tokens_that_do_not_fit_are_refused(
    monkeypatch: pytest.MonkeyPatch, document: Document
) -> None:
    def tokenized(self: Given, tokenizer: ByteTokenizer) -> list[Document]:
        return [document]

    monkeypatch.setattr(Given, "tokenized", tokenized, raising=False)
    with refused():
        list(documents_of(Given.Config(), "data.sources.0", ByteTokenizer()))


def mixture(folder: Path, *names: str) -> Data:
    sources = [Text(name=name, paths=(f"{folder}/{name}.txt",), weight=1.0) for name in names]
    return resolve(Data(sources=tuple(sources), held_out=0.2))


def test_a_source_of_a_mixture_without_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a line\n" * 50)
    (tmp_path / "b.txt").touch()
    with refused():
        in_memory(mixture(tmp_path, "a", "b"), ByteTokenizer())


PARTS = st.lists(st.lists(st.integers(0, 60000), max_size=7), min_size=1, max_size=5)


@given(PARTS, st.data())
def test_reads_as_one_array(parts: list[list[int]], data: st.DataObject) -> None:
    row = PieceRow.joined([np.array(part, np.uint16) for part in parts])
    whole = np.concatenate([np.array(part, np.uint16) for part in parts])
    assert len(row) == len(whole)
    a, b = data.draw(st.integers(-30, 30)), data.draw(st.integers(-30, 30))
    assert row[a:b].tolist() == whole[a:b].tolist()
    if len(whole):
        starts = np.array(data.draw(st.lists(st.integers(0, len(whole) + 3), min_size=1)))
        width = data.draw(st.integers(1, 9))
        wanted = whole[np.minimum(starts[:, None] + np.arange(width), len(whole) - 1)]
        assert gather(row, starts, width).tolist() == wanted.tolist()
        ranges = data.draw(st.lists(st.tuples(*[st.integers(0, len(whole))] * 2), min_size=1))
        first, last = np.array([sorted(each) for each in ranges]).T
        found = [each.tolist() for each in slices(row, first, last)]
        assert found == [whole[a:b].tolist() for a, b in zip(first, last, strict=True)]
