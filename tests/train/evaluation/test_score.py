"""Scores as rows of metrics, and back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from setpoint.shapes.scoring import Score
from setpoint.track.jsonl import JsonlWriter, read_jsonl
from setpoint.train.evaluation.scores import Scores, row_of, scores_in

SCORES: Scores = {
    "held_out": Score.of(300.0, 100, 90, 25),
    "web": Score.of(71_000.0, 100, 90, 0),
    "a.b-c": Score.of(50.0, 100, 400, 100),
}


def test_from_sums() -> None:
    score = Score.of(300.0, 100, 90, 25)
    assert (score.loss, score.tokens, score.accuracy) == (3.0, 100, 0.25)
    assert score.perplexity == pytest.approx(math.exp(3.0), rel=1e-15)
    assert score.bits_per_byte == pytest.approx(300 / math.log(2) / 90, rel=1e-15)
    assert score.metric("accuracy") == 0.25 and score.metric("loss") == 3.0
    assert Score.of(300.0, 100, 90).accuracy is None


def test_a_row_there_and_back_through_a_file(tmp_path: Path) -> None:
    with JsonlWriter(tmp_path / "rows.jsonl") as file:
        file.write({"kind": "evaluation", "step": 3, "tokens": 9, **row_of(SCORES)})
    text = (tmp_path / "rows.jsonl").read_text()
    assert '"web_perplexity": "Infinity"' in text, "as every reader of JSON can read"
    (row,) = read_jsonl(tmp_path / "rows.jsonl")
    assert row["web_perplexity"] == math.inf and row["held_out_accuracy"] == 0.25
    assert scores_in(row) == SCORES
    assert list(scores_in(row)) == list(SCORES)


def test_what_is_not_counted_is_not_written() -> None:
    assert set(row_of({"held_out": Score.of(3.0, 1, 1)})) == {
        "held_out_loss", "held_out_perplexity", "held_out_bits_per_byte", "held_out_tokens",
    }  # fmt: skip


def test_rows_of_older_versions() -> None:
    row = {"kind": "evaluation", "step": 3, "tokens": 9, "held_out_loss": 2.0,
           "held_out_bits_per_byte": 2.9, "held_out_tokens": 7}  # fmt: skip
    assert scores_in(row) == {"held_out": Score(2.0, math.exp(2.0), 2.9, 7)}
    assert scores_in({"kind": "train", "step": 3, "tokens": 9, "loss": 2.0}) == {}


def test_format_line() -> None:
    assert SCORES["held_out"].format_line() == (
        "loss 3.0000, 4.8090 bits per byte, accuracy 0.2500"
    )
    assert Score.of(3.0, 1, 1).format_line() == "loss 3.0000, 4.3281 bits per byte"
