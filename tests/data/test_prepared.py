"""Prepared data holds what a corpus in memory holds, and is whole or named."""

import errno
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from setpoint.config import RunError, SetpointError, resolve
from setpoint.data import prepare
from setpoint.data import token_store as store
from setpoint.data import workers as tasks
from setpoint.data.config import Data, HuggingFace, Prepare, TokenIds
from setpoint.data.corpus import Corpus, PieceRow, gather, slices
from setpoint.data.document import Document
from setpoint.data.prepare import locked, prepare_all
from setpoint.data.sides import Sides, named_corpus, read_sides
from setpoint.data.sources.config import Conversations, Filter, Random, SourceConfig, Text, Tokens
from setpoint.data.token_store import MANIFEST, stored_documents
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.data.workers import WORKER
from setpoint.files.atomic import digest_file
from setpoint.units import ByteSize

from ..support.snapshots import refused
from .in_memory import in_memory
from .tokenizers_here import byte_level

SMALL = Random(documents=60, length=200)


@pytest.fixture(autouse=True)
def _many_pieces_and_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "FIRST_PIECE", 1500)
    monkeypatch.setattr(prepare, "SHARD", 4000)


def data_of(folder: Path, sources: Sequence[SourceConfig], workers: int = 1, **fields: Any) -> Data:
    cache = Prepare(folder=str(folder), above=ByteSize(0), workers=workers)
    return Data(sources=tuple(sources), prepare=cache, **fields)


def assert_same(left: Corpus, right: Corpus) -> None:
    assert (left.digest, left.byte_count, left.side, left.sources) == (
        right.digest, right.byte_count, right.side, right.sources,
    )  # fmt: skip
    assert left.tokens.dtype == right.tokens.dtype
    np.testing.assert_array_equal(left.tokens[:], right.tokens[:])
    np.testing.assert_array_equal(left.starts, right.starts)
    np.testing.assert_array_equal(left.source, right.source)
    assert list(left.files) == list(right.files) == [right.files[n] for n in range(len(left.files))]
    assert (left.trained is None) == (right.trained is None)
    if left.trained is not None and right.trained is not None:
        np.testing.assert_array_equal(left.trained[:], right.trained[:])
    ranges = np.array([0]), np.array([len(left.tokens)])
    np.testing.assert_array_equal(left.sources_along(*ranges), right.sources_along(*ranges))
    assert left.sources_along(*ranges).dtype == right.sources_along(*ranges).dtype


def assert_all_same(left: Sides, right: Sides) -> None:
    assert len(left.train) == len(right.train)
    for one, other in zip(left.train, right.train, strict=True):
        assert_same(one, other)
    assert (left.held_out is None) == (right.held_out is None)
    if left.held_out is not None and right.held_out is not None:
        assert_same(left.held_out, right.held_out)


def conversations(folder: Path) -> Conversations:
    rows = [
        {"messages": [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": "a"}]}
        for n in range(40)
    ]
    file = folder / "chat.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Conversations(name="chat", paths=(str(file),), template="plain")


@pytest.mark.parametrize("kind", ["mixed files", "validation", "chat", "all", "number mixed"])
def test_preparing_changes_nothing(tmp_path: Path, kind: str) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"a line of text {name}\n" * 300)
    one, two = (Text(name=name, paths=(f"{tmp_path}/{name}.txt",)) for name in ("one", "two"))
    tokenizer: Any = ByteTokenizer()
    other = Random(name="other", documents=20, seed=4)
    fields: dict[str, Any] = {}
    sources: tuple[SourceConfig, ...] = (SMALL, other)
    if kind == "mixed files":  # a source of a single document is cut
        sources = tuple(each.evolve(weight=1.0) for each in (one, SMALL, two))
    elif kind == "validation":
        fields["validation"] = (one,)
    elif kind == "chat":
        sources = (SMALL, conversations(tmp_path))
        tokenizer = HuggingFace(path=str(byte_level(tmp_path / "tokenizer"))).build()
    elif kind == "all":
        fields["held_out"] = 0.0
    else:
        fields["held_out"] = 13.0
        sources = (SMALL.evolve(weight=1.0), other.evolve(weight=3.0))
    data = data_of(tmp_path / "cache", sources, workers=1 + (kind == "chat"), **fields)
    expected = in_memory(data, tokenizer)
    found = read_sides(data, tokenizer)
    assert all(side.prepared for side in found.train)
    assert_all_same(expected, found)
    assert_all_same(expected, read_sides(data, tokenizer))
    if kind == "number mixed":
        assert expected.held_out is not None and len(expected.held_out.files) == 13


def test_any_number_of_processes_writes_the_same_bytes(tmp_path: Path) -> None:
    found: list[dict[str, bytes]] = []
    for workers in (1, 3):
        data = data_of(tmp_path / str(workers), [SMALL], workers)
        (prepared,) = prepare_all(data, ByteTokenizer())
        files = sorted(Path(prepared.folder).iterdir())
        found.append({f.name: f.read_bytes() for f in files if f.name != "verified.json"})
    assert found[0] == found[1]
    assert sum(name.endswith(".tokens.npy") for name in found[0]) > 5


def test_what_is_prepared_is_not_prepared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(tmp_path, [SMALL])
    prepare_all(data, ByteTokenizer())

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("prepared again")

    monkeypatch.setattr(prepare, "prepare", refuse)
    prepare_all(data, ByteTokenizer())
    # Also where it is below the size from which a run prepares on its own.
    small = Data(sources=(SMALL,), prepare=Prepare(folder=str(tmp_path), above=None))
    assert read_sides(small, ByteTokenizer()).train[0].prepared
    assert read_sides(Data(sources=(SMALL,), held_out=0.3, prepare=small.prepare),
                   ByteTokenizer()).train[0].prepared is None  # fmt: skip


def test_a_changed_file_makes_it_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"{name}\n" * 100)
    source = Text(paths=(f"{tmp_path}/*.txt",))
    data = data_of(tmp_path / "cache", [source], held_out=0.0)
    before = read_sides(data, ByteTokenizer())
    (tmp_path / "b.txt").write_text("other text\n" * 100)
    assert_all_same(in_memory(data, ByteTokenizer()), read_sides(data, ByteTokenizer()))
    assert "is stale and is not used: text/b.txt changed" in capsys.readouterr().err
    assert before.train[0].digest != read_sides(data, ByteTokenizer()).train[0].digest


def _flip(folder: Path) -> None:
    path = next(folder.glob("*/train-00001.tokens.npy"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("cut short", "train-00001.tokens.npy is truncated"),
        ("flip", "the content of train-00001.tokens.npy has changed since it was written"),
        ("remove", "train-00001.tokens.npy: No such file"),
        ("no manifest", "manifest.json cannot be read"),
        ("half a manifest", "manifest.json is damaged"),
        # Files elsewhere would be copied and pushed with the others.
        ("other files", "it names the file '../secret', which is in another folder"),
        ("dtype", "train-00001.tokens.npy has the dtype uint32, but the manifest has uint16"),
    ],
)
def test_damage_is_named_and_never_used(
    tmp_path: Path, damage: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = data_of(tmp_path, [SMALL])
    expected = in_memory(data, ByteTokenizer())
    read_sides(data, ByteTokenizer())
    shard, manifest = (
        next(tmp_path.glob(f"*/{name}")) for name in ("train-00001.tokens.npy", MANIFEST)
    )
    if damage == "cut short":
        shard.write_bytes(shard.read_bytes()[:-100])
    elif damage == "flip":
        _flip(tmp_path)
    elif damage == "remove":
        shard.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "half a manifest":
        manifest.write_text(manifest.read_text()[:200])
    else:
        facts = json.loads(manifest.read_text())
        if damage == "other files":
            facts["files"]["../secret"] = [1, "0" * 64]
        else:  # even where the manifest was written to fit
            np.save(shard, np.load(shard).astype("<u4"))
            facts["files"][shard.name] = list(digest_file(shard))
        manifest.write_text(json.dumps(facts, indent=1) + "\n")
    with pytest.raises(SetpointError) as caught:
        list(stored_documents(next(tmp_path.glob("*-*/")), "x", ByteTokenizer()))
    assert message in str(caught.value)
    capsys.readouterr()
    assert_all_same(expected, read_sides(data, ByteTokenizer()))
    told = capsys.readouterr().err
    assert message in told and "Preparing it again." in told


def token_files(folder: Path) -> Tokens:
    """Files of several dtypes, of which one holds a single document and one many."""
    ids = np.random.default_rng(0).integers(0, 256, 12_000)
    ids[::97] = 256
    np.save(folder / "a.npy", ids.astype(np.uint16))
    np.save(folder / "b.npy", ids.astype(np.int64)[1:97])
    np.save(folder / "c.npy", ids[:10_000].astype(np.int32))
    return Tokens(paths=(f"{folder}/*.npy",))


@pytest.mark.parametrize("kind", ["with text", "mixture", "filter", "ids"])
def test_token_files_are_mapped_where_they_lie(tmp_path: Path, kind: str) -> None:
    """The cache gets an index of them and no token, and all comes out as in memory."""
    tokens = token_files(tmp_path)
    tokenizer: Any = ByteTokenizer()
    sources: tuple[Any, ...] = (tokens,)
    if kind == "filter":
        tokens.filter = Filter(shortest=30, longest=80)
    elif kind == "with text":
        sources = (tokens, SMALL)
    elif kind == "mixture":
        tokens.weight = 1.0
        sources = (tokens, Random(documents=60, length=200, weight=2.0))
    elif kind == "ids":
        tokenizer = resolve(TokenIds(count=300)).build()
    data = data_of(tmp_path / "cache", sources)
    expected = in_memory(data, tokenizer)
    found = read_sides(data, tokenizer)
    assert found.train[0].prepared is not None
    assert_all_same(expected, cast(Sides, found))
    files = [path for path in tmp_path.glob("cache/*-*/*.npy") if "index" not in path.name]
    copied = sum(np.load(path).nbytes for path in files if path.suffixes[0] in (".tokens", ".mask"))
    others = [d for source in sources[1:] for d in source.build(where="").documents()]
    assert copied == 2 * sum(document.size + 1 for document in others)
    # What rows are made of: ranges within documents, across them and at both ends.
    one, other = expected.train[0].tokens, found.train[0].tokens
    assert isinstance(other, PieceRow)
    rng = np.random.default_rng(1)
    starts = np.append(rng.integers(0, len(one), 200), [0, len(one) - 1])
    stops = np.minimum(starts + np.append(rng.integers(0, 300, 200), [0, 1]), len(one))
    pairs = zip(slices(one, starts, stops), slices(other, starts, stops), strict=True)
    assert all(np.array_equal(mine, its) for mine, its in pairs)
    assert np.array_equal(gather(one, starts, 40), gather(other, starts, 40))


def test_a_token_file_that_is_gone_or_shorter_is_found_out(tmp_path: Path) -> None:
    tokens, tokenizer = token_files(tmp_path), ByteTokenizer()
    data = data_of(tmp_path / "cache", (tokens,))
    read_sides(data, tokenizer)
    (folder,) = (tmp_path / "cache").glob("*-*/")
    np.save(tmp_path / "c.npy", np.arange(200, dtype=np.int32))
    with pytest.raises(SetpointError, match=r"is damaged: its token file .*c\.npy: "):
        list(stored_documents(folder, "x", tokenizer))
    assert_all_same(in_memory(data, tokenizer), read_sides(data, tokenizer))


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    (prepared,) = prepare_all(data_of(tmp_path, [SMALL]), ByteTokenizer())
    other = ByteTokenizer()
    other.name = "other"
    with refused():
        list(stored_documents(Path(prepared.folder), "x", other))


KILLED = """
import sys
from setpoint.data import prepare
from setpoint.data.config import Data, Prepare
from setpoint.data.sources.config import Random
from setpoint.data.tokenizer import ByteTokenizer
prepare.FIRST_PIECE, prepare.SHARD = 1500, 4000
original = prepare.TokenizedPiece.run
def slow(self, tokenizer):
    found = original(self, tokenizer)
    print(self.number, flush=True)
    if self.number == 3:
        import os, signal
        (self.folder / "000004.tokens").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    return found
prepare.TokenizedPiece.run = slow
section = Prepare(folder=sys.argv[1], workers=1)
data = Data(sources=(Random(documents=60, length=200),), prepare=section)
prepare.prepare_all(data, ByteTokenizer())
"""


def test_a_killed_preparation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True)
    assert ended.returncode == -signal.SIGKILL
    assert not list(tmp_path.glob(f"*/{MANIFEST}"))
    made: list[int] = []
    original = prepare.TokenizedPiece.run

    def noted(self: prepare.TokenizedPiece, tokenizer: Any) -> prepare.Done:
        tokens = Path(f"{prepare.piece_stem(self.folder, self.number)}.tokens")
        before = tokens.stat().st_mtime_ns if tokens.exists() else None
        done = original(self, tokenizer)
        if tokens.stat().st_mtime_ns != before:
            made.append(self.number)
        return done

    monkeypatch.setattr(prepare.TokenizedPiece, "run", noted)
    data = data_of(tmp_path, [SMALL])
    found = read_sides(data, ByteTokenizer())
    assert made[0] == 4
    assert_all_same(in_memory(data, ByteTokenizer()), found)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("at", [3, 12])
def test_a_full_disk_is_an_error_and_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    writes = 0
    original = store.write_file

    def full(path: Path, chunks: Any) -> Any:
        nonlocal writes
        writes += 1
        if writes == at:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return original(path, chunks)

    data = data_of(tmp_path, [SMALL])
    with monkeypatch.context() as patch:
        patch.setattr(store, "write_file", full)
        patch.setattr(tasks, "write_file", full)
        with pytest.raises(
            RunError,
            match=r"data.prepare.folder: .*: No space left on device \(.* MB are free\).*kept",
        ):
            read_sides(data, ByteTokenizer())
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and "partial" not in path.name]
    assert_all_same(in_memory(data, ByteTokenizer()), read_sides(data, ByteTokenizer()))


def _hold(root: Path, name: str, held: Any, done: Any) -> None:
    with locked(root, name):
        held.set()
        done.wait()


def test_a_second_process_waits_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare, "PAUSE", 0.01)
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, "x", held, done))
    holder.start()
    held.wait()
    entered = threading.Event()

    def enter() -> None:
        with locked(tmp_path, "x"):
            entered.set()

    waiting = threading.Thread(target=enter)
    waiting.start()
    told = ""
    while "waiting for it" not in told:
        told += capsys.readouterr().err
        time.sleep(0.01)
    assert f"is being prepared by process {holder.pid}" in told
    assert not entered.is_set()
    done.set()
    waiting.join()
    holder.join()
    assert entered.is_set()


class Broken(ByteTokenizer):
    """Cannot take one document."""

    def encode(self, data: bytes) -> Any:
        raise SetpointError("cannot take it")


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_of_processes_name_the_document(tmp_path: Path, workers: int) -> None:
    with refused():
        read_sides(data_of(tmp_path, [SMALL], workers), Broken())


class Dying(ByteTokenizer):
    """Ends its process."""

    def encode(self, data: bytes) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_said(tmp_path: Path) -> None:
    with refused():
        read_sides(data_of(tmp_path, [SMALL], 2), Dying())


def test_a_worker_ends_quietly_with_the_main_process(tmp_path: Path) -> None:
    documents = [Document("random/a", b"text " * 30_000)]
    facts = np.zeros(1, prepare.PLAN)
    piece = prepare.TokenizedPiece(tmp_path, 0, documents, facts, "data.sources")
    work = pickle.dumps(piece, 5)
    sent = pickle.dumps(ByteTokenizer(), 5) + work[:-20]
    command = [sys.executable, "-c", WORKER]
    ended = subprocess.run(command, input=sent, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
    assert not list(tmp_path.iterdir())


def test_two_documents_of_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = [Document("random/a", b"1"), Document("random/b", b"2"), Document("random/a", b"3")]
    monkeypatch.setattr(prepare, "documents_of", lambda *_: iter(twice))
    with refused():
        read_sides(data_of(tmp_path, [SMALL], held_out=0.0), ByteTokenizer())


def test_an_empty_side_is_refused_as_in_memory(tmp_path: Path) -> None:
    data = data_of(tmp_path, [Random(documents=3, length=10)], held_out=3.0)
    said: list[str] = []
    for build in (in_memory, read_sides):
        with pytest.raises(SetpointError) as caught:
            build(data, ByteTokenizer())
        said.append(str(caught.value))
    assert said[0] == said[1]
    with refused():
        read_sides(
            data_of(tmp_path, [Random(documents=1, length=1)], held_out=0.05), ByteTokenizer()
        )


@pytest.mark.parametrize(
    ("counts", "mixed"), [((1,), False), ((2,), True), ((3,), False), ((1, 2, 3), True)]
)
def test_any_number_of_documents_is_split_as_in_memory(
    tmp_path: Path, counts: tuple[int, ...], mixed: bool
) -> None:
    sources = [
        Random(name=f"s{n}", documents=count, length=90, weight=1.0 if mixed else None)
        for n, count in enumerate(counts)
    ]
    data = data_of(tmp_path, sources, held_out=0.05)
    expected = in_memory(data, ByteTokenizer())
    assert expected.held_out is not None
    assert_all_same(expected, read_sides(data, ByteTokenizer()))


def test_named_texts_are_prepared(tmp_path: Path) -> None:
    config = Prepare(folder=str(tmp_path), above=ByteSize(0), workers=1)
    where = "evaluation.datasets.0.sources"
    found = named_corpus("web", (SMALL,), ByteTokenizer(), config, where=where)
    assert found.prepared
    assert_same(named_corpus("web", (SMALL,), ByteTokenizer(), where=where), found)


def test_prepared_folders_are_sources_of_tokens(tmp_path: Path) -> None:
    (prepared,) = prepare_all(data_of(tmp_path / "cache", [SMALL]), ByteTokenizer())
    tokens = Tokens(name="mine", paths=(prepared.folder,))
    (found,), held_out = in_memory(Data(sources=(tokens,)), ByteTokenizer())
    assert held_out is not None
    assert found.byte_count + held_out.byte_count == SMALL.documents * SMALL.length
    assert all(file.name.startswith("mine/random/") for file in found.files)
    _flip(tmp_path / "cache")
    with refused():
        in_memory(Data(sources=(tokens,)), ByteTokenizer())


@pytest.mark.parametrize("share", [0.05, 0.0])
def test_a_prepared_folder_is_mapped_as_a_source(tmp_path: Path, share: float) -> None:
    texts = (SMALL, Random(name="other", documents=20, seed=4))
    original = data_of(tmp_path / "cache", texts, held_out=share)
    (prepared,) = prepare_all(original, ByteTokenizer())
    mine = Tokens(name="mine", paths=(prepared.folder,))
    data = data_of(tmp_path / "second", [mine], held_out=share)
    expected, found = read_sides(original, ByteTokenizer()), read_sides(data, ByteTokenizer())
    pairs = [(expected.train[0], found.train[0])]
    if expected.held_out is not None and found.held_out is not None:
        pairs.append((expected.held_out, found.held_out))
    assert (found.held_out is None) == (share == 0)
    for left, right in pairs:
        assert right.prepared == prepared.folder
        assert (left.side, left.digest, ("mine",)) == (right.side, right.digest, right.sources)
        np.testing.assert_array_equal(left.tokens[:], right.tokens[:])
        assert not right.source.any()
    assert prepare_all(data, ByteTokenizer())[0] == prepared._replace(sources=("mine",))
    assert not (tmp_path / "second").exists()
    # Another split than it was prepared with.
    other = read_sides(data_of(tmp_path / "second", [mine], held_out=0.3), ByteTokenizer())
    assert other.train[0].prepared != prepared.folder
    assert named_corpus("web", (mine,), ByteTokenizer(), where="x").side == "web"
    _flip(tmp_path / "cache")
    with refused():
        read_sides(data, ByteTokenizer())


def test_what_filters_left_out_is_said_of_prepared_data_too(tmp_path: Path) -> None:
    source = Random(documents=60, length=200, filter=Filter(shards=2, shard=1))
    data = data_of(tmp_path, [source])
    expected = in_memory(data, ByteTokenizer())
    assert expected.train[0].notes
    for _ in range(2):
        found = read_sides(data, ByteTokenizer())
        assert_all_same(expected, found)
        assert found.train[0].notes == expected.train[0].notes


def test_a_cache_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    data = data_of(tmp_path / "file", [SMALL])
    (tmp_path / "file").write_text("")
    with refused(RunError):
        read_sides(data, ByteTokenizer())
