"""Arguments of `train` in Python beside a job: sources, overrides, data and callbacks."""

import json
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from setpoint.config import ConfigError, compose
from setpoint.config.record.record import fingerprint
from setpoint.data.corpus import Corpus
from setpoint.data.sources.config import Conversations
from setpoint.train.config import Job
from setpoint.train.loop import Callback
from setpoint.train.run import Run, train

from ..support.snapshots import refused
from .small import Steps, assert_same_run, events, small_job, write_config

TEXTS = [f"the number {n} and its square {n * n}. " * 3 for n in range(60)]
CHATS = [
    {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}"}]}
    for n in range(60)
]


def trained(folder: Path, **given: Any) -> Run:
    """Train the small job by its file."""
    more = given.pop("overrides", {})
    place = {"workspace": str(folder / "runs"), "tracking.progress": "none", "duration": 3}
    return train(write_config(folder), overrides={**place, **more}, **given)


def test_a_job_in_any_form_is_the_same_run(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=3 steps")
    run = train(job).directory
    composition = compose(Job, str(write_config(tmp_path)), flags=["duration=3 steps"])
    words = [f"workspace={tmp_path / 'runs'}", "tracking.progress=none"]
    for source in (job.evolve(), composition.draft, composition):
        again = train(source, overrides=words)
        assert (again.directory, again.started.step) == (run, 3)
    assert trained(tmp_path).directory == run
    # A run directory goes on where it is, as on the command line.
    assert train(str(run)).directory == run
    with refused():
        train(run, overrides={"optimizer.lr": 0.5})


def test_problems_of_layers_and_overrides_are_reported_together(tmp_path: Path) -> None:
    composition = compose(Job, str(write_config(tmp_path)), flags=["optimizer.lr=fast"])
    with pytest.raises(ConfigError) as caught:
        train(composition, overrides={"model.heads": 3})
    assert {problem.path for problem in caught.value.problems} == {"optimizer.lr", "model.heads"}


def test_data_in_memory_is_what_the_same_rows_in_a_file_are(tmp_path: Path) -> None:
    outcome = trained(tmp_path, data=TEXTS)
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    source = {"type": "text", "paths": [str(file)]}
    oracle = trained(tmp_path, overrides={"data.sources": [source], "name": "file"})
    assert_same_run(outcome.directory, oracle.directory)
    # Its digest is in the configuration: other data makes another run, or is refused.
    other = trained(tmp_path, data=TEXTS[1:])
    assert other.directory != outcome.directory
    assert trained(tmp_path, data=(text for text in TEXTS)).started.step == 3
    with refused():
        trained(tmp_path, data=TEXTS[1:], directory=outcome.directory)


def test_a_process_without_the_data_says_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    run = trained(tmp_path, data=TEXTS).directory
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    with refused():
        train(run)


class Rows:
    """A map-style dataset, as torch has them."""

    def __len__(self) -> int:
        return len(TEXTS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"text": TEXTS[index], "id": np.int64(index), "vector": np.zeros(2)}


class Table:
    """As much of a DataFrame as is asked of one."""

    columns = ("text",)
    iloc = None

    def to_dict(self, orient: str) -> list[dict[str, str]]:
        assert orient == "records"
        return [{"text": text} for text in TEXTS]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


def test_rows_of_others(tmp_path: Path) -> None:
    texts = trained(tmp_path, data=TEXTS, overrides={"name": "texts"}).components.corpora[0]
    for data in (Rows(), Table(), [UserDict(text=text) for text in TEXTS]):
        found = trained(tmp_path, data=data).components.corpora[0]
        assert isinstance(found, Corpus) and isinstance(texts, Corpus)
        assert np.array_equal(found.tokens[:], texts.tokens[:])


def test_rows_with_a_field_of_another_name(tmp_path: Path) -> None:
    field = {"data.sources.0.field": "body"}
    rows = [{"body": text} for text in TEXTS]
    found = trained(tmp_path, data=rows, overrides=field).components.corpora[0]
    texts = trained(tmp_path, data=TEXTS, overrides={"name": "texts"}).components.corpora[0]
    assert isinstance(found, Corpus) and isinstance(texts, Corpus)
    assert np.array_equal(found.tokens[:], texts.tokens[:])
    with refused():
        trained(tmp_path, data=rows)


def test_conversations_in_columns_of_other_names(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    rows = [{"asked": f"{number}?", "said": f"{number}"} for number in range(40)]
    columns = {"prompt": "asked", "completion": "said"}
    options = {"data.sources.0.template": "plain", "data.sources.0.columns": columns}
    run = trained(tmp_path, data=rows, overrides=options)
    assert isinstance(run.job.data.sources[0], Conversations)
    whole = {"data.sources.0": {"template": "plain", "columns": columns}}
    assert fingerprint(trained(tmp_path, data=rows, overrides=whole).job) == fingerprint(run.job)
    with refused():
        trained(tmp_path, data=TEXTS, overrides={"data.sources.0.columns": None})


def test_conversations_in_memory(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    options = {"data.sources.0.template": "plain", "data.sources.0.loss_on": "last_answer"}
    outcome = trained(tmp_path, data=CHATS, overrides=options)
    (source,) = outcome.job.data.sources
    assert isinstance(source, Conversations) and source.loss_on == "last_answer"
    bare = [chat["messages"] for chat in CHATS]
    again = trained(tmp_path, data=bare, overrides=options)
    assert fingerprint(again.job) == fingerprint(outcome.job)


def test_wrong_data(tmp_path: Path) -> None:
    no_json = [{"text": "a", "x": object()}]
    for data in (
        "text", {"train": TEXTS}, 5, [], [b"x"], ["a", CHATS[0]], ["a", "\ud800"], no_json,
    ):  # fmt: skip
        with refused():
            trained(tmp_path, data=data)
    assert not (tmp_path / "runs").exists()


def test_a_text_beside_a_preference_pair_is_refused() -> None:
    with refused():
        train("tiny", data=[{"text": "a"}, {"text": "a", "chosen": "b", "rejected": "c"}])


def test_wrong_arguments() -> None:
    wrong: list[dict[str, Any]] = [
        {"source": 5}, {"overrides": "seed=3"}, {"accept": 3}, {"stop": True},
        {"callbacks": Callback()}, {"callbacks": [Callback]}, {"until": 0}, {"directory": 3},
    ]  # fmt: skip
    for given in wrong:
        with refused():
            train(**{"source": "tiny", **given})


def test_callbacks_as_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps()
    run = trained(tmp_path, callbacks=[steps], until=2).directory
    assert [result.step for result in steps.seen] == [1, 2]
    name = f"{Steps.__module__}.Steps"
    assert events(run, "start")[0]["callbacks"] == [name]
    # They are in no record, which a session without them says.
    trained(tmp_path, overrides={"tracking.progress": "lines"})
    lost = f"train(callbacks=...), are not recorded and will not be called: {name}\n"
    assert lost in capsys.readouterr().out
    assert "callbacks" not in events(run, "resume")[0]


def test_data_in_memory_beside_other_sources_is_refused(tmp_path: Path) -> None:
    paths = [str(tmp_path / "other.txt")]
    with refused():
        trained(tmp_path, data=TEXTS, overrides={"data.sources.0.paths": paths})
    assert not (tmp_path / "runs").exists()


def test_a_split_that_leaves_little_to_train_on_is_a_caution(tmp_path: Path) -> None:
    """Without weights all sources are split together, and documents differ in length."""
    for name, count, size in (("a", 1, 9000), ("b", 5, 300)):
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"{number}.txt").write_text("line of text\n" * (size // 13))
    cautioned = []
    for number in range(1, 6):
        sources = [{"type": "text", "name": n, "paths": [str(tmp_path / n)]} for n in "ab"]
        overrides = {"data.sources": sources, "data.held_out": number, "name": f"n{number}"}
        run = trained(tmp_path, overrides=overrides).directory
        log = (run / "logs" / "rank-0.log").read_text()
        data = json.loads((run / "environment.json").read_text())["data"]
        trained_on = {file[0][0] for file in data["train"]["files"]}
        assert ("all documents of 'a' are held out" in log) == ("a" not in trained_on)
        cautioned.append("caution: all documents of" in log)
    assert any(cautioned)
