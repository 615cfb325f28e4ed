"""Mixtures: exact shares at every moment, whoever takes how many rows at once, resumed anywhere."""

import json
import math
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.cli.main import main
from setpoint.config import SetpointError, resolve
from setpoint.config.composition import compose
from setpoint.data.config import Packing
from setpoint.data.corpus import build_corpus
from setpoint.data.document import Document
from setpoint.data.loader import Feed
from setpoint.data.order import MixtureSchedule, Sampler, Shares, planned_rows, shares_of
from setpoint.data.packing import Packer, build_packed
from setpoint.data.rows import DocumentRows, MixedSequences, RowOrder, training_rows
from setpoint.data.sides import read_sides
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.shapes.batch import Count
from setpoint.train.build.components import build_components
from setpoint.train.build.job_data import build_training_data, describe_data_position
from setpoint.train.config import Job
from setpoint.train.run import train

from ..support.snapshots import refused
from ..train.small import events, small_job
from .row_files import write_rows

LENGTH = 4
WEIGHTS = st.lists(st.floats(0.01, 100), min_size=1, max_size=5)


def windows_of(index: int, sequences: int = 7) -> DocumentRows:
    """Sequences that hold one byte only, by which their source is known."""
    text = bytes([index]) * (sequences * (LENGTH + 1) - 2)
    documents = [Document(f"s{index}/a", text)]
    return training_rows(build_corpus(documents, ByteTokenizer(), side="train"), LENGTH)


def mixture_of(
    weights: list[float], later: dict[int, list[float]] | None = None, limits: Any = None
) -> tuple[MixedSequences, Sampler]:
    names = [f"s{index}" for index in range(len(weights))]
    members = [windows_of(index) for index in range(len(weights))]
    cursors = [RowOrder(each, 3, name) for each, name in zip(members, names, strict=True)]
    phases = [Shares(0, shares_of(weights))]
    phases += [Shares(first, shares_of(each)) for first, each in (later or {}).items()]
    whole = MixedSequences(names, members)
    limits = limits or [None] * len(weights)
    return whole, Sampler(cursors, MixtureSchedule(tuple(names), phases, limits, whole.epoch_rows))


def taken(sampler: Sampler, count: int) -> list[tuple[int, int]]:
    """The next rows as (source, number)."""
    rows = sampler.take(count)
    parts = [iter((part.starts // (LENGTH + 1)).tolist()) for part in rows.parts]
    return [(source, next(parts[source])) for source in rows.source.tolist()]


@given(WEIGHTS)
def test_each_source_has_its_share_after_every_row(weights: list[float]) -> None:
    _, sampler = mixture_of(weights)
    shares, counts = np.array(shares_of(weights)), np.zeros(len(weights))
    for row in range(1, 200):
        counts[sampler.take(1).source[0]] += 1
        assert np.abs(counts - shares * row).max() < len(weights)


@given(WEIGHTS, st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 20))
def test_the_stream_is_the_same_in_pieces_and_resumed(
    weights: list[float], pieces: list[int], change: int
) -> None:
    later = {change: weights[::-1]}
    _, whole = mixture_of(weights, later)
    expected = taken(whole, sum(pieces))
    _, sampler = mixture_of(weights, later)
    found: list[tuple[int, int]] = []
    for count in pieces:
        state = json.loads(json.dumps(sampler.state_dict()))
        _, sampler = mixture_of(weights, later)
        sampler.load_state_dict(state)
        found += taken(sampler, count)
    assert found == expected
    assert sampler.state_dict() == whole.state_dict()


@given(WEIGHTS, st.integers(2, 12), st.data())
def test_a_slice_of_the_rows_is_what_its_rank_makes(
    weights: list[float], count: int, data: st.DataObject
) -> None:
    mixture, sampler = mixture_of(weights)
    rows = sampler.take(count)
    batch = mixture.batch_of(rows)
    first = data.draw(st.integers(0, count - 1))
    part = mixture.batch_of(rows[first : data.draw(st.integers(first + 1, count))])
    assert part.inputs.tolist() == batch.inputs[first : first + len(part.inputs)].tolist()
    # The second token of each of these sequences is the byte of its source.
    assert batch.source is not None
    assert batch.inputs[:, 1].tolist() == batch.source.tolist() == rows.source.tolist()
    assert batch.tokens == count * LENGTH


def test_phases_change_the_shares_at_their_row() -> None:
    _, sampler = mixture_of([3, 1], {40: [0, 1], 60: [1, 1]})
    sources = [source for source, _ in taken(sampler, 100)]
    assert [sources[a:b].count(0) for a, b in ((0, 40), (40, 60), (60, 100))] == [30, 0, 20]


def test_shares_that_are_changed_on_resume_count_from_there() -> None:
    """Else the source that has more now would be given all rows until it has caught up."""
    _, before = mixture_of([1, 1])
    before.take(100)
    _, sampler = mixture_of([9, 1])
    sampler.load_state_dict(json.loads(json.dumps(before.state_dict())))
    sources = [source for source, _ in taken(sampler, 100)]
    assert [sources[at : at + 10].count(0) for at in range(0, 100, 10)] == [9] * 10


def by_tokens(weights: list[float]) -> Sampler:
    """Sources whose documents, one in each row, are of other lengths."""
    made: list[Packer] = []
    for index in range(len(weights)):
        lengths = range(3 + 8 * index, 9 + 8 * index)
        documents = [Document(f"s{index}/{n}", b"x" * n) for n in lengths]
        corpus = build_corpus(documents, ByteTokenizer(), side="train")
        section = resolve(Packing(method="none"))
        made.append(build_packed(corpus, section, length=32, seed=3, bucket=1, name=f"{index}")[1])
    names = tuple(f"s{index}" for index in range(len(weights)))
    phases = [Shares(0, shares_of(weights))]
    return Sampler(made, MixtureSchedule(names, phases, [None] * len(weights), 18, row_tokens=32))


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=3))
def test_shares_of_tokens(weights: list[float]) -> None:
    sampler, counts = by_tokens(weights), np.zeros(len(weights))
    for _ in range(150):
        rows = sampler.take(1)
        counts[rows.source[0]] += rows.parts[rows.source[0]].token_count
        assert np.abs(counts - np.array(shares_of(weights)) * counts.sum()).max() < 32 * len(
            weights
        )
    whole, resumed = by_tokens(weights), by_tokens(weights)
    whole.take(70)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    for _ in range(5):
        one, other = whole.take(4), resumed.take(4)
        assert one.source.tolist() == other.source.tolist()
        for mine, theirs in zip(one.parts, other.parts, strict=True):
            assert mine.starts.tolist() == theirs.starts.tolist()


@given(st.data())
def test_the_row_at_which_all_are_spent_is_known_ahead(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3))
    weights = st.lists(st.sampled_from([0.0, 1.0, 3.0]), min_size=count, max_size=count).filter(any)
    limits = data.draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))
    _, sampler = mixture_of(data.draw(weights), {20: data.draw(weights)}, limits)
    schedule = sampler.schedule
    for phases in (schedule.phases[:1], schedule.phases):
        _, sampler = mixture_of([1.0] * count, limits=limits)
        sampler.schedule = replace(sampler.schedule, phases=phases)
        with pytest.raises(SetpointError, match="as often as its epochs allow"):
            sampler.take(sum(limits) + 1)
        parts = count * (count + len(phases)) if len(phases) > 1 else 1e-6
        assert sampler.position == pytest.approx(planned_rows(phases, limits).total, abs=parts)


def test_what_the_rows_are_from_is_known_ahead() -> None:
    _, sampler = mixture_of([3, 1], {40: [0, 1], 60: [1, 1]}, limits=[25, None])
    sources = [source for source, _ in taken(sampler, 100)]
    planned = planned_rows(sampler.schedule.phases, sampler.schedule.limits, 100)
    assert planned == (100, (25, 75)) and sources.count(0) == 25
    assert planned_rows(sampler.schedule.phases, sampler.schedule.limits, 20) == (20, (15, 5))
    assert planned_rows(sampler.schedule.phases, sampler.schedule.limits).total == math.inf


def test_a_source_is_whole_in_each_of_its_epochs() -> None:
    _, sampler = mixture_of([1, 1])
    rows = taken(sampler, 28)
    numbers = [number for source, number in rows if source == 0]
    assert sorted(numbers[:7]) == sorted(numbers[7:]) == list(range(7))


@given(WEIGHTS, st.floats(0.1, 10))
def test_temperature(weights: list[float], temperature: float) -> None:
    logits = np.log(weights) / temperature
    expected = np.exp(logits - logits.max())
    assert shares_of(weights, temperature) == pytest.approx(expected / expected.sum())
    assert shares_of([*weights, 0.0], temperature)[-1] == 0


def test_states_of_other_sources_are_refused_and_leave_all_as_it_was() -> None:
    _, sampler = mixture_of([1, 1])
    sampler.take(5)
    before = sampler.state_dict()
    _, other = mixture_of([1, 1, 1])
    with refused():
        sampler.load_state_dict(other.state_dict())
    windows = windows_of(0)
    single = Sampler([RowOrder(windows, 3, "s0")]).state_dict()
    with refused():
        sampler.load_state_dict(single)
    broken = mixture_of([1, 1])[1].state_dict()
    broken["sources"]["s1"]["seed"] = 4
    with refused():
        sampler.load_state_dict(broken)
    assert sampler.state_dict() == before


S = 32
ROWS = [(f"r{row:02}" + "." * ((row * 7) % 23), (row * 5) % 11 - 3.5) for row in range(40)]


def jsonl(folder: Path) -> dict[str, Any]:
    rows = [{"text": text, "meta": {"q": score}} for text, score in ROWS]
    return {"type": "text", "paths": [write_rows(folder / "a.jsonl", rows)], "score": "meta.q"}


def table(folder: Path) -> dict[str, Any]:
    rows = [{"text": text, "q": score} for text, score in ROWS]
    return {"type": "text", "paths": [write_rows(folder / "a.csv", rows)], "score": "q"}


def hub(folder: Path) -> dict[str, Any]:
    datasets = pytest.importorskip("datasets")
    columns = {"text": [text for text, _ in ROWS], "q": [score for _, score in ROWS]}
    datasets.Dataset.from_dict(columns).save_to_disk(folder / "set", num_proc=None)
    return {"type": "huggingface", "path": str(folder / "set"), "score": "q"}


def job_of(source: dict[str, Any], *overrides: str) -> Job:
    source = dict(source)
    if not any("score" in each for each in overrides):
        source.pop("score")
    flags = [f"data.sources={json.dumps([source])}", "data.held_out=0", "evaluation=null"]
    return compose(Job, flags=[*flags, f"batch.sequence_length={S}", *overrides]).resolve()


def texts_of(job: Job, count: int = len(ROWS)) -> list[str]:
    """Documents in the order in which they are trained on, each in a row of its own."""
    train = read_sides(job.data, job.tokenizer.build()).train
    sequences, sampler = build_training_data(job, train)
    batch = sequences.batch_of(sampler.take(count))
    return [bytes(i for i in row if i < 256).decode() for row in batch.inputs.tolist()]


def expected(by: str, descending: bool) -> list[str]:
    """A stable sort, whose ties keep the order of the rows."""
    key: Callable[[tuple[str, float]], float]
    key = (lambda row: len(row[0])) if by == "length" else (lambda row: row[1])
    ordered = sorted(ROWS, key=lambda row: -key(row) if descending else key(row))
    return [text for text, _ in ordered]


@pytest.mark.parametrize(
    ("source", "by", "descending"),
    [(jsonl, "length", False), (table, "score", False), (hub, "score", True)],
)
def test_documents_come_in_the_order_of_the_key(
    source: Any, by: str, descending: bool, tmp_path: Path
) -> None:
    curriculum = (f"data.curriculum.by={by}", f"data.curriculum.descending={descending}".lower())
    section = source(tmp_path)
    job = job_of(section, *curriculum, "data.packing.method=none")
    # Each epoch is the same, and prepared data is the same again.
    assert texts_of(job, 2 * len(ROWS)) == 2 * expected(by, descending)
    prepared = ("data.prepare.above=1", f"data.prepare.folder={tmp_path}/cache")
    job = job_of(section, *curriculum, "data.packing.method=none", *prepared)
    assert texts_of(job) == expected(by, descending)
    assert list((tmp_path / "cache").glob("*/manifest.json"))


@pytest.mark.parametrize("method", ["concatenate", "next_fit"])
def test_a_resume_goes_on_and_another_order_is_refused(method: str, tmp_path: Path) -> None:
    section = jsonl(tmp_path)
    packing = f"data.packing.method={method}"

    def feed(*overrides: str) -> Feed:
        job = job_of(section, packing, *overrides)
        parts = build_training_data(job, read_sides(job.data, job.tokenizer.build()).train)
        return Feed(*parts, lambda b: Count(b.tokens, b.target_tokens, 1.0), micro_size=3)

    def inputs(feed: Feed, steps: int) -> list[Any]:
        return [batch.inputs.tolist() for _ in range(steps) for batch in feed.take().batches]

    whole, first = feed("data.curriculum.by=score"), feed("data.curriculum.by=score")
    rows = inputs(whole, 12)
    assert inputs(first, 5) == rows[:5]
    state, again = json.loads(json.dumps(first.state_dict())), feed("data.curriculum.by=score")
    again.load_state_dict(state)
    assert inputs(again, 7) == rows[5:]
    for other in ((), ("data.curriculum.by=length",), ("data.shuffle=false",)):
        with refused():
            feed(*other).load_state_dict(state)


@pytest.mark.parametrize(
    "value", ["true", "1" + "0" * 400, None], ids=["true", "too large", "missing"]
)
def test_a_row_without_a_number_is_named(value: str | None, tmp_path: Path) -> None:
    more = "" if value is None else f', "q": {value}'
    (tmp_path / "rows.jsonl").write_text(f'{{"text": "a", "q": 1}}\n{{"text": "b"{more}}}\n')
    source = {"type": "text", "paths": [f"{tmp_path}/rows.jsonl"], "score": "q"}
    job = job_of(source, "data.curriculum.by=score")
    with refused():
        texts_of(job, 1)


@pytest.mark.parametrize(
    "overrides",
    [
        ("data.curriculum.by=score", "data.sources.0.score=null"),
        ("data.sources.0.score=q",),
        ("data.curriculum.by=length", "data.sources.0.streaming=true"),
        ("data.curriculum.by=length", "data.shuffle=false"),
        ("data.curriculum.by=length", "data.seed=3"),
    ],
    ids=" ".join,
)
def test_what_does_not_go_together_is_refused(overrides: tuple[str, ...], tmp_path: Path) -> None:
    with refused():
        job_of(jsonl(tmp_path), *overrides)


MIXTURE = (
    """data.sources=[{type: random, name: a, documents: 30, weight: 3.0},
    {type: random, name: b, documents: 30, weight: 1.0}]""",
    "data.phases=[{start: 2 steps, lr_factor: 0.5}]",
    "data.anneal={start: 4 steps, weights: {a: 0.0}}",
)


def test_checkpoints_resumes_and_commands_say_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(small_job(tmp_path, "duration=4 steps", "evaluation=null")).directory
    state = json.loads((run / "checkpoints/step-00000004/state.json").read_text())
    assert state["data"] == "epoch 1, after 16 sequences"
    flags = ("duration=6 steps", "evaluation=null", "tracking.progress=lines")
    train(small_job(tmp_path, *flags), directory=run, accept=["schedule"])
    (resumed,) = events(run, "resume")
    assert resumed["data_position"] == "epoch 1, after 16 sequences"
    assert "\ndata position: epoch 1, after 16 sequences\n" in capsys.readouterr().out
    place = "epoch 1, after 24 sequences"
    assert main(["train", str(run), "--dry-run"]) == 0
    assert f"data position  {place}\n" in capsys.readouterr().out
    assert main(["show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"# this run is finished at step 6; data: {place}\n")
    assert tomllib.loads(shown)["name"] == "small"
    assert main(["check", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["data position"] == place


@pytest.mark.parametrize(
    ("step", "phase", "shares"),
    [
        (2, "phase 2 of 3 (from 2 steps on)", ("a 75.0%", "b 25.0%")),
        (5, "phase 3 of 3 (annealing from 4 steps on)", ("a 60.0%", "b 40.0%")),
    ],
)
def test_phases(tmp_path: Path, step: int, phase: str, shares: tuple[str, str]) -> None:
    """Of a checkpoint at the end of a phase: the one that begins with the next sequence."""
    job = small_job(tmp_path, f"duration={max(step, 5)} steps", "evaluation=null", *MIXTURE)
    feed = build_components(job).feed
    for _ in range(step):
        feed.take()
    said = describe_data_position(job, feed.state_dict())
    assert said.startswith(f"{phase}, after {4 * step} sequences: {shares[0]} (epoch 1, after ")
    assert f", {shares[1]} (epoch 1, after " in said
