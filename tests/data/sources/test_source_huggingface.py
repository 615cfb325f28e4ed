import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import SetpointError, compose, resolve
from setpoint.config.resolving.checks import verify
from setpoint.data.sources.config import HubDataset
from setpoint.data.sources.hub_dataset import HubDatasetSource
from setpoint.train.config import Job

from ...support.snapshots import refused

ROWS = [{"text": f"row {n}", "meta": {"title": f"t{n}"}} for n in range(5)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def read(path: Path | str, **fields: Any) -> list[tuple[str, str]]:
    source = HubDatasetSource(resolve(HubDataset(path=str(path), **fields)))
    return [(d.name, d.data.decode()) for d in source.documents()]


def refusal(path: Path | str, **fields: Any) -> str:
    with pytest.raises(SetpointError) as caught:
        read(path, **fields)
    return str(caught.value)


def test_a_data_set_on_disk(tmp_path: Path) -> None:
    import datasets

    table = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict(train=table, test=table.select([3])).save_to_disk(tmp_path / "saved")
    wanted = [(f"huggingface/train#{n:06d}", f"row {n}") for n in range(5)]
    assert read(tmp_path / "saved") == wanted
    assert read(tmp_path / "saved", split="test", field="meta.title") == [
        ("huggingface/test#000000", "t3")
    ]
    with refused():
        read(tmp_path / "saved", split="dev")
    with refused():
        read(tmp_path / "saved", field="txt")
    with refused():
        read(tmp_path / "saved", subset="en")
    table.save_to_disk(tmp_path / "one")
    assert read(tmp_path / "one") == wanted


@pytest.mark.parametrize("streaming", [False, True])
def test_a_folder_of_data_files(tmp_path: Path, streaming: bool) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, rows in (("train", ROWS), ("test", ROWS[:1])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [text for _, text in read(folder, streaming=streaming)] == [r["text"] for r in ROWS]
    assert [text for _, text in read(folder, split="test", streaming=streaming)] == ["row 0"]
    files = ("test.jsonl",)
    assert len(read(folder, data_files=files, streaming=streaming)) == 1
    assert "cannot be loaded: " in refusal(folder, split="dev", streaming=streaming)
    with refused():
        read(folder, revision="main", streaming=streaming)


def test_a_row_without_text_is_named(tmp_path: Path) -> None:
    import datasets

    rows = [{"text": "fine"}] * 3 + [{"text": None}]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    with refused():
        read(tmp_path / "saved")
    datasets.Dataset.from_dict({"text": []}).save_to_disk(tmp_path / "none")
    assert "data.sources: the data set in" in refusal(tmp_path / "none")


def test_the_hub_without_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    said = refusal("some-owner/some-name")
    assert said.startswith("data.sources: the data set 'some-owner/some-name' cannot be loaded: ")
    assert "HF_HUB_OFFLINE is set, and the data set is not in the local cache" in said
    assert "Valid: the id of a data set on the hub" in said


def test_the_token_is_revealed_to_the_hub_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def load_dataset(path: str, **options: Any) -> Any:
        asked.update(options)
        raise RuntimeError("no")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    said = refusal("owner/name", token="env:MY_TOKEN", subset="en", revision="v1")
    assert (asked["token"], asked["name"], asked["revision"]) == ("hunter2", "en", "v1")
    assert "hunter2" not in said
    monkeypatch.delenv("MY_TOKEN")
    said = refusal("owner/name", token="env:MY_TOKEN")
    assert said.startswith("data.sources.token: the environment variable MY_TOKEN")


def test_what_can_be_no_data_set_is_found_by_check() -> None:
    (problem,) = verify(resolve(HubDataset(path="./nowhere")), ("files",)).problems
    assert "neither a local directory nor a valid hub id" in problem.message


def test_remote_code_is_refused_in_words() -> None:
    flags = ["data.sources=[{type=huggingface, path=a/b, trust_remote_code=true}]"]
    with refused():
        compose(Job, flags=flags).resolve()
