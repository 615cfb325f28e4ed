"""Streams: the rows of an oracle, in bounded memory, and the same after every resume."""

import gc
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from setpoint.config import SetpointError, resolve
from setpoint.data.config import Data, Mixture, Packing, WorkerOptions
from setpoint.data.document import Document, FileRecord, Place, Placed
from setpoint.data.lanes import LEAST_AHEAD, Ahead, LaneCursor, build_streamed
from setpoint.data.loader import Feed
from setpoint.data.order import Sampler, describe_position, merged_state, shuffled
from setpoint.data.reading import split_position
from setpoint.data.rows import DocumentRows
from setpoint.data.sides import hold_out, open_streams
from setpoint.data.sources.config import Filter, HubDataset, Random, Text
from setpoint.data.stream import Stream
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.shapes.batch import IGNORE_INDEX, Batch, Count

from ..support.snapshots import refused
from .row_files import write_rows

S, SEED, BUFFER = 24, 5, 6
TOKENIZER = ByteTokenizer()
NEXT_FIT = Packing(method="next_fit")
FILES = 3
TEXTS = [
    [f"file {file} row {row} " + "xyz" * ((row * 7 + file) % 11) for row in range(8 + file)]
    for file in range(FILES)
]


# The suffixes of files of each kind.
KINDS = {
    "jsonl": ".jsonl", "gzip": ".jsonl.gz", "csv": ".csv", "parquet": ".parquet",
    "arrow": ".arrow", "divided": ".txt", "whole": ".md", "hub": ".parquet",
}  # fmt: skip


def section_of(kind: str, folder: Path) -> Text | HubDataset:
    folder.mkdir(exist_ok=True)
    suffix = KINDS[kind]
    for file, texts in enumerate(TEXTS):
        path = folder / f"{file}{suffix}"
        if kind == "divided":
            path.write_text("\n--\n".join(texts))
        elif kind == "whole":
            for row, text in enumerate(texts):
                path.with_name(f"{file}-{row:02}.md").write_text(text)
        else:
            write_rows(path, [{"n": n, "text": text} for n, text in enumerate(texts)], group=4)
        if kind == "jsonl":  # a blank line is counted
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join([*lines[:4], "\n", *lines[4:]]))
    if kind == "hub":
        return HubDataset(path=str(folder), streaming=True)
    separator = "\n--\n" if kind == "divided" else None
    return Text(paths=(f"{folder}/*{suffix}",), streaming=True, separator=separator)


def stream_of(section: Any, held_out: float = 0.0, buffer: int = BUFFER) -> Stream:
    (stream,) = open_streams(
        resolve(Data(sources=(section,), held_out=held_out, shuffle_buffer=buffer)), TOKENIZER
    )
    return stream


def open_stream(
    section: Any, method: str = "concatenate", held_out: float = 0.0, **packing: Any
) -> tuple[DocumentRows, Sampler]:
    stream = stream_of(section, held_out)
    return streamed(stream, resolve(Packing(**{"method": method, **packing})))


def streamed(
    stream: Stream, packing: Packing, step_rows: int = 1, length: int = S
) -> tuple[DocumentRows, Sampler]:
    rows, cursor = build_streamed(stream, packing, length=length, seed=SEED)
    return rows, Sampler([cursor], step_rows=step_rows)


def take(pair: tuple[DocumentRows, Sampler], count: int) -> list[list[list[int]]]:
    """Inputs and targets of rows, without padding."""
    sequences, sampler = pair
    return rows_of(sequences.batch_of(sampler.take(count)))


def rows_of(batch: Batch) -> list[list[list[int]]]:
    found = []
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        have = len(targets)
        while targets[have - 1] == IGNORE_INDEX:
            have -= 1
        found.append([inputs[:have], targets[:have]])
    return found


def oracle_documents(
    parts: Sequence[Sequence[str]], name: str, epoch: int, buffer: int = BUFFER
) -> list[str]:
    """The texts of an epoch in the order that the documentation describes."""
    order = shuffled(f"parts/{SEED}/{name}/{epoch}", len(parts), np.arange(len(parts)))
    texts = [text for part in order.tolist() for text in parts[part]]
    found: list[str] = []
    for number, first in enumerate(range(0, len(texts), buffer)):
        block = texts[first : first + buffer]
        key = f"blocks/{SEED}/{name}/{epoch}/{number}"
        found += [block[i] for i in shuffled(key, len(block), np.arange(len(block))).tolist()]
    return found


def oracle_rows(
    parts: Sequence[Sequence[str]], name: str, epochs: int, buffer: int = BUFFER
) -> list[list[list[int]]]:
    """Rows of epochs, each cut from all of its documents at once."""
    rows: list[list[list[int]]] = []
    for epoch in range(epochs):
        tokens = [256]
        for text in oracle_documents(parts, name, epoch, buffer):
            tokens += [*text.encode(), 256]
        windows = [tokens[at : at + S + 1] for at in range(0, len(tokens) - S, S + 1)]
        rows += [[window[:-1], window[1:]] for window in windows]
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_all_documents_at_once_and_resume_anywhere(
    kind: str, tmp_path: Path
) -> None:
    section = section_of(kind, tmp_path / "data")
    parts = [[text] for texts in TEXTS for text in texts] if kind == "whole" else TEXTS
    expected = oracle_rows(parts, section.name, epochs=2)
    whole = open_stream(section)
    assert take(whole, len(expected)) == expected
    assert whole[1].epoch == 2.0 and len(whole[1].take(0)) == 0
    first, step = open_stream(section), 1 if kind in ("jsonl", "parquet", "divided") else 7
    for done in range(0, len(expected) - 3, step):
        again = open_stream(section)
        again[1].load_state_dict(json.loads(json.dumps(first[1].state_dict())))
        assert take(again, 3) == expected[done : done + 3], done
        again[1].close()
        take(first, step)
    first[1].close()
    whole[1].close()


@pytest.mark.parametrize(
    ("method", "packing"),
    [
        ("concatenate", {"isolate": True}),
        ("next_fit", {"group_size": 4}),
        ("first_fit_decreasing", {"group_size": 4, "too_long": "drop"}),
        ("none", {"too_long": "truncate", "pad_to_multiple_of": 8}),
    ],
)
def test_packed_rows_hold_each_document_once_and_resume_at_each_row(
    method: str, packing: dict[str, Any], tmp_path: Path
) -> None:
    section = section_of("jsonl", tmp_path / "data")
    whole = open_stream(section, method, **packing)
    rows: list[Any] = []
    seen: list[bytes] = []
    while whole[1].epoch < 2:
        state = whole[1].state_dict()
        taken = whole[1].take(1)
        batch = whole[0].batch_of(taken)
        assert batch.documents is not None or method == "none"
        if whole[1].epoch < 1:
            seen += texts_in(batch)
        rows.append((state, rows_of(batch)[0], batch.documents))
    for done, (state, _, _) in enumerate(rows):
        again = open_stream(section, method, **packing)
        again[1].load_state_dict(json.loads(json.dumps(state)))
        found = take(again, min(2, len(rows) - done))
        assert found == [row for _, row, _ in rows[done : done + 2]]
        again[1].close()
    if method != "concatenate" and packing.get("too_long", "split") == "split":
        short = [text.encode() for texts in TEXTS for text in texts if len(text) < S]
        assert sorted(text for text in seen if text in short) == sorted(short)
    whole[1].close()


def texts_in(batch: Batch) -> list[bytes]:
    """The documents of packed rows, as far as they are whole."""
    found: list[bytes] = []
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        piece: list[int] = []
        for source, target in zip(inputs, targets, strict=True):
            if target == IGNORE_INDEX:
                break
            if source == 256:
                piece = []
            if target == 256:
                found.append(bytes(piece))
            elif target < 256:
                piece.append(target)
    return found


def lanes_of(feed: Feed | Sampler) -> dict[str, Any]:
    return feed.state_dict()["sources"][""]["lanes"]


def count_all(batch: Batch) -> Count:
    return Count(batch.tokens, batch.target_tokens, float(batch.target_tokens))


def test_groups_divide_the_rows_of_a_stream_anew_at_any_step(tmp_path: Path) -> None:
    """Where a group may take any rows, each knows where those of all others are."""
    section = section_of("jsonl", tmp_path / "data")
    one, *feeds = (
        Feed(*open_stream(section), count_all, micro_size=1, accumulation=4, divides=True)
        for _ in range(3)
    )
    for groups in (2, 1, 2):
        for group, feed in enumerate(feeds):
            feed.divide(min(group, groups - 1), groups)
        steps = [
            [row for b in each.take().batches for row in rows_of(b)] for each in feeds[:groups]
        ]
        if groups == 1:
            feeds[1].load_state_dict(json.loads(json.dumps(feeds[0].state_dict())))
        expected = [row for batch in one.take().batches for row in rows_of(batch)]
        assert sorted(chain.from_iterable(steps)) == sorted(expected)
    assert feeds[0].state_dict() == feeds[1].state_dict() == one.state_dict()
    for each in (one, *feeds):
        each.close()


class Together:
    """Ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.size, self.values = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def rank(self, number: int) -> Any:
        def all_of(value: Any) -> list[Any]:
            self.values[number] = value
            self.barrier.wait()
            found = list(self.values)
            self.barrier.wait()
            return found

        return SimpleNamespace(rank=number, size=self.size, all_of=all_of)

    def run(self, act: Callable[[int, Any], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(act, range(self.size), map(self.rank, range(self.size))))


@pytest.mark.parametrize(("ranks", "method"), [(2, "first_fit_decreasing"), (4, "concatenate")])
def test_ranks_tokenize_parts_of_what_they_all_read(
    ranks: int, method: Any, tmp_path: Path
) -> None:
    """In the order of the files each document is tokenized once, and rows are those of one rank."""
    texts = [f"row {n} " + "words " * (n % 9) + "x" * 3000 * (n % 97 == 3) for n in range(1500)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    encoded: list[int] = []

    class Counting(ByteTokenizer):
        def encode(self, data: bytes) -> Any:
            if b"row 1400 " in data and broken:
                raise SetpointError("row 1400 is not to be had")
            encoded.append(len(data))
            return super().encode(data)

    broken: list[bool] = []
    section = Text(paths=(f"{tmp_path}/a.jsonl",), streaming=True)
    data = resolve(Data(sources=(section,), held_out=0.0, shuffle=False))
    (stream,) = (replace(each, buffer=100) for each in open_streams(data, Counting()))
    sized: dict[str, Any] = {} if method == "concatenate" else {"group_size": 30}
    packing = resolve(Packing(method=method, **sized))

    def feed(rank: int, size: int, together: Any, state: Any = None) -> Feed:
        rows, cursor = build_streamed(stream, packing, length=64, seed=SEED, ranks=together)
        made = Feed(
            rows, Sampler([cursor]), count_all, micro_size=1, accumulation=16 // size,
            data_rank=rank, data_size=size,
        )  # fmt: skip
        if state is not None:
            made.load_state_dict(json.loads(json.dumps(state)))
        return made

    def rows(made: Feed, steps: int) -> list[list[Any]]:
        return [[r for b in made.take().batches for r in rows_of(b)] for _ in range(steps)]

    one = feed(0, 1, None)
    first, state, rest = rows(one, 60), one.state_dict(), rows(one, 12)
    one.close()
    used = sum(len(row[0]) for row in chain(*first))
    encoded.clear()

    def train(rank: int, together: Any) -> Any:
        made = feed(rank, ranks, together)
        before = rows(made, 60)
        reached = made.state_dict()
        made.close()
        return before, reached

    found = Together(ranks).run(train)
    for step, expected in enumerate(first):
        assert expected == [r for m in range(16 // ranks) for f in found for r in [f[0][step][m]]]
    assert all(reached == state for _, reached in found)
    assert sum(encoded) / used <= 1.2

    def resumed(rank: int, together: Any) -> Any:
        made = feed(rank, ranks, together, state)
        try:
            return rows(made, 12 + 30 * bool(broken))
        except SetpointError as error:
            return str(error)
        finally:
            made.close()

    found = Together(ranks).run(resumed)
    for step, expected in enumerate(rest):
        assert expected == [r for m in range(16 // ranks) for f in found for r in [f[step][m]]]
    broken.append(True)
    assert all("row 1400 is not" in message for message in Together(ranks).run(resumed))


def test_files_are_dealt_where_there_are_enough(tmp_path: Path) -> None:
    """Each document comes once an epoch, on whatever rank, and a rank reads its own files."""
    section = section_of("jsonl", tmp_path / "data")
    stream = stream_of(section)
    assert [stream.groups(lanes) for lanes in (1, 2, 3, 4, 6, 8)] == [1, 2, 3, 2, 3, 2]
    for groups in (2, 3):
        epochs = [
            [stream.order_of_group(SEED, group, groups, epoch) for group in range(groups)]
            for epoch in range(6)
        ]
        assert all(sorted(chain.from_iterable(parts)) == list(range(FILES)) for parts in epochs)
        read = [sum(len(parts[group]) for parts in epochs) for group in range(groups)]
        assert len(set(read)) == 1  # over epochs each group reads as many
    sequences, sampler = streamed(stream, resolve(NEXT_FIT), 6)
    seen: list[bytes] = []
    while sampler.epoch < 1:
        state = sampler.state_dict()
        seen += texts_in(sequences.batch_of(sampler.take(6)))
        _, again = streamed(stream, resolve(NEXT_FIT), 2)
        again.load_state_dict(json.loads(json.dumps(state)))  # also where steps have other rows
        assert again.state_dict() == state
    sampler.close()
    short = [text.encode() for texts in TEXTS for text in texts if len(text) < S - 1]
    assert set(short) <= set(seen)


def test_a_lane_may_have_a_file_with_less_than_a_row_or_held_out_documents(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"file {number} " + "abc" * 40 * (number > 0))
    section = Text(paths=(f"{tmp_path}/*.txt",), streaming=True)
    whole = stream_of(section)
    (some,), held_out = hold_out([stream_of(section, held_out=0.05)], TOKENIZER)
    for stream, files in ((whole, {0, 1, 2, 3}), (some, {0, 1, 2, 3})):
        assert stream.groups(4) == 4
        sequences, sampler = streamed(stream, resolve(Packing(method="concatenate")), 4)
        seen: set[int] = set()
        while sampler.epoch < 8:
            inputs = sequences.batch_of(sampler.take(4)).inputs.tolist()
            seen |= {n for row in inputs for n in files if f"file {n}".encode() in bytes(
                token for token in row if token < 256)}  # fmt: skip
        sampler.close()
        left_out = {int(file.name[-5]) for file in held_out.files} if stream is some else set()
        assert seen == files - left_out


def test_a_lane_without_a_document_for_many_epochs_waits_for_one(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text("abc " * (1 if number == 3 else 40))
    section = Text(paths=(f"{tmp_path}/*.txt",), streaming=True)
    for too_long, rows in (("drop", 40), ("split", 80)):
        packing = resolve(Packing(method="next_fit", too_long=too_long))  # type: ignore[arg-type]
        sequences, sampler = streamed(stream_of(section), packing, 6)
        assert len(rows_of(sequences.batch_of(sampler.take(rows)))) == rows
        sampler.close()
    (tmp_path / "3.txt").write_text("abc " * 40)
    packing = resolve(Packing(method="next_fit", too_long="drop"))
    sequences, sampler = streamed(stream_of(section), packing, 6)
    with refused():
        sampler.take(6)
    sampler.close()


def test_a_state_of_some_ranks_is_refused(tmp_path: Path) -> None:
    section = section_of("jsonl", tmp_path / "data")
    halves = [open_stream(section)[1] for _ in range(2)]
    for rank, sampler in enumerate(halves):
        sampler.deal(4, [2 * rank, 2 * rank + 1])
    states = [sampler.state_dict() for sampler in halves]
    whole = open_stream(section)[1]
    whole.deal(4, range(4))
    whole.load_state_dict(merged_state(states))
    with refused():
        whole.load_state_dict(states[0])


class Endless:
    """A stream without end, that counts what was read of it."""

    def __init__(self, wrong: int | None = None) -> None:
        self.read_rows = 0
        self.wrong = wrong

    def parts(self) -> Sequence[FileRecord]:
        return [FileRecord("endless/tap", 0, "")]

    def read(self, part: int, place: Place) -> Iterator[Placed]:
        number = place.get("row", 0)
        while True:
            if number == self.wrong:
                raise SetpointError(f"endless/tap, row {number + 1} is broken")
            self.read_rows += 1
            document = Document(f"endless/tap#{number}", b"a text of some length %d" % number)
            number += 1
            yield document, lambda number=number: {"row": number}


def endless(
    source: Endless, buffer: int, method: Any = "concatenate"
) -> tuple[DocumentRows, Sampler]:
    section = resolve(Text(name="endless", paths=("x",), streaming=True))
    stream = Stream(
        section, "data.sources.0", source, tuple(source.parts()), TOKENIZER, 0.0, buffer
    )
    return streamed(stream, resolve(Packing(method=method)))


def test_of_an_endless_stream_a_block_is_held_and_a_few_rows(tmp_path: Path) -> None:
    source, buffer = Endless(), 50
    pair = endless(source, buffer)
    before = held()
    most = 0
    for _ in range(16):
        take(pair, 25)
        most = max(most, held() - before)
    assert source.read_rows > 300 > 4 * most
    assert most <= buffer + 2  # with the one that is cut, and the one that was read last
    (cursor,) = pair[1].cursors
    assert isinstance(cursor, LaneCursor)
    assert isinstance(cursor._ahead, Ahead)
    assert len(cursor._ahead.ready[0]) <= 25
    pair[1].close()


def held() -> int:
    return sum(type(each) is Document for each in gc.get_objects())


def test_the_first_row_needs_one_block_and_closing_ends_the_thread() -> None:
    source = Endless()
    pair = endless(source, 300)
    before = threading.active_count()
    take(pair, 1)
    assert threading.active_count() == before + 1
    pair[1].close()
    assert threading.active_count() == before
    assert source.read_rows <= 300 + 4 * LEAST_AHEAD
    take(pair, 1)  # opened again
    assert pair[1].position == 2
    pair[1].close()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_comes_with_its_row_after_all_rows_before_it(workers: int) -> None:
    source = Endless(wrong=40)
    sequences, sampler = endless(source, 10)
    good = oracle_rows([[f"a text of some length {n}" for n in range(40)]], "endless", 1, 10)
    feed = Feed(sequences, sampler, count_all, micro_size=1, loader=WorkerOptions(workers))
    for row in good:
        assert rows_of(feed.take().batches[0]) == [row]
    with refused():
        feed.take()
    feed.close()


class Answered(Endless):
    """A stream of documents that say which of their tokens are trained on."""

    def read(self, part: int, place: Place) -> Iterator[Placed]:
        document = Document("endless/tap#0", tokens=np.arange(9), trained=np.arange(9) > 5)
        yield document, lambda: {"row": 1}


@pytest.mark.parametrize("method", ["concatenate", "next_fit"])
def test_targets_of_documents_are_refused_and_not_ignored(method: str) -> None:
    sequences, sampler = endless(Answered(), 10, method)
    with refused():
        sequences.batch_of(sampler.take(1))
    sampler.close()


def test_a_stream_that_changed_is_refused_where_it_goes_on(tmp_path: Path) -> None:
    section = section_of("jsonl", tmp_path / "data")
    first = open_stream(section)
    take(first, 8)
    first[1].close()
    state = first[1].state_dict()
    part = lanes_of(first[1])["0"]["from"]["file"]
    assert part in describe_position(state)
    assert lanes_of(first[1])["0"]["document"] in describe_position(state)
    path = tmp_path / "data" / Path(part).name
    text = path.read_text()
    path.write_text(text.replace("xyz", "zyx"))  # of the same size
    again = open_stream(section)
    again[1].load_state_dict(state)
    with refused():
        take(again, 1)
    again[1].close()
    again[1].load_state_dict(state, other_data=True)
    assert len(take(again, 3)) == 3
    again[1].close()
    path.write_text(text + "\n")  # of another size
    with refused():
        open_stream(section)[1].load_state_dict(state)
    path.unlink()
    gone = open_stream(section)
    with refused():
        gone[1].load_state_dict(state)
    gone[1].load_state_dict(state, other_data=True)
    take(gone, 1)
    assert lanes_of(gone[1])["0"]["epoch"] == 1
    gone[1].close()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 6},
        {"shuffle_buffer": 7},
        {"method": "next_fit"},
        {"lanes": {"0": {"item": -1}}},
        {"taken": -1},
    ],
    ids=str,
)
def test_a_state_of_another_stream_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    sampler = open_stream(section_of("jsonl", tmp_path / "data"))[1]
    state = sampler.state_dict()["sources"][""]
    with refused():
        sampler.load_state_dict({"sources": {"": {**state, **change}}})


def test_documents_are_held_out_by_the_hash_of_their_names(tmp_path: Path) -> None:
    section = section_of("jsonl", tmp_path / "data")
    stream = stream_of(section, held_out=0.3)
    (stream,), held_out = hold_out([stream], TOKENIZER)
    names = [document.name for document, _ in stream.documents(range(FILES))]
    both = [document.name for document, _ in stream.both_sides(range(FILES))]
    assert sorted([*names, *(file.name for file in held_out.files)]) == sorted(both)
    assert all(split_position(name) >= 0.3 for name in names)
    (stream,), lowest = hold_out([stream_of(section, held_out=1e-6)], TOKENIZER)
    assert [file.name for file in lowest.files] == [min(both, key=split_position)]
    names = [document.name for document, _ in stream.documents(range(FILES))]
    assert sorted([*names, lowest.files[0].name]) == sorted(both)
    (tmp_path / "only.txt").write_text("text")
    one = Text(paths=(f"{tmp_path}/only.txt",), streaming=True)
    with refused():
        hold_out([stream_of(one, held_out=0.05)], TOKENIZER)


def test_filters_are_applied_while_reading(tmp_path: Path) -> None:
    section = section_of("jsonl", tmp_path / "data")
    section.filter = Filter(shortest=20, longest=30)
    parts = [[text for text in texts if 20 <= len(text) <= 30] for texts in TEXTS]
    expected = oracle_rows(parts, "text", epochs=2)
    assert take(open_stream(section), len(expected)) == expected
    section.filter = Filter(longest=3)
    with refused():
        take(open_stream(section), 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"sources": ("text", "random")},
        {"sources": ("text 1 2", "random 1"), "held_out": 0.0},
        {"sources": ("text 1", "random 1")},
        {"held_out": 3.0},
        {"sources": ("text 1",), "mixture": Mixture(by="tokens"), "packing": NEXT_FIT},
        {"packing": Packing(method="none", length_buckets=True)},
        {"validation": ("text",)},
        {"sources": ("random",), "shuffle_buffer": 5},
    ],
    ids=[
        "without weights",
        "epochs",
        "held out of one",
        "number held out",
        "tokens",
        "buckets",
        "validation",
        "buffer",
    ],
)
def test_what_does_not_go_with_a_stream_is_refused(fields: dict[str, Any]) -> None:
    def source(text: str) -> Any:
        kind, *numbers = text.split()
        weight, epochs = [*map(float, numbers), None, None][:2]
        if kind == "random":
            return Random(weight=weight)
        return Text(paths=("x",), streaming=True, weight=weight, epochs=epochs)

    given = {"sources": ("text",), **fields}
    for name in ("sources", "validation"):
        if name in given:
            given[name] = tuple(map(source, given[name]))
    with refused():
        resolve(Data(**given))
