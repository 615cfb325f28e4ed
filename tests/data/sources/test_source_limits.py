from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from setpoint.config import resolve
from setpoint.data.document import Document
from setpoint.data.reading import DocumentFilter
from setpoint.data.sources.config import Filter

from ...support.snapshots import refused

TEXTS = ["", "ab", "abcdef", "€€", "abcdefghij"]


def kept(**fields: Any) -> tuple[list[str], str]:
    limits = DocumentFilter(resolve(Filter(**fields)), where="data.sources.0")
    documents = (Document(f"s/{n}", text.encode()) for n, text in enumerate(TEXTS))
    found = [document.data.decode() for document in limits.apply(documents)]
    return found, limits.summary("s")


def test_lengths_are_those_of_bytes_of_text() -> None:
    assert kept() == (TEXTS, "")
    assert kept(shortest=3) == (TEXTS[2:], "s: of 5 documents 2 too short")
    assert kept(longest=5) == (TEXTS[:2], "s: of 5 documents 3 too long")


def test_truncation_is_counted_and_cuts_no_character() -> None:
    found, said = kept(longest=5, too_long="truncate")
    assert found == ["", "ab", "abcde", "€", "abcde"]
    assert said == "s: of 5 documents 3 truncated"
    with refused():
        kept(longest=5, too_long="error")


def test_tokens_are_truncated_with_their_mask() -> None:
    document = Document("s/0", tokens=np.arange(9), trained=np.arange(9) > 3)
    limits = DocumentFilter(Filter(longest=5, too_long="truncate"), where="w")
    (found,) = limits.apply([document])
    assert found.tokens is not None and found.tokens.tolist() == [0, 1, 2, 3, 4]
    assert found.trained is not None and found.trained.tolist() == [False] * 4 + [True]


def test_shards_divide_the_documents_and_do_not_move() -> None:
    def names(count: int, **fields: Any) -> Iterator[str]:
        documents = (Document(f"s/{n}", b"x") for n in range(count))
        limits = DocumentFilter(resolve(Filter(**fields)), where="w")
        return (document.name for document in limits.apply(documents))

    parts = [set(names(300, shards=3, shard=shard)) for shard in range(3)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 300
    assert min(map(len, parts)) > 70
    assert parts[0] < set(names(400, shards=3))


def test_a_filter_that_leaves_nothing_is_an_error() -> None:
    with refused():
        kept(shortest=99)


@pytest.mark.parametrize(
    "fields",
    [
        {"too_long": "truncate"},
        {"shard": 1},
        {"shards": 2, "shard": 2},
        {"shortest": 5, "longest": 4},
    ],
    ids=str,
)
def test_limits_that_make_no_sense(fields: dict[str, Any]) -> None:
    with refused():
        resolve(Filter(**fields))
