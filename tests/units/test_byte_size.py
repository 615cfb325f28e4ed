"""Sizes in bytes."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import Invalid
from setpoint.units import ByteSize

from ..support.snapshots import refused


@pytest.mark.parametrize(
    ("text", "count", "canonical"),
    [
        ("16 MiB", 16 * 2**20, "16 MiB"), ("2 GB", 2 * 10**9, "2 GB"), ("2 kB", 2000, "2 kB"),
        ("2 KB", 2000, "2 kB"), ("512", 512, "512"), ("0.5 KiB", 512, "512"),
        ("1.5 GiB", 3 * 2**29, "1536 MiB"), ("0.1 kB", 100, "100"), ("1_000", 1000, "1 kB"),
        ("2000000000", 2 * 10**9, "2 GB"), ("9 EiB", 9 * 2**60, "9 EiB"),
    ],
)  # fmt: skip
def test_texts_are_read_exactly(text: str, count: int, canonical: str) -> None:
    size = ByteSize(text)
    assert size == count
    assert size.dump() == str(size) == canonical
    assert repr(size) == f"ByteSize({canonical!r})"


@pytest.mark.parametrize(
    "text",
    [
        "16M", "16 Mb", "0.3 KiB", "1 XB", "-1", "1e3", "9" * 50, -1, 1.5, True,
    ],
)  # fmt: skip
def test_texts_that_are_no_sizes_are_refused(text: object) -> None:
    with refused(Invalid):
        ByteSize.read(text)


def test_a_size_is_a_number() -> None:
    size = ByteSize("1 KiB")
    assert hash(size) == hash(1024)
    assert pickle.loads(pickle.dumps(size)).dump() == "1 KiB"
    assert f"{size:,}" == "1,024"


@given(st.integers(0, 2**80))
def test_the_canonical_text_reads_back(count: int) -> None:
    assert int(ByteSize(ByteSize(count).dump())) == count
