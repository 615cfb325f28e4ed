import struct
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from setpoint.config import resolve
from setpoint.config.resolving.checks import verify
from setpoint.data.sources.config import Tokens
from setpoint.data.sources.tokens import TokensSource
from setpoint.data.token_store import KIND, MANIFEST
from setpoint.data.tokenizer import Tokenizer

from ...support.snapshots import refused

TOKENIZER = cast(Tokenizer, SimpleNamespace(vocab_size=60_000, separator=9))
IDS = [9, 50_001, 2, 3, 9, 4, 9, 9, 5, 6]
DOCUMENTS = [[50_001, 2, 3], [4], [5, 6]]


def read(path: Path, **fields: Any) -> list[list[int]]:
    source = TokensSource(Tokens(paths=(str(path),), **fields))
    found = list(source.tokenized(TOKENIZER))
    assert all(d.name.startswith("tokens/") and d.tokens is not None for d in found)
    assert len({d.name for d in found}) == len(found)
    return [d.tokens.tolist() for d in found if d.tokens is not None]


def write_index(path: Path, ids: Sequence[int], lengths: list[int], documents: list[int]) -> None:
    """Megatron's pair, as its IndexedDatasetBuilder writes it."""
    np.array(ids, "<i4").tofile(path.with_suffix(".bin"))
    pointers = np.cumsum([0, *lengths[:-1]]) * 4
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 4, len(lengths), len(documents))
        + np.array(lengths, "<i4").tobytes()
        + pointers.astype("<i8").tobytes()
        + np.array(documents, "<i8").tobytes()
    )


def write_headed(path: Path, ids: Sequence[int], count: int | None = None) -> None:
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(ids) if count is None else count
    path.write_bytes(header.tobytes() + np.array(ids, "<u2").tobytes())


def test_npy_is_divided_at_separators(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(IDS, np.uint16))
    assert read(tmp_path / "a.npy") == DOCUMENTS
    assert read(tmp_path / "a.npy", separator=4) == [IDS[:5], IDS[6:]]
    assert read(tmp_path / "a.npy", separator=7) == [IDS]


def test_raw_bin_needs_a_dtype(tmp_path: Path) -> None:
    np.array(IDS, np.uint16).tofile(tmp_path / "a.bin")
    assert read(tmp_path / "a.bin", token_dtype="uint16") == DOCUMENTS
    with refused():
        read(tmp_path / "a.bin")
    (problem,) = verify(resolve(Tokens(paths=(f"{tmp_path}/a.bin",))), ("files",)).problems
    assert problem.path == "token_dtype"


def test_a_header_says_the_dtype(tmp_path: Path) -> None:
    write_headed(tmp_path / "a.bin", IDS)
    assert read(tmp_path / "a.bin") == DOCUMENTS
    with refused():
        read(tmp_path / "a.bin", token_dtype="uint32")
    write_headed(tmp_path / "a.bin", IDS, count=99)
    with refused():
        read(tmp_path / "a.bin")


def test_megatron_says_the_documents(tmp_path: Path) -> None:
    ids = [1, 2, 9, 3, 9, 9, 4]
    write_index(tmp_path / "a", ids, [2, 1, 2, 2], [0, 2, 3, 4])
    assert read(tmp_path / "a.bin") == [[1, 2], [3], [4]]
    # Where the index speaks, separators inside a document are tokens of it.
    write_index(tmp_path / "a", [1, 9, 2], [3], [0, 1])
    assert read(tmp_path / "a.bin") == [[1, 9, 2]]
    (tmp_path / "a.bin").write_bytes(b"\0" * 8)
    with refused():
        read(tmp_path / "a.bin")
    index = (tmp_path / "a.idx").read_bytes()
    (tmp_path / "a.idx").write_bytes(index[:40])
    with refused():
        read(tmp_path / "a.bin")
    (tmp_path / "a.idx").write_bytes(b"x" * 99)
    with refused():
        read(tmp_path / "a.bin")


def test_a_folder_takes_token_files_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2], np.uint16))
    write_headed(tmp_path / "b.bin", [3])
    (tmp_path / "README.md").write_text("x")
    assert read(tmp_path) == [[1, 2], [3]]
    with refused():
        read(tmp_path / "*")


@pytest.mark.parametrize(
    "ids",
    [
        np.array([1, 60_000], np.uint32),
        np.array([1, -1], np.int32),
        np.array([1.0]),
        np.array([], np.uint16),
        np.array([9, 9], np.uint16),
    ],
    ids=["too high", "negative", "floats", "empty", "separators"],
)
def test_wrong_tokens_are_named(tmp_path: Path, ids: Any) -> None:
    np.save(tmp_path / "a.npy", ids)
    with refused():
        read(tmp_path / "a.npy")


@pytest.mark.parametrize(
    ("written", "read_as"),
    [("uint32", "uint8"), ("int64", "uint16"), ("int32", "uint16"), ("uint16", "uint32")],
)
def test_parts_of_ids_are_no_ids(tmp_path: Path, written: str, read_as: str) -> None:
    rng = np.random.default_rng(0)
    for most in (300, 50_000):
        rng.integers(0, most, 4000).astype(written).tofile(tmp_path / "a.bin")
        with refused():
            read(tmp_path / "a.bin", token_dtype=read_as)
        read(tmp_path / "a.bin", token_dtype=written)
    rng.integers(0, 256, 4000, np.uint8).tofile(tmp_path / "a.bin")  # bytes are what they seem
    read(tmp_path / "a.bin", token_dtype="uint8")


def test_a_shard_cut_short(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(IDS, np.uint16))
    data = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(data[:-3])
    with refused():
        read(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(data[:20])
    with refused():
        read(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(b"x" * 99)
    with refused():
        read(tmp_path / "a.npy")
    (tmp_path / "a.bin").write_bytes(b"123")
    with refused():
        read(tmp_path / "a.bin", token_dtype="uint16")
    (tmp_path / "a.bin").write_bytes(b"")
    with refused():
        read(tmp_path / "a.bin", token_dtype="uint16")


@pytest.mark.parametrize("name", ["cut.npy", "floats.npy", "pair.bin", "empty.bin"])
def test_check_looks_at_headers_and_indices(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "cut.npy", np.array(IDS, np.uint16))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-3])
    np.save(tmp_path / "floats.npy", np.array([1.0]))
    write_index(tmp_path / "pair", IDS[:-1], [len(IDS)], [0, 1])
    (tmp_path / "empty.bin").touch()
    dtype: Any = {"token_dtype": "uint16"} if name == "empty.bin" else {}
    tokens = Tokens(paths=(f"{tmp_path}/{name}",), **dtype)
    (problem,) = verify(resolve(tokens), ("files",)).problems
    assert problem.path == "paths" and name in str(problem)


def test_a_cache_of_prepared_data_is_no_folder_of_tokens(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "one"
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(f'{{"kind": "{KIND}"}}')
    np.save(folder / "train.npy", np.array(IDS, np.uint16))
    with refused():
        read(tmp_path / "cache")
