import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.config.composition import compose
from setpoint.data.order import random_bits, shuffled
from setpoint.data.sides import read_sides
from setpoint.shapes.batch import IGNORE_INDEX
from setpoint.train.build.job_data import build_training_data
from setpoint.train.config import Job

from ..support.snapshots import refused
from .row_files import write_rows

MASK = 2**64 - 1


def splitmix64(state: int, count: int) -> list[int]:
    """The published algorithm, word by word in Python's own integers."""
    words: list[int] = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        words.append(z ^ (z >> 31))
    return words


def test_the_oracle_gives_the_published_first_words_of_seed_1234567() -> None:
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(key=st.text(), count=st.integers(0, 300))
@settings(max_examples=50, deadline=None)
def test_random_bits_are_splitmix64_from_the_hash_of_the_key(key: str, count: int) -> None:
    start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    assert random_bits(key, count).tolist() == splitmix64(start, count)


def feistel(key: str, size: int, place: int) -> int:
    """The same network in Python's own integers."""
    half = 1
    while 4**half < size:
        half += 1
    keys = splitmix64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big"), 6)
    while True:
        left, right = divmod(place, 2**half)
        for each in keys:
            # One word of the generator whose state came to `each` plus the right half.
            (word,) = splitmix64((right + each - 0x9E3779B97F4A7C15) & MASK, 1)
            left, right = right, left ^ (word % 2**half)
        place = left * 2**half + right
        if place < size:
            return place


@given(key=st.text(), size=st.integers(1, 3000), data=st.data())
@settings(max_examples=50, deadline=None)
def test_shuffled_is_the_network(key: str, size: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), max_size=20))
    found = shuffled(key, size, np.array(places, dtype=np.int64))
    assert found.tolist() == [feistel(key, size, place) for place in places]


def test_an_order_holds_each_index_once() -> None:
    for size in (*range(1, 70), 1023, 1024, 1025, 65_537):
        assert sorted(whole("x", size).tolist()) == list(range(size))


def whole(key: str, size: int) -> np.ndarray:
    return shuffled(key, size, np.arange(size))


def test_a_place_in_a_huge_order_costs_no_more() -> None:
    places = np.array([0, 1, 10**17], dtype=np.int64)
    found = shuffled("x", 10**18, places)
    assert found.tolist() == [feistel("x", 10**18, place) for place in places.tolist()]


S = 16
# Listed against the order of their names; more rows than a number of one digit sorts by itself.
FILES = ("z", "b", "k")
TEXTS = {
    name: [f"{name}{row}" + "." * ((row * 7 + at) % 23) for row in range(12)]
    for at, name in enumerate(FILES)
}


def whole_texts(folder: Path) -> dict[str, Any]:
    for name, texts in TEXTS.items():
        (folder / f"{name}.txt").write_text("\n--\n".join(texts))
    return {"type": "text", "separator": "\n--\n", "paths": [f"{folder}/{n}.txt" for n in FILES]}


def rows_in_files(folder: Path, suffix: str = "jsonl", **more: Any) -> dict[str, Any]:
    paths = [
        write_rows(folder / f"{name}.{suffix}", [{"text": text} for text in TEXTS[name]])
        for name in FILES
    ]
    return {"type": "text", "paths": paths, **more}


def hub(folder: Path) -> dict[str, Any]:
    datasets = pytest.importorskip("datasets")
    texts = [text for name in FILES for text in TEXTS[name]]
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(folder / "set", num_proc=None)
    return {"type": "huggingface", "path": str(folder / "set")}


def tokens(folder: Path) -> dict[str, Any]:
    for name, texts in TEXTS.items():
        ids = [id for text in texts for id in [*text.encode(), 256]]
        np.array(ids, np.uint16).tofile(folder / f"{name}.bin")
    paths = [f"{folder}/{name}.bin" for name in FILES]
    return {"type": "tokens", "paths": paths, "token_dtype": "uint16"}


SOURCES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "text": whole_texts, "jsonl": rows_in_files, "huggingface": hub, "tokens": tokens,
    "parquet": lambda folder: rows_in_files(folder, "parquet"),
    "streamed": lambda folder: rows_in_files(folder, streaming=True),
    "mixed": lambda folder: rows_in_files(folder, weight=1.0),
}  # fmt: skip


def job_of(source: dict[str, Any], *flags: str) -> Job:
    return compose(
        Job,
        flags=[
            f"data.sources=[{json.dumps(source)}]", "data.held_out=0", "evaluation=null",
            "data.shuffle=false", f"batch.sequence_length={S}", *flags,
        ],
    ).resolve()  # fmt: skip


def rows_of(job: Job, count: int) -> list[tuple[list[int], list[int]]]:
    sides = read_sides(job.data, job.tokenizer.build())
    sequences, sampler = build_training_data(job, sides.train)
    batch = sequences.batch_of(sampler.take(count))
    sampler.close()
    return [
        (inputs[: (kept := sum(t != IGNORE_INDEX for t in targets))], targets[:kept])
        for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True)
    ]


def expected_windows() -> list[tuple[list[int], list[int]]]:
    """One epoch, laid in a row and cut every S + 1 tokens, as a plain loop does it."""
    row = [256]
    for name in FILES:
        for text in TEXTS[name]:
            row += [*text.encode(), 256]
    cut = [row[at : at + S + 1] for at in range(0, len(row) - S, S + 1)]
    return [(window[:-1], window[1:]) for window in cut]


@pytest.mark.parametrize("kind", SOURCES)
def test_windows_follow_the_files(kind: str, tmp_path: Path) -> None:
    one = expected_windows()
    # A second epoch is in the same order, and prepared data is the same again.
    job = job_of(SOURCES[kind](tmp_path))
    assert rows_of(job, 2 * len(one)) == 2 * one
    if kind in ("text", "mixed"):
        prepared = ("data.prepare.above=1", f"data.prepare.folder={tmp_path}/cache")
        job = job_of(SOURCES[kind](tmp_path), *prepared, "data.prepare.workers=1")
        assert rows_of(job, 2 * len(one)) == 2 * one
        assert (tmp_path / "cache").is_dir()


@pytest.mark.parametrize(
    ("kind", "method"),
    [("jsonl", "next_fit"), ("jsonl", "first_fit_decreasing"), ("streamed", "next_fit"),
     ("streamed", "none")],
)  # fmt: skip
def test_packing_takes_documents_in_their_order(method: str, kind: str, tmp_path: Path) -> None:
    job = job_of(
        SOURCES[kind](tmp_path), f"data.packing.method={method}", "batch.sequence_length=48"
    )
    rows = rows_of(job, 36 if method == "none" else 8)
    texts = [text for name in FILES for text in TEXTS[name]]
    seen = "".join("".join(map(chr, targets)) for _, targets in rows).split(chr(256))[:-1]
    if method == "first_fit_decreasing":  # by length, but no longer at random
        assert len(seen[0]) == max(map(len, texts)) and rows == rows_of(job, len(rows))
    else:
        assert seen == texts[: len(seen)]


@pytest.mark.parametrize("method", ["concatenate", "next_fit"])
def test_a_position_is_refused_in_another_order(method: str, tmp_path: Path) -> None:
    source, packing = rows_in_files(tmp_path), f"data.packing.method={method}"
    jobs = [job_of(source, packing), job_of(source, packing, "data.shuffle=true")]
    samplers = [
        build_training_data(job, read_sides(job.data, job.tokenizer.build()).train)[1]
        for job in jobs
    ]
    for one, other in ((0, 1), (1, 0)):
        with refused():
            samplers[other].load_state_dict(samplers[one].state_dict())
