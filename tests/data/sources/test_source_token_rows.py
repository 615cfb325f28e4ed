"""Rows of tokens with labels, as tokenized data sets have them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from setpoint.config import resolve
from setpoint.data.config import Packing
from setpoint.data.corpus import build_corpus
from setpoint.data.document import Document, StreamSource
from setpoint.data.packing import build_packed
from setpoint.data.reading import documents_of
from setpoint.data.sources.config import HubDataset, SourceConfig, Text
from setpoint.data.tokenizer import ByteTokenizer

from ...support.snapshots import refused
from ..row_files import write_rows

ROWS: list[dict[str, Any]] = [
    {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "attention_mask": [1, 1, 1],
     "position_ids": [0, 1, 2]},
    {"input_ids": [4, 5, 0], "labels": [4, -100, -100], "attention_mask": [1, 1, 0],
     "position_ids": [0, 1, 7]},
    {"input_ids": [6, 7, 8], "labels": [-100, -100, 8], "attention_mask": [1, 1, 1],
     "position_ids": [0, 1, 0]},
]  # fmt: skip
WANTED = [
    ("#000000", [1, 2, 3], [False, True, True]),
    ("#000001", [4, 5], [True, False]),
    ("#000002.0", [6, 7], [False, False]),
    ("#000002.1", [8], [True]),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def jsonl(folder: Path, rows: list[dict[str, Any]]) -> SourceConfig:
    return Text(paths=(write_rows(folder / "a.jsonl", rows),), field="input_ids")


def nested(folder: Path, rows: list[dict[str, Any]]) -> SourceConfig:
    within = [{"row": row, "labels": 1} for row in rows]
    return Text(paths=(write_rows(folder / "a.jsonl", within),), field="row.input_ids")


def table(folder: Path, rows: list[dict[str, Any]]) -> SourceConfig:
    with_more = [{"url": "x", **row} for row in rows]
    return Text(paths=(write_rows(folder / "a.csv", with_more),), field="input_ids")


def columns(folder: Path, rows: list[dict[str, Any]]) -> SourceConfig:
    with_more = [{"url": "x", **row} for row in rows]
    return Text(paths=(write_rows(folder / "a.parquet", with_more),), field="input_ids")


def saved(folder: Path, rows: list[dict[str, Any]]) -> SourceConfig:
    import datasets

    with_more = [{"url": "x", **row} for row in rows]
    datasets.Dataset.from_list(with_more).save_to_disk(folder / "saved")
    return HubDataset(path=f"{folder}/saved", field="input_ids")


def streamed(folder: Path, rows: list[dict[str, Any]]) -> SourceConfig:
    columns(folder, rows)
    return HubDataset(path=str(folder), field="input_ids", streaming=True)


KINDS = (jsonl, nested, table, columns, saved, streamed)
Kind = Callable[[Path, list[dict[str, Any]]], SourceConfig]


def documents(source: SourceConfig) -> list[Document]:
    return list(documents_of(resolve(source), "data.sources.0", ByteTokenizer()))


# As models take them: a place reads a token, and its label is the next one.
SHIFTED: list[dict[str, Any]] = [
    {"input_ids": [1, 2, 3], "labels": [-100, 3, 4], "attention_mask": [1, 1, 1],
     "position_ids": [0, 1, 2]},
    {"input_ids": [4, 5, 0], "labels": [5, -100, -100], "attention_mask": [1, 1, 0],
     "position_ids": [0, 1, 2]},
    {"input_ids": [6, 7, 8], "labels": [7, 9, 256], "attention_mask": [1, 1, 1],
     "position_ids": [0, 1, 0]},
]  # fmt: skip
READ = [([1, 2, 3], [-100, 3, 4]), ([4], [5]), ([6, 7], [7, 9]), ([8], [256])]


def test_shifted_labels_are_the_targets_of_their_places(tmp_path: Path) -> None:
    for kind in (jsonl, columns, saved):
        (tmp_path / kind.__name__).mkdir()
        source = kind(tmp_path / kind.__name__, SHIFTED)
        assert isinstance(source, Text | HubDataset)
        source.shifted_labels = True
        corpus = build_corpus(documents(source), ByteTokenizer(), side="train")
        packing = resolve(Packing(method="none"))
        sequences, cursor = build_packed(
            corpus, packing, length=8, seed=0, bucket=1, order=np.arange(4), kind="sources"
        )
        batch = sequences.batch_of(cursor.take(np.arange(4), slice(None)))
        rows = zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True)
        lengths = [len(inputs) for inputs, _ in READ]
        assert [(i[:n], t[:n]) for (i, t), n in zip(rows, lengths, strict=True)] == READ
        assert batch.target_tokens == 6


@pytest.mark.parametrize(
    "row", [{"input_ids": [1, 2, 3], "labels": [2, 2, 3]}, {"input_ids": [1, 2, 3]}], ids=str
)
def test_labels_that_are_not_shifted(tmp_path: Path, row: dict[str, Any]) -> None:
    source = jsonl(tmp_path, [row])
    assert isinstance(source, Text)
    source.shifted_labels = True
    with refused():
        documents(source)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_labels_of_rows(tmp_path: Path, kind: Kind) -> None:
    found = documents(kind(tmp_path, ROWS))
    assert [d.name[d.name.index("#") :] for d in found] == [name for name, _, _ in WANTED]
    for document, (_, tokens, trained) in zip(found, WANTED, strict=True):
        assert document.tokens is not None and document.trained is not None
        assert (document.tokens.tolist(), document.trained.tolist()) == (tokens, trained)
    bare = [{"input_ids": row["input_ids"]} for row in ROWS]
    (tmp_path / "bare").mkdir()
    assert all(d.trained is None for d in documents(kind(tmp_path / "bare", bare)))


WRONG: dict[str, dict[str, Any]] = {
    "length": {"labels": [1, 2]},
    "mask of twos": {"attention_mask": [1, 2, 1]},
    "label": {"labels": [1, 9, 3]},
    "masked": {"labels": [-100] * 3},
    "mask": {"attention_mask": [0, 0, 0]},
    "positions": {"position_ids": [0, 1, 3]},
    "float": {"input_ids": [1, 2.5, 3]},
    "missing": {"input_ids": None},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_a_row_is_named(tmp_path: Path, name: str) -> None:
    with refused():
        documents(jsonl(tmp_path, [ROWS[0], {**ROWS[0], **WRONG[name]}]))


@pytest.mark.parametrize("kind", [jsonl, columns])
def test_tokens_beyond_the_vocabulary_are_named(tmp_path: Path, kind: Kind) -> None:
    rows = [{"input_ids": [1]}, {"input_ids": [1, 257]}]
    with refused():
        documents(kind(tmp_path, rows))


@pytest.mark.parametrize("kind", [jsonl, columns])
def test_a_stream_goes_on_within_a_packed_row(tmp_path: Path, kind: Kind) -> None:
    (tmp_path / "rows").mkdir()
    section = kind(tmp_path / "rows", [*ROWS, ROWS[0]])

    def source() -> StreamSource:
        made = resolve(section).build(where="data.sources.0")
        made.parts()
        return made

    found = [(d.name, dict(behind())) for d, behind in source().read(0, {})]
    names = [name for name, _ in found]
    assert [name.rpartition("#")[2] for name in names][2:4] == ["000002.0", "000002.1"]
    for number, (_, place) in enumerate(found, start=1):
        kept = json.loads(json.dumps(place))
        assert [d.name for d, _ in source().read(0, kept)] == names[number:]
