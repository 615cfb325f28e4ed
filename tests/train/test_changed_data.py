"""A file that changed since the checkpoint is an error that names it, until it is accepted."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from setpoint.data.config import Data, Prepare
from setpoint.data.prepare import prepare_all
from setpoint.data.sources.config import Text
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.train import run_record
from setpoint.train.config import Job
from setpoint.train.contract import ContractRefused
from setpoint.train.run import rehearse, train

from ..support.snapshots import refused
from .small import events, small_job

Kind = Callable[[Path, list[str]], str]

TEXTS = [f"{number} one two three four five " * 4 for number in range(24)]


def text(folder: Path, texts: list[str]) -> str:
    for number, each in enumerate(texts):
        (folder / f"{number:02}.txt").write_text(each)
    return f"{{type=text, paths=['{folder}/*.txt']}}"


def jsonl(folder: Path, texts: list[str]) -> str:
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    return f"{{type=text, paths=[{folder}/a.jsonl]}}"


def parquet(folder: Path, texts: list[str]) -> str:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": texts}), folder / "a.parquet")
    return f"{{type=text, paths=[{folder}/a.parquet]}}"


def prepared(folder: Path, texts: list[str]) -> str:
    jsonl(folder, texts)
    cache = Prepare(folder=str(folder / "cache"))
    data = Data(sources=(Text(paths=(f"{folder}/a.jsonl",)),), prepare=cache)
    shutil.rmtree(folder / "shards", ignore_errors=True)
    shutil.copytree(prepare_all(data, ByteTokenizer())[0].folder, folder / "shards")
    return f"{{type=tokens, paths=[{folder}/shards]}}"


def huggingface(folder: Path, texts: list[str]) -> str:
    jsonl(folder, texts)
    return f"{{type=huggingface, path={folder}, data_files=[a.jsonl]}}"


KINDS = {
    text: "text/07.txt",
    parquet: "text/a.parquet#000007",
    prepared: "tokens/text/a.jsonl#000007",
    huggingface: "huggingface/train#000007",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_named_and_can_be_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hub")
    refused_and_accepted(tmp_path, kind, KINDS[kind])


@pytest.mark.parametrize("above", [0, 2**28], ids=["from the cache", "in memory"])
def test_of_too_many_documents_the_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: int
) -> None:
    monkeypatch.setattr(run_record, "LISTED_PREPARED" if above == 0 else "LISTED", 3)
    cache = (f"data.prepare.folder={tmp_path}/cache", f"data.prepare.above={above}")
    refused_and_accepted(tmp_path, jsonl, "text/a.jsonl", *cache)


def refused_and_accepted(tmp_path: Path, kind: Kind, name: str, *flags: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()

    def job(texts: list[str], steps: int) -> Job:
        source = kind(folder, texts)
        more = ("schedule=constant", "evaluation=null", "data.held_out=0.3", *flags)
        return small_job(tmp_path, f"data.sources=[{source}]", f"duration={steps} steps", *more)

    run = train(job(TEXTS, 1)).directory
    again = job([*TEXTS[:7], "7 other words " * 4, *TEXTS[8:]], 2)
    with refused():
        train(again, directory=run)
    cached = [path for path in tmp_path.glob("cache/*") if path.is_dir()]
    assert len(cached) <= 1, "refused before the changed files are tokenized"
    assert dict(rehearse(again, run, ["data.sources"]))["state"] == "would resume at step 1"
    assert train(again, directory=run, accept=["data.sources"]).final_position.step == 2
    (side,) = events(run, "resume")[-1]["data"]
    assert side["changed"] == [name]


def test_sources_are_added_and_removed_by_accept(tmp_path: Path) -> None:
    first = jsonl(tmp_path, TEXTS)
    second = f"{{type=text, paths=[{tmp_path}/a.jsonl], name=more}}"
    fixed = ("schedule=constant", "evaluation=null")

    def resume(sources: str, steps: int) -> None:
        job = small_job(tmp_path, f"data.sources=[{sources}]", f"duration={steps} steps", *fixed)
        assert train(job, directory=run, accept=["data"]).final_position.step == steps

    job = small_job(tmp_path, f"data.sources=[{first}]", "duration=1 steps", *fixed)
    run = train(job).directory
    resume(f"{first}, {second}", 2)
    resume(first, 3)


def test_of_prepared_data_a_new_time_is_no_change(tmp_path: Path) -> None:
    """Of a size that differs, a file is named; whether a document is other, only tokens say."""
    source = jsonl(tmp_path, TEXTS)
    cache = f"data.prepare={{folder={tmp_path}/cache, above=0}}"
    fixed = ("schedule=constant", "evaluation=null", f"data.sources=[{source}]", cache)
    run = train(small_job(tmp_path, "duration=1 steps", *fixed)).directory
    os.utime(tmp_path / "a.jsonl", (0, 0))
    assert (
        train(small_job(tmp_path, "duration=2 steps", *fixed), directory=run).final_position.step
        == 2
    )
    rows = (tmp_path / "a.jsonl").read_text()
    (tmp_path / "a.jsonl").write_text(rows.replace(": ", ":"))
    again = small_job(tmp_path, "duration=3 steps", *fixed)
    with refused(ContractRefused) as caught:
        train(again, directory=run)
    assert caught.value.command.endswith("--accept data.sources")
    train(again, directory=run, accept=["data.sources"], until=2)
    assert "data" not in events(run, "resume")[-1]  # the documents are equal
    assert train(again, directory=run, accept=["data.sources"]).final_position.step == 3
