"""Sizes in bytes."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import Invalid
from setpoint.units import ByteSize


@pytest.mark.parametrize(
    ("text", "count", "canonical"),
    [
        ("16 MiB", 16 * 2**20, "16 MiB"),
        ("2 GB", 2 * 10**9, "2 GB"),
        ("2 kB", 2000, "2 kB"),
        ("2 KB", 2000, "2 kB"),
        ("512", 512, "512"),
        ("0.5 KiB", 512, "512"),
        ("1.5 GiB", 3 * 2**29, "1536 MiB"),
        ("0.1 kB", 100, "100"),
        ("1_000", 1000, "1 kB"),
        ("2000000000", 2 * 10**9, "2 GB"),
        ("9 EiB", 9 * 2**60, "9 EiB"),
    ],
)
def test_texts_are_read_exactly(text: str, count: int, canonical: str) -> None:
    size = ByteSize(text)
    assert size == count
    assert size.dump() == str(size) == canonical
    assert repr(size) == f"ByteSize({canonical!r})"


@pytest.mark.parametrize(
    ("text", "words", "valid"),
    [
        ("16M", "could mean powers of 1000 or of 1024", '"16 MB"'),
        ("16 Mb", "counts bits", '"16 MiB"'),
        ("0.3 KiB", "no integer number of bytes: 0.3 KiB are 307.2", '"307"'),
        ("1 XB", "unknown unit 'XB'", "MiB"),
        ("-1", "is not a size", '"2 GB"'),
        ("1e3", "is not a size", '"2 GB"'),
        ("9" * 50, "is not a size", '"2 GB"'),
        (-1, "must not be negative", '"2 GB"'),
        (1.5, "is not a size", '"2 GB"'),
        (True, "is not a size", '"2 GB"'),
    ],
)
def test_texts_that_are_no_sizes_are_refused(text: object, words: str, valid: str) -> None:
    with pytest.raises(Invalid, match=words) as caught:
        ByteSize.read(text)
    assert valid in caught.value.valid


def test_a_size_is_a_number() -> None:
    size = ByteSize("1 KiB")
    assert hash(size) == hash(1024)
    assert pickle.loads(pickle.dumps(size)).dump() == "1 KiB"
    assert f"{size:,}" == "1,024"


@given(st.integers(0, 2**80))
def test_the_canonical_text_reads_back(count: int) -> None:
    assert int(ByteSize(ByteSize(count).dump())) == count
