"""Scores as rows of metrics, and back."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from setpoint.config.record.record import fingerprint
from setpoint.config.resolving.checks import verify
from setpoint.config.schema.field import NEEDS
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.shapes.scoring import Score
from setpoint.track.jsonl import JsonlWriter, read_jsonl
from setpoint.train.build.components import build_components
from setpoint.train.build.job_data import build_datasets, trained_on
from setpoint.train.evaluation.scores import (
    EvaluationState,
    Scores,
    evaluation_state_of,
    measure_of,
    row_of,
    scores_in,
    value_of,
)
from setpoint.train.run import train

from ...support.snapshots import refused
from ..small import events, rows, small_job

SCORES: Scores = {
    "held_out": Score.of(300.0, 100, 90, 4, 9, 25),
    "web": Score.of(71_000.0, 100, 90, 4, 4, 0),
    "a.b-c": Score.of(50.0, 100, 400, 1, 1, 100),
}


def test_a_row_there_and_back_through_a_file(tmp_path: Path) -> None:
    with JsonlWriter(tmp_path / "rows.jsonl") as file:
        file.write({"kind": "evaluation", "step": 3, "tokens": 9, **row_of(SCORES)})
    text = (tmp_path / "rows.jsonl").read_text()
    assert '"web_perplexity": "Infinity"' in text, "as every reader of JSON can read"
    (row,) = read_jsonl(tmp_path / "rows.jsonl")
    assert row["web_perplexity"] == math.inf and row["held_out_accuracy"] == 0.25
    assert scores_in(row) == SCORES
    assert list(scores_in(row)) == list(SCORES)


STOP = "evaluation.early_stopping.patience"


def ends_at(values: list[float], patience: int, gain: float, tmp_path: Path, *flags: str) -> int:
    """After how many evaluations a run ends; 0: it does not."""
    flags = (f"{STOP}={patience}", f"evaluation.early_stopping.min_delta={gain}", *flags)
    section, standing = small_job(tmp_path, *flags).evaluation, EvaluationState()
    assert section is not None
    for number, value in enumerate(values, 1):
        score = Score(value, value, value, 1, 1, 1, value)
        standing.observe(value_of(section, {"held_out": score}), gain)
        if standing.stop_reason(section):
            return number
    return 0


def defined(values: list[float], patience: int, gain: float) -> int:
    """The definition: the last `patience` values are not a gain over the best of those before."""
    for number in range(patience + 1, len(values) + 1):
        best = values[0]
        since = 0
        for value in values[1:number]:
            since = 0 if value < best - gain else since + 1
            best = value if since == 0 else best
        if since >= patience:
            return number
    return 0


def of_transformers(values: list[float], patience: int, tmp_path: Path, greater: bool) -> int:
    """The same by EarlyStoppingCallback of transformers."""
    from transformers import EarlyStoppingCallback, TrainerControl, TrainerState, TrainingArguments

    callback = EarlyStoppingCallback(early_stopping_patience=patience)
    given = TrainingArguments(
        output_dir=str(tmp_path), metric_for_best_model="loss", greater_is_better=greater,
        eval_strategy="steps", eval_steps=1, load_best_model_at_end=True, save_strategy="steps",
        save_steps=1, report_to=[], use_cpu=True,
    )  # fmt: skip
    state, control = TrainerState(), TrainerControl()
    for number, value in enumerate(values, 1):
        callback.on_evaluate(given, state, control, {"eval_loss": value})
        if control.should_training_stop:
            return number
        better = max if greater else min
        known = state.best_metric
        state.best_metric = value if known is None else better(known, value)
    return 0


@pytest.mark.parametrize(("patience", "gain"), [(1, 0.05), (4, 0.0)])
def test_equal_to_the_definition(tmp_path: Path, patience: int, gain: float) -> None:
    # An equal value and the least gain itself are no gain.
    assert ends_at([1.0, 1.0 - gain, 1.0 - gain], 1, gain, tmp_path) == 2
    for seed in range(6):
        values = (2 + np.random.default_rng(seed).normal(size=25).cumsum() / 20).tolist()
        expected = defined(values, patience, gain)
        assert ends_at(values, patience, gain, tmp_path) == expected
        negated = [-value for value in values]
        flags = ("evaluation.best.direction=max",)
        assert ends_at(negated, patience, gain, tmp_path, *flags) == expected


@pytest.mark.parametrize("greater", [False, True])
def test_equal_to_transformers(tmp_path: Path, greater: bool) -> None:
    flags = ("evaluation.best.metric=accuracy", "evaluation.accuracy=true") if greater else ()
    ends = set[int]()
    for seed in range(6):
        values = np.random.default_rng(seed).normal(size=20).tolist()
        expected = of_transformers(values, 4, tmp_path, greater)
        assert ends_at(values, 4, 0.0, tmp_path, *flags) == expected
        ends.add(expected)
    assert len(ends) > 2


def test_nan_and_infinity_are_no_gain(tmp_path: Path) -> None:
    assert ends_at([math.nan, 2.0, math.nan, math.nan], 2, 0.0, tmp_path) == 4
    assert ends_at([math.nan, math.nan], 2, 0.0, tmp_path) == 2
    assert ends_at([math.inf, math.inf, 3.0, 2.0], 2, 0.0, tmp_path) == 0
    standing = EvaluationState()
    standing.observe(math.nan)
    section = small_job(tmp_path, f"{STOP}=1").evaluation
    assert str(standing.stop_reason(section)).endswith("for 1 evaluation; it was always NaN")


def test_the_reason_of_an_early_stop(tmp_path: Path) -> None:
    flags = ("evaluation.best.metric=bits_per_byte", "evaluation.early_stopping.min_delta=0.01")
    section = small_job(tmp_path, f"{STOP}=3", *flags).evaluation
    assert EvaluationState({}, 9, 2.5, 3).stop_reason(section) == (
        "bits per byte on held_out has not improved by more than 0.01 for 3 evaluations; the "
        "best was 2.5"
    )
    assert EvaluationState({}, 9, 2.5, 2).stop_reason(section) is None
    assert EvaluationState({}, 9, 2.5, 99).stop_reason(small_job(tmp_path).evaluation) is None
    assert EvaluationState({}, 9, 2.5, 99).stop_reason(None) is None
    flags = ("evaluation.best.metric=accuracy", "evaluation.accuracy=true", f"{STOP}=1")
    assert EvaluationState({}, 9, -0.25, 1).stop_reason(small_job(tmp_path, *flags).evaluation) == (
        "accuracy on held_out has not improved for 1 evaluation; the best was 0.25"
    )


OTHER = "evaluation.datasets=[{name=web, sources=[{type=random, documents=3, seed=SEED}]}]"
WEB = (OTHER.replace("SEED", "3"), "evaluation.best.data=web")
CHANGES = {
    "sequences": ((), ("evaluation.sequences=5",), ["sequences"]),
    "data": (WEB[:1], WEB, ["data", "sequences", "text"]),
    "metric": ((), ("evaluation.best.metric=perplexity",), ["metric"]),
    "text": (WEB, (OTHER.replace("SEED", "4"), WEB[1]), ["text"]),
    "left out": ((), ("loss.ignore_index=33",), ["left_out"]),
    "weighed, not left out": ((), ("loss.token_weights={33: 2}",), []),
    "left out another way": (("loss.ignore_index=33",), ("loss.token_weights={33: 0}",), []),
    "another set beside it": ((), WEB[:1], []),
    "how often": ((), ("evaluation.every=1 steps", f"{STOP}=2"), []),
}


@pytest.mark.parametrize("name", CHANGES)
def test_when_values_no_longer_compare(tmp_path: Path, name: str) -> None:
    before, after, expected = CHANGES[name]
    job, today = (small_job(tmp_path, *flags) for flags in (before, after))
    standing = EvaluationState(measure_of(job, build_components(job)), 8, 2.5, 1)
    state = json.loads(json.dumps(standing.state_dict()))
    found = evaluation_state_of(today, build_components(today))
    found.load_state_dict(state)
    assert found.changed == expected
    if expected:
        assert (found.step, found.reference, found.evals_without_gain) == (8, None, 0)
    else:
        assert found == standing


def test_without_an_evaluation_what_was_known_is_kept(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    standing = EvaluationState(measure_of(job, build_components(job)), 8, 2.5, 1)
    without = small_job(tmp_path, "evaluation=null")
    components = build_components(without)
    assert build_datasets(without, ByteTokenizer()) == {} == components.eval_sets
    found = evaluation_state_of(without, components)
    found.load_state_dict(standing.state_dict())
    assert found == standing


def test_the_end_names_the_value_of_the_best_checkpoint(tmp_path: Path) -> None:
    """Though it was better by less than `min_delta`, so that patience went on."""
    flags = ("evaluation.early_stopping.patience=3", "evaluation.early_stopping.min_delta=0.5")
    section = small_job(tmp_path, *flags).evaluation
    metric = EvaluationState({"data": "held_out"})
    for value in (2.0, 1.75, 1.625, 1.875):
        metric.observe(value, 0.5)
    resumed = EvaluationState({"data": "held_out"})
    resumed.load_state_dict(metric.state_dict())
    assert str(resumed.stop_reason(section)).endswith("for 3 evaluations; the best was 1.625")


def files(folder: Path) -> str:
    """A data set of three files, as a flag."""
    (folder / "web").mkdir(exist_ok=True)
    for name, text in (("a", "first text " * 9), ("b", "second " * 9), ("c", "")):
        (folder / "web" / f"{name}.txt").write_text(text)
    source = f'{{type=text, paths=["{folder}/web/*.txt"]}}'
    return f"evaluation.datasets=[{{name=web, sources=[{source}]}}]"


def test_all_text_is_tokenized(tmp_path: Path) -> None:
    job = small_job(tmp_path, files(tmp_path))
    assert fingerprint(job) == fingerprint(small_job(tmp_path)), "no part of what is learned"
    (web,) = (each.corpus for each in build_datasets(job, ByteTokenizer()).values())
    texts = [(tmp_path / "web" / f"{name}.txt").read_bytes() for name in "ab"]
    orders = [[256, *a, 256, *b, 256] for a, b in (texts, texts[::-1])]
    assert web.tokens.tolist() in orders, "a document without a byte is none"
    assert web.byte_count == sum(len(text) for text in texts)
    assert np.array_equal(build_components(job).eval_sets["web"].corpus.tokens, web.tokens)


def test_a_set_without_text_is_refused_and_a_short_one_is_not(tmp_path: Path) -> None:
    job = small_job(tmp_path, files(tmp_path), "batch.sequence_length=16")
    for name in "abc":
        (tmp_path / "web" / f"{name}.txt").write_text("")
    with refused():
        build_components(job)
    (tmp_path / "web" / "a.txt").write_text("short")
    assert len(build_components(job).eval_sets["web"]) == 1


def test_missing_files_are_found_by_check(tmp_path: Path) -> None:
    flag = files(tmp_path).replace("*.txt", "*.text")
    found = verify(small_job(tmp_path, flag), NEEDS).problems
    (problem,) = [p for p in found if p.path.startswith("evaluation")]
    assert problem.path == "evaluation.datasets.0.sources.0.paths.0"
    assert "text" in problem.message
    with refused():
        build_components(small_job(tmp_path, flag))


def test_documents_that_are_learned_from_as_well_are_named(tmp_path: Path) -> None:
    same = "{name=same, sources=[{type=random, documents=40, length=200, alphabet=8}]}"
    other = "{name=other, sources=[{type=random, documents=4, length=200, seed=3}]}"
    job = small_job(tmp_path, f"evaluation.datasets=[{same}, {other}]")
    components = build_components(job)
    (line,) = trained_on(components.train_data, components.eval_sets)
    trained = len(components.train_data.identity.files)
    assert line.startswith(f"caution: {trained} of 40 evaluated documents of same are also tr")
    assert list(trained_on(components.train_data, {"held_out": components.held_out})) == []


def test_a_run_goes_on_with_another_text_under_the_same_name(tmp_path: Path) -> None:
    """A source is what is learned among the data, and a setting of the run here."""
    web = "evaluation.datasets=[{name=web, sources=[{type=random, documents=3, seed=SEED}]}]"

    def run(seed: int) -> Path:
        flags = ("schedule=constant", f"duration={seed} steps", web.replace("SEED", str(seed)))
        return train(small_job(tmp_path, *flags)).directory

    folder = run(3)
    assert run(4) == folder
    paths = [item["path"] for item in events(folder, "resume")[-1]["accepted"]]
    assert set(paths) == {"duration", "evaluation.datasets.0.sources.0.seed"}
    assert [row["step"] for row in rows(folder) if row["kind"] == "evaluation"] == [3, 4]
