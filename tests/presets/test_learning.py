"""Each architecture learns a text by heart in a short run, and writes it again from the run."""

from __future__ import annotations

from pathlib import Path

import pytest

import setpoint.presets  # noqa: F401 - registers them
from setpoint.config.composition import compose
from setpoint.infer.generation import Sampling, generate
from setpoint.model import load_pretrained
from setpoint.train.config import Job
from setpoint.train.run import train

TEXT = "A line by heart is written again."
# Between them they have each part of the others.
PRESETS = ("gemma3-tiny", "gpt2-tiny", "deepseek-tiny")
OTHERS = ("llama3-tiny", "qwen3-tiny", "qwen3-moe-tiny", "mistral-tiny")


@pytest.mark.parametrize(
    "name", [*PRESETS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_a_text_is_learnt_by_heart_and_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "page.txt").write_text(TEXT)
    job = compose(
        Job,
        name,
        flags=[
            f'data.sources=[{{type=text, paths=["{tmp_path}/*.txt"]}}]',
            "data.held_out=0",
            "evaluation=null",
            "batch.global_size=1",
            f"batch.sequence_length={len(TEXT)}",
            "duration=40 steps",
            f"workspace={tmp_path}",
            "tracking.progress=none",
        ],
    ).resolve()
    run = train(job).directory
    model = load_pretrained(str(run))
    tokenizer = job.tokenizer.build()
    start = [tokenizer.separator, *tokenizer.encode(TEXT[:12].encode())]
    greedy = Sampling(temperature=0)
    (learnt,) = generate(model, [start], max_tokens=len(TEXT) - 12, sampling=greedy)
    assert TEXT[:12] + tokenizer.decode(learnt.tokens).decode() == TEXT
